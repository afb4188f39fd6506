"""A hand to call the command line with."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnx
import pytest

from fusescope.cli import main


@dataclass(frozen=True)
class Called:
    """What a call of ``fusescope`` did."""

    status: int
    """Its exit status."""

    out: str
    """What it wrote to stdout."""

    err: str
    """What it wrote to stderr."""


Call = Callable[..., Called]


@pytest.fixture(name="call")
def _call(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Return a function that runs ``fusescope ARGUMENTS`` in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: object) -> Called:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return Called(int(ended.value.code or 0), out, err)

    return call


@pytest.fixture(name="tiny")
def _tiny(tiny_model: onnx.ModelProto, tmp_path: Path) -> Path:
    """The tiny network as a file in the folder that commands run in."""
    path = tmp_path / "tiny.onnx"
    onnx.save(tiny_model, path)
    return path


@pytest.fixture(name="refused")
def _refused(call: Call, tmp_path: Path) -> Callable[..., str]:
    """Return a function that runs a command which must fail, and returns the one line that it says.

    It asserts exit status 1, an empty stdout, a single line without a traceback, and a folder that is as it was.
    """

    def refused(*arguments: object) -> str:
        before = _content(tmp_path)
        called = call(*arguments)
        assert called.status == 1
        assert not called.out
        assert called.err.startswith("error: ")
        assert called.err.endswith("\n")
        assert called.err.count("\n") == 1
        assert _content(tmp_path) == before
        return called.err

    return refused


def _content(folder: Path) -> dict[Path, bytes | None]:
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}
