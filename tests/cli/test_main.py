"""The command line as a whole: help, exit codes, errors, streams."""

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import pytest

import fusescope
from fusescope.cli import COMMANDS
from fusescope.graph.errors import UserError

HEAVY = ["torch", "timm", "modelopt", "onnxruntime", "tensorrt", "tensorrt_rtx", "plotly", "pandas", "onnx", "networkx"]
HEAVY += ["numpy", "jinja2", "pydantic", "rich"]


def commands() -> list[tuple[str, ...]]:
    """Every command and every command of a command, as the words that call it."""
    found: list[tuple[str, ...]] = []
    for name, (module, _) in COMMANDS.items():
        command = import_module(module).command
        found += [(name,), *((name, nested) for nested in getattr(command, "commands", ()))]
    return found


def test_help_imports_nothing_heavy() -> None:
    """`--help` of fusescope and of every command works where no heavy package is, and asks for none."""
    program = f"""
        import json, sys

        class Missing:
            asked = []

            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in {HEAVY}:
                    self.asked.append(name)
                    raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

        sys.meta_path.insert(0, Missing())
        from fusescope.cli import main
        for words in {[[], *commands()]}:
            try:
                main([*words, "--help"])
            except SystemExit as ended:
                assert not ended.code, words
        assert not Missing.asked, Missing.asked
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False, encoding="utf-8"
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    assert done.stdout.count("Usage: fusescope") == 1 + len(commands())


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_help_is_a_manual(call: Callable[..., Any], words: tuple[str, ...]) -> None:
    """Every command says in full sentences what it does, and every option what it is for."""
    called = call(*words, "-h")
    assert called.status == 0
    assert called.out.startswith(f"Usage: fusescope {' '.join(words)} ")
    command = import_module(COMMANDS[words[0]][0]).command
    for word in words[1:]:
        command = command.commands[word]
    assert command.help.partition("\n")[0].rstrip().endswith((".", ":", ",", "it"))
    for option in command.params:
        assert isinstance(option, click.Argument) or option.help.endswith("."), option.name


def test_the_overview(call: Callable[..., Any]) -> None:
    """`fusescope --help` lists every command with its line; those lines are not stale words for nothing."""
    out = call("--help").out
    for name, (module, line) in COMMANDS.items():
        assert name in out
        assert line.endswith(".")
        assert import_module(module).command.help


@pytest.mark.parametrize(
    "words",
    [
        ("nonsense",),
        ("build", "x.onnx"),
        ("build", "x.onnx", "-o", "run", "--opt-level", "6"),
        ("build", "x.onnx", "-o", "run", "--shape", "x=1x-3"),
        ("build", "x.onnx", "-o", "run", "--shape", "1x3"),
        ("build", "x.onnx", "-o", "run", "--timeout", "0"),
        ("build", "x.onnx", "-o", "run", "--workspace", "0"),
        ("quantize", "x.onnx", "-o", "y.onnx", "--format", "fp4"),
        ("export", "net", "-o", "y.onnx", "--batch", "0"),
        ("sites",),
        ("study", "--nonsense", "x.toml"),
    ],
    ids=" ".join,
)
def test_wrong_usage(call: Callable[..., Any], tmp_path: Path, words: tuple[str, ...]) -> None:
    """Wrong usage has status 2, says so on stderr, and does nothing."""
    called = call(*words)
    assert called.status == 2
    assert not called.out
    assert "Usage: fusescope" in called.err
    assert not list(tmp_path.iterdir())


def test_version(call: Callable[..., Any]) -> None:
    """`--version` is the version of the package."""
    assert call("--version").out == f"fusescope, version {fusescope.__version__}\n"


@pytest.mark.parametrize("words", [("--debug", "sites", "nowhere"), ("sites", "nowhere", "--debug")])
def test_debug(words: tuple[str, ...]) -> None:
    """With --debug, anywhere, an error comes with its traceback, in the same status; without, it is one line."""
    done = [
        subprocess.run([sys.executable, "-m", "fusescope", *arguments], capture_output=True, text=True, check=False)
        for arguments in (words, [word for word in words if word != "--debug"])
    ]
    assert [each.returncode for each in done] == [1, 1]
    assert "Traceback" in done[0].stderr
    assert "UserError: nowhere: cannot be read" in done[0].stderr
    assert done[1].stderr == "error: nowhere: cannot be read (No such file or directory); check the path\n"


def test_a_defect_is_no_error_message(call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no mistake of the user is not made to look like one: it is raised."""
    monkeypatch.setattr("fusescope.cli.doctor._version", lambda _name: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        call("doctor")


def test_an_error_cannot_drive_the_terminal(call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Control characters of names, which other people choose, appear as text in an error, in one line."""

    def broken(_name: str) -> None:
        raise UserError("tensor 'a\x1b[2J\x9b\u202e\r\nb\udc80' is odd", where="m\x07.onnx", remedy="mend it")

    monkeypatch.setattr("fusescope.cli.doctor._version", broken)
    called = call("doctor")
    assert called.err == "error: m\\x07.onnx: tensor 'a\\x1b[2J\\x9b\\u202e b\\udc80' is odd; mend it\n"


class TestDoctor:
    """What this machine can do."""

    def test_names_what_is_missing(self, call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
        """A package that is not here is listed with the command that brings it."""
        monkeypatch.setattr("fusescope.cli.doctor._version", lambda name: None if name == "timm" else "1.2")
        called = call("doctor")
        lines = {line.split()[0]: line for line in called.out.splitlines()}
        assert lines["timm"].endswith('pip install "fusescope[quantize]"')
        assert "pip" not in lines["torch"]
        assert called.status == 0
        assert not called.err

    def test_without_a_runtime(self, call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
        """Without a runtime the machine cannot compile, and says so."""
        monkeypatch.setattr("fusescope.cli.doctor._version", lambda _name: None)
        assert "\ncompile: no" in call("doctor").out
        document = json.loads(call("doctor", "--json").out)
        assert not document["can"]["compile"]
        assert not document["can"]["export"]

    @pytest.mark.compiles
    def test_the_json(self, call: Callable[..., Any]) -> None:
        """The document holds what is installed, as the packages themselves say."""
        import tensorrt_rtx

        document = json.loads(call("doctor", "--json").out)
        assert document["schema"] == "fusescope.doctor"
        assert document["version"] == 1
        assert document["can"]["compile"]
        assert document["packages"]["tensorrt-rtx-cu13"] == tensorrt_rtx.__version__
