"""A study in a folder of its own, to be changed."""

import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fusescope.study.config import read_config
from fusescope.study.plan import plan
from fusescope.study.runner import StudyResult, run_study


@dataclass
class Study:
    """A folder with ``tiny.onnx`` and ``tiny.toml``, whose study goes into ``out``."""

    folder: Path
    """The folder."""

    states: dict[str, list[str]] = field(default_factory=dict)
    """States that each engine went through in the last run."""

    @property
    def runs(self) -> Path:
        """Folder of the runs."""
        return self.folder / "out" / "runs"

    @property
    def config(self) -> Path:
        """The TOML file."""
        return self.folder / "tiny.toml"

    def change(self, old: str, new: str) -> None:
        """Replace a text of the TOML file, which must be there."""
        text = self.config.read_text(encoding="utf-8")
        assert old in text
        self.config.write_text(text.replace(old, new), encoding="utf-8")

    def run(self, *, force: bool = False) -> StudyResult:
        """Run the study; `states` then tells what was done."""
        self.states = {}
        config = read_config(self.config)

        def tell(engine: str, state: str) -> None:
            self.states.setdefault(engine, []).append(state)

        return run_study(config, plan(config), self.folder / "out", force=force, progress=tell)

    def stamps(self) -> dict[str, int]:
        """When each run was written: what was not built again keeps its stamp."""
        return {run.name: (run / "run.json").stat().st_mtime_ns for run in self.runs.iterdir()}


@pytest.fixture(name="study")
def _study(tiny_study: tuple[Path, StudyResult], tmp_path: Path) -> Study:
    """The study of the tiny network, done already."""
    shutil.copytree(tiny_study[0], tmp_path, dirs_exist_ok=True)
    return Study(tmp_path)


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every engine fail that a compiler is started for."""
    program = "raise SystemExit('a compiler was started')"
    monkeypatch.setattr("fusescope.profiler.build.WORKER", (sys.executable, "-c", program))
