"""Which engines a study needs, and what makes one another than it was."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from fusescope.graph.errors import UserError
from fusescope.study import plan as planning
from fusescope.study.config import read_config
from fusescope.study.plan import Job, plan

TOML = """
model = "net.onnx"
batches = [1, 4]
[build]
[[variant]]
name = "a"
[[variant]]
name = "b"
weights = "per-tensor"
"""
BASE = {"b1-fp32", "b4-fp32", "b1-a", "b4-a", "b1-b", "b4-b"}


def write_model(folder: Path, scale: float = 1.0, *, external: bool = False) -> None:
    """Write a convolution whose weight is `scale`, in the file or beside it."""
    proto = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 19]> g (float[1,4,8,8] x) => (float[1,4,8,8] y) { [c] y = Conv (x, w) }'
    )
    proto.graph.initializer.append(numpy_helper.from_array(np.full((4, 4, 1, 1), scale, np.float32), "w"))
    (folder / "weights.bin").unlink(missing_ok=True)
    onnx.save(proto, folder / "net.onnx", save_as_external_data=external, location="weights.bin", size_threshold=0)


def planned(folder: Path, text: str = TOML) -> dict[str, Job]:
    """Plan the study of that TOML text, by the folder of each run."""
    (folder / "study.toml").write_text(text, encoding="utf-8")
    return {job.folder_name: job for job in plan(read_config(folder / "study.toml"))}


def changed(before: dict[str, Job], after: dict[str, Job]) -> set[str]:
    """Runs that `after` needs and that are not those of `before`."""
    requests = {job.request for job in before.values()}
    return {name for name, job in after.items() if job.request not in requests}


def test_the_engines(tmp_path: Path) -> None:
    """For every batch the baseline, called by its element type, then the variants; each has a request of its own."""
    write_model(tmp_path)
    jobs = planned(tmp_path)
    assert list(jobs) == ["b1-fp32", "b1-a", "b1-b", "b4-fp32", "b4-a", "b4-b"]
    assert [job.name for job in jobs.values() if job.variant is None] == ["fp32", "fp32"]
    assert len({job.request for job in jobs.values()}) == 6
    assert not changed(jobs, planned(tmp_path))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("[build]", '[build]\ntarget = "sm89"', BASE),
        ("[build]", "[build]\nopt_level = 1", BASE),
        ("[build]", "[build]\ntimeout_s = 7", set()),
        ("batches", 'title = "Another"\nbatches', set()),
        ("batches", 'gpu = "L4"\nbatches', set()),
        ("batches", 'dtype = "fp16"\nbatches', {name.replace("fp32", "fp16") for name in BASE}),
        ("[1, 4]", "[4, 8]", {"b8-fp32", "b8-a", "b8-b"}),
        ("per-tensor", "per-channel", {"b1-b", "b4-b"}),
        ('"a"', '"c"', {"b1-c", "b4-c"}),
        ('"a"\n', '"a"\nkeep = ["x"]\n', {"b1-a", "b4-a"}),
    ],
    ids=["target", "options", "timeout", "title", "gpu", "dtype", "batches", "weights", "name", "keep"],
)
def test_what_is_built_again(tmp_path: Path, old: str, new: str, expected: set[str]) -> None:
    """A change of the file asks for just the engines that it concerns; how the report looks concerns none."""
    write_model(tmp_path)
    assert old in TOML
    assert changed(planned(tmp_path), planned(tmp_path, TOML.replace(old, new, 1))) == expected


@pytest.mark.parametrize("external", [False, True], ids=["inside", "external data"])
def test_another_model(tmp_path: Path, external: bool) -> None:
    """Other weights are another model, also where they lie in a file of their own."""
    write_model(tmp_path, external=external)
    before = planned(tmp_path)
    write_model(tmp_path, external=external)
    assert not changed(before, planned(tmp_path))
    write_model(tmp_path, scale=2.0, external=external)
    assert changed(before, planned(tmp_path)) == BASE


def test_another_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another release of the compiler, or of fusescope, builds all again; so does the first compiler on a machine."""
    write_model(tmp_path)
    before = planned(tmp_path)
    monkeypatch.setattr(planning.importlib.metadata, "version", lambda _name: "99.0")
    newer = planned(tmp_path)
    assert changed(before, newer) == BASE

    def missing(name: str) -> str:
        raise planning.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(planning.importlib.metadata, "version", missing)
    assert changed(newer, planned(tmp_path)) == BASE
    monkeypatch.setattr(planning, "__version__", "99.0")
    assert changed(before, planned(tmp_path)) == BASE


def test_a_variant_called_like_the_baseline(tmp_path: Path) -> None:
    """Two engines in one folder are refused, whatever the case of their letters."""
    write_model(tmp_path)
    for name in ("fp32", "FP32"):
        with pytest.raises(UserError, match="'fp32', like the baseline; rename it"):
            planned(tmp_path, TOML.replace('"a"', f'"{name}"'))


def test_a_baseline_without_convolutions(tmp_path: Path) -> None:
    """A model without a conv or gemm has no element type to be called by."""
    proto = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 19]> g (float[1,4] x) => (float[1,4] y) { [r] y = Relu (x) }'
    )
    onnx.save(proto, tmp_path / "net.onnx")
    assert {job.name for job in planned(tmp_path).values() if job.variant is None} == {"baseline"}
