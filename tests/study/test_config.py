"""The TOML file of a study: what it may hold, and what is said of the rest."""

from pathlib import Path

import pytest

from fusescope.graph.errors import UserError
from fusescope.profiler.runtimes import DEFAULT_TIMEOUT_S
from fusescope.study.config import Build, StudyConfig, read_config

MODEL = 'model = "net.onnx"\n'
VARIANT = '[[variant]]\nname = "fp8"\n'
SAMPLES = Path(__file__).parents[2] / "samples"


def read(folder: Path, text: str) -> StudyConfig:
    """Read a configuration whose model is there."""
    (folder / "net.onnx").touch()
    (folder / "study.toml").write_text(text, encoding="utf-8")
    return read_config(folder / "study.toml")


def test_the_least(tmp_path: Path) -> None:
    """A model and one variant are enough; the rest are the defaults, and the title is the model's name."""
    config = read(tmp_path, MODEL + VARIANT)
    assert config.model == tmp_path / "net.onnx"
    assert config.title == "net"
    assert config.batches == (1,)
    assert config.dtype is None
    assert config.build == Build()
    assert config.build.target == "sm120"
    assert config.build.timeout_s == DEFAULT_TIMEOUT_S
    (variant,) = config.variant
    assert (variant.format, variant.weights, variant.keep) == ("fp8", "per-channel", ())


def test_the_most(tmp_path: Path) -> None:
    """Every key is read; whole numbers do for seconds."""
    config = read(
        tmp_path,
        """
        model = "net.onnx"
        dtype = "fp16"
        title = "Net"
        batches = [8, 1]
        gpu = "RTX-5090"

        [build]
        runtime = "tensorrt-rtx"
        target = "sm89"
        opt_level = 1
        aux_streams = 0
        avg_timing_iterations = 8
        workspace_mib = 4096
        timeout_s = 60

        [[variant]]
        name = "a"
        format = "int8"
        placement = "conv-inputs"
        weights = "per-tensor"
        keep = ["*/head/*", "stem"]

        [[variant]]
        name = "b"
        """,
    )
    assert (config.dtype, config.title, config.batches, config.gpu) == ("fp16", "Net", (8, 1), "RTX-5090")
    assert config.build.model_dump() == {
        "runtime": "tensorrt-rtx",
        "target": "sm89",
        "opt_level": 1,
        "aux_streams": 0,
        "avg_timing_iterations": 8,
        "workspace_mib": 4096,
        "timeout_s": 60.0,
    }
    assert config.variant[0].keep == ("*/head/*", "stem")
    assert [variant.name for variant in config.variant] == ["a", "b"]


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_the_samples(path: Path) -> None:
    """The samples' files are valid, and their models are beside them."""
    assert read_config(path).model.is_file()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (VARIANT, "lacks the key 'model'"),
        ("modle = 1\n" + VARIANT, "unknown key 'modle'; did you mean 'model'?"),
        (MODEL, "lacks the key 'variant'"),
        (MODEL + "[[variant]]\n", "lacks the key 'variant[0].name'"),
        (MODEL + "batchs = [1]\n" + VARIANT, "unknown key 'batchs'; did you mean 'batches'? known here are model,"),
        (MODEL + VARIANT + 'wieghts = "per-tensor"\n', "unknown key 'variant[0].wieghts'; did you mean 'weights'?"),
        (MODEL + VARIANT + "[build]\nopt-level = 1\n", "unknown key 'build.opt-level'; did you mean 'opt_level'?"),
        (MODEL + "zzz = 1\n" + VARIANT, "unknown key 'zzz'; known here are model,"),
        (MODEL + VARIANT + VARIANT, "variant: two variants have the same name"),
        (MODEL + VARIANT + '[[variant]]\nname = "FP8"\n', "variant: two variants have the same name"),
        (MODEL + '[[variant]]\nname = "a/b"\n', "variant[0].name: "),
        (MODEL + '[[variant]]\nname = "../up"\n', "variant[0].name: "),
        (MODEL + '[[variant]]\nname = ""\n', "variant[0].name: "),
        (MODEL + "variant = []\n", "variant: "),
        (MODEL + VARIANT + VARIANT.replace("fp8", "b") + 'format = "fp4"\n', "variant[1].format: "),
        (MODEL + VARIANT + 'keep = "stem"\n', "variant[0].keep: "),
        ("model = 3\n" + VARIANT, "model: "),
        (MODEL + "batches = 8\n" + VARIANT, "batches: "),
        (MODEL + "batches = []\n" + VARIANT, "batches: "),
        (MODEL + "batches = [0]\n" + VARIANT, "batches: batches must be positive and different"),
        (MODEL + "batches = [2, 2]\n" + VARIANT, "batches: batches must be positive and different"),
        (MODEL + 'batches = [1, "2"]\n' + VARIANT, "batches[1]: Input should be a valid integer, not '2'"),
        (
            MODEL + VARIANT + "[build]\nopt_level = 6\n",
            "build.opt_level: Input should be less than or equal to 5, not 6",
        ),
        (MODEL + VARIANT + "[build]\nopt_level = true\n", "build.opt_level: Input should be a valid integer, not True"),
        (MODEL + VARIANT + "[build]\ntimeout_s = inf\n", "build.timeout_s: "),
        (MODEL + VARIANT + "[build]\ntimeout_s = 0\n", "build.timeout_s: "),
        (MODEL + VARIANT + '[build]\nruntime = "tensorrt"\n', "build.runtime: "),
        (MODEL + 'dtype = "fp64"\n' + VARIANT, "dtype: "),
        ("model =\n", "is not TOML: "),
        (MODEL + MODEL + VARIANT, "is not TOML: "),
    ],
)
def test_what_does_not_fit(tmp_path: Path, text: str, expected: str) -> None:
    """The file, the key and what is wrong with it are named, with the nearest name for one that is not known."""
    with pytest.raises(UserError) as raised:
        read(tmp_path, text)
    message = str(raised.value)
    assert message.startswith(f"{tmp_path / 'study.toml'}: ")
    assert expected in message
    assert raised.value.remedy


@pytest.mark.parametrize(
    ("text", "expected"),
    [('gpu = "RTX-5091"\n', "RTX-5090"), ('build = { target = "sm12" }\n', "did you mean sm12")],
    ids=["gpu", "target"],
)
def test_unknown_hardware(tmp_path: Path, text: str, expected: str) -> None:
    """A GPU or target that is not known is refused before anything is done, with those that are."""
    with pytest.raises(UserError, match=expected):
        read(tmp_path, MODEL + text + VARIANT)


def test_a_missing_model(tmp_path: Path) -> None:
    """A model that is not there is named as the file names it; so is a folder, and a file that cannot be read."""
    (tmp_path / "folder.onnx").mkdir()
    for name in ("elsewhere/net2.onnx", "folder.onnx"):
        with pytest.raises(UserError, match=f"its model {name} does not exist"):
            read(tmp_path, f'model = "{name}"\n' + VARIANT)
    with pytest.raises(UserError, match="cannot be read"):
        read_config(tmp_path / "nowhere.toml")
    (tmp_path / "latin.toml").write_bytes(b"title = '\xe4'\n")
    with pytest.raises(UserError, match="is not TOML"):
        read_config(tmp_path / "latin.toml")
