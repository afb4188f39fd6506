"""What ``fusescope explain`` writes beside what it prints."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Call = Callable[..., Any]

OUTPUTS = {"--html": "report.html", "--markdown": "study.md", "--csv": "tables", "--model-explorer": "nodes"}


@pytest.fixture(name="runs")
def _runs(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The runs of the tiny network, in the folder that commands run in."""
    folder, _ = request.getfixturevalue("tiny_study")
    shutil.copytree(folder / "out" / "runs", tmp_path / "runs")
    return tmp_path / "runs"


@pytest.mark.compiles
class TestOutputs:
    """``--html``, ``--markdown``, ``--csv`` and ``--model-explorer``."""

    def test_all_at_once(self, call: Call, runs: Path, tmp_path: Path) -> None:
        """Each is written and said, and the explanation is printed nevertheless."""
        words = [word for pair in OUTPUTS.items() for word in pair]
        called = call("explain", runs / "b1-fp8", "--baseline", runs / "b1-fp16", *words)
        assert called.status == 0
        assert called.err.splitlines() == [f"wrote {name}" for name in OUTPUTS.values()]
        assert "fp8 against fp16" in called.out
        assert (tmp_path / "study.md").read_text(encoding="utf-8").startswith("# fp8\n")
        assert {path.suffix for path in (tmp_path / "tables").iterdir()} == {".csv"}
        assert {path.name for path in (tmp_path / "nodes").iterdir()} == {
            "verdict.json",
            "traffic_bytes.json",
            "kernels.json",
        }

    @pytest.mark.parametrize(("option", "name"), OUTPUTS.items())
    def test_an_output_that_exists(
        self, call: Call, refused: Callable[..., str], runs: Path, option: str, name: str
    ) -> None:
        """It is refused and left as it is; with --force it is replaced."""
        assert call("explain", runs / "b1-fp8", option, name).status == 0
        assert "already exists" in refused("explain", runs / "b1-fp8", option, name)
        assert call("explain", runs / "b1-fp8", option, name, "--force").status == 0

    @pytest.mark.parametrize("option", ["--csv", "--model-explorer"])
    def test_a_folder_of_something_else(self, refused: Callable[..., str], runs: Path, option: str) -> None:
        """Not even --force replaces a folder that holds other files."""
        assert "holds other files" in refused("explain", runs / "b1-fp8", option, "runs", "--force")
