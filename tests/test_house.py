"""The house rules that a tool can check: rooms, imports, sizes, docstrings, packaging."""

import ast
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import fusescope

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "fusescope"
ROOMS: dict[str, set[str]] = {
    "graph": set(),
    "quant": {"graph"},
    "profiler": {"graph"},
    "report": {"profiler", "graph", "quant"},
    "study": {"graph", "quant", "profiler", "report"},
    "cli": {"graph", "quant", "profiler", "report", "study"},
}
"""Each room with those that it may import (CONTRIBUTING, the rooms)."""

MODULE_LINES = 400
FUNCTION_LINES = 60
"""Lines of a function behind its docstring."""

MODULES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))


def tree(path: Path) -> ast.Module:
    """Parse a module."""
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(path: Path) -> Iterator[str]:
    """Yield the modules that a file imports, anywhere in it."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}:{node.lineno}: imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def public(body: list[ast.stmt], where: str) -> Iterator[tuple[str, ast.FunctionDef | ast.ClassDef]]:
    """Yield the public functions and classes of a module or class, and those in its classes."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield f"{where}.{node.name}", node
            if isinstance(node, ast.ClassDef):
                yield from public(node.body, f"{where}.{node.name}")


def where(path: Path) -> str:
    """Name a module by its place in the repository."""
    return path.relative_to(ROOT).as_posix()


def test_the_links_are_the_rooms() -> None:
    """src/fusescope holds one relative link for each room, so that what is imported is what is in the root."""
    links = {path.name: path.readlink().as_posix() for path in PACKAGE.iterdir() if path.is_symlink()}
    assert links == {room: f"../../{room}" for room in ROOMS}
    assert all((ROOT / room / "__init__.py").is_file() for room in ROOMS)


def test_the_table_is_the_documented_one() -> None:
    """CONTRIBUTING shows newcomers the rooms that this test knows."""
    table = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert all(f"| `{room}/` |" in table for room in ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_imports_go_one_way(room: str) -> None:
    """No module imports a room that its own may not know, not even inside a function."""
    for path in (ROOT / room).rglob("*.py"):
        for name in imported(path):
            package, _, rest = name.partition(".")
            other = rest.partition(".")[0]
            assert package not in ROOMS, f"{where(path)} imports {name} without fusescope"
            if package == "fusescope" and other in ROOMS:
                assert other in ROOMS[room] | {room}, f"{where(path)} imports {name}"


@pytest.mark.parametrize("path", MODULES, ids=where)
def test_size_and_docstrings(path: Path) -> None:
    """Modules and functions stay small enough to read, and everything public says what it is."""
    lines = path.read_text(encoding="utf-8").count("\n")
    assert lines <= MODULE_LINES
    module = tree(path)
    assert ast.get_docstring(module)
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef):
            first = node.body[1] if ast.get_docstring(node) and len(node.body) > 1 else node.body[0]
            assert (node.end_lineno or 0) - first.lineno < FUNCTION_LINES, f"{node.name} is too long"
    for name, node in public(module.body, where(path)):
        assert ast.get_docstring(node), f"{name} has no docstring"


@pytest.mark.parametrize("path", MODULES, ids=where)
def test_fields_are_documented(path: Path) -> None:
    """Under every field of a dataclass that is public stands what it means."""
    for name, node in public(tree(path).body, where(path)):
        if isinstance(node, ast.ClassDef) and any("dataclass" in ast.unparse(each) for each in node.decorator_list):
            followed = zip(node.body, [*node.body[1:], None], strict=True)
            for field, after in followed:
                if isinstance(field, ast.AnnAssign) and not ast.unparse(field.target).startswith("_"):
                    words = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                    assert words, f"{name}.{ast.unparse(field.target)} has no docstring"


def test_nothing_heavy_is_imported() -> None:
    """`import fusescope` and the command line import the standard library and click, nothing else."""
    program = "import sys, fusescope.cli; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    bare = subprocess.run(
        [sys.executable, "-c", program.replace("fusescope.cli", "click")], capture_output=True, text=True, check=True
    )
    new = set(done.stdout.split()) - set(bare.stdout.split())
    assert {name for name in new if name not in sys.stdlib_module_names} == {"fusescope"}


class TestPackaging:
    """What an installation holds, by the package configuration."""

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

    def test_version(self) -> None:
        """The package's version is the project's."""
        assert self.project["project"]["version"] == fusescope.__version__

    def test_licence(self) -> None:
        """The licence file is there, and is the one that is declared."""
        (name,) = self.project["project"]["license-files"]
        assert self.project["project"]["license"] == "Apache-2.0"
        assert "Apache License" in (ROOT / name).read_text(encoding="utf-8")

    def test_the_wheel(self, tmp_path: Path) -> None:
        """A wheel holds every file of every room, below fusescope, and nothing else; so it needs no links."""
        pytest.importorskip("setuptools", minversion="77")
        kept = ("pyproject.toml", "README.md", "LICENSE")
        for name in kept:
            shutil.copy(ROOT / name, tmp_path)
        for folder in ("src", *ROOMS):
            shutil.copytree(
                ROOT / folder, tmp_path / folder, symlinks=True, ignore=shutil.ignore_patterns("*.egg-info")
            )
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "."]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
        with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
            shipped = {name for name in wheel.namelist() if ".dist-info/" not in name}
        own = {f"fusescope/{path.name}" for path in PACKAGE.iterdir() if path.is_file()}
        files = {path.relative_to(tmp_path).as_posix() for room in ROOMS for path in (tmp_path / room).rglob("*.*")}
        rooms = {f"fusescope/{name}" for name in files if not name.endswith(".pyc")}
        assert shipped == own | rooms

    def test_the_command(self) -> None:
        """The command that is installed is the main function of the command line."""
        assert self.project["project"]["scripts"] == {"fusescope": "fusescope.cli:main"}


def test_samples_are_small() -> None:
    """The sample models are well under 1 MB each, and each study's model is there."""
    models = list((ROOT / "samples").glob("*.onnx"))
    assert models
    assert all(model.stat().st_size < 1_000_000 for model in models)
    for study in (ROOT / "samples").glob("*.toml"):
        assert (study.parent / tomllib.loads(study.read_text(encoding="utf-8"))["model"]).is_file()
