"""The documentation is true: its commands run, its output is what they print, its links lead somewhere.

How a fenced block is held to it, by the word behind the fence:

* ``bash``: each command runs, in order, in a folder that holds only ``samples``; those of other programs (pip, pytest)
  do not. ``bash skip: REASON``: nothing runs.
* ``python``: runs in that folder.
* ``text``: what the commands before it print has each of its lines, blanks apart; ``...`` stands for any lines. It is
  compared where the release of TensorRT for RTX is the one that the text names, if it names one.
* ``toml``: is a study of a sample. ``toml recipe``: is a recipe.
* ``bash recorded``, ``text recorded``: the same for recordings that the repository does not hold, where they are.
* ``yaml``: is for other programs, and not held to anything.
"""

import importlib.metadata
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fusescope.profiler.kinds import KINDS
from fusescope.quant.recipe import read_recipe
from fusescope.study.config import read_config

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("samples/*.md")])
NOT_RUN = {"pip", "pytest", "pre-commit", "ruff", "mypy"}
"""Programs that documented commands start and that are not run here: the gate runs them."""

BLOCK = re.compile(r"^```(?P<kind>[^\n]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")
RELEASE = re.compile(r"TensorRT-RTX ([\d.]+\d)")


def page_id(page: Path) -> str:
    """Name a page by its place in the repository."""
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Yield the fenced blocks of a page that are not skipped: the word behind the fence, and the text."""
    for found in BLOCK.finditer(page.read_text(encoding="utf-8")):
        kind, _, note = found["kind"].partition(" ")
        assert kind in {"bash", "python", "text", "toml", "yaml"}, f"{page_id(page)}: a block of {kind or 'nothing'}"
        if note and found["kind"] not in {"toml recipe", "bash recorded", "text recorded"}:
            assert re.fullmatch(r"skip: .{5,}", note), f"{page_id(page)}: say `skip: REASON`, not {note!r}"
        else:
            yield found["kind"], found["text"]


def run_commands(text: str, folder: Path) -> str:
    """Run the fusescope commands of a block and return what they print."""
    printed = ""
    for line in text.replace("\\\n", " ").splitlines():
        for command in filter(None, (part.partition("#")[0].strip() for part in line.split("&&"))):
            program, *arguments = shlex.split(command)
            if program in NOT_RUN:
                continue
            assert program == "fusescope", f"{program} is neither run nor known not to be"
            printed += run([sys.executable, "-m", "fusescope", *arguments], folder)
    return printed


def run(command: list[str], folder: Path) -> str:
    """Run a command and return its stdout; it must not fail."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, encoding="utf-8")
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stderr}"
    return done.stdout


def compare(shown: str, printed: str) -> None:
    """Assert that each line of a shown output was printed."""
    release = RELEASE.search(shown)
    if release and release[1] != importlib.metadata.version("tensorrt-rtx-cu13"):
        return
    lines = {" ".join(line.split()) for line in printed.splitlines()}
    missing = [line for line in shown.splitlines() if line != "..." and " ".join(line.split()) not in lines]
    assert not missing, "\n".join(["not printed:", *missing])


@pytest.mark.compiles
@pytest.mark.parametrize("page", [page for page in PAGES if any(blocks(page))], ids=page_id)
def test_the_blocks_are_true(page: Path, tmp_path: Path) -> None:
    """What a page tells a reader to do works, from its first block to its last, and gives what it shows."""
    shutil.copytree(ROOT / "samples", tmp_path / "samples")
    printed = ""
    for kind, text in blocks(page):
        if kind == "bash":
            printed += run_commands(text, tmp_path)
        elif kind == "python":
            printed += run([sys.executable, "-c", text], tmp_path)
        elif kind == "text":
            compare(text, printed)
        elif kind == "toml":
            (tmp_path / "samples" / "shown.toml").write_text(text, encoding="utf-8")
            read_config(tmp_path / "samples" / "shown.toml")
        elif kind == "toml recipe":
            (tmp_path / "shown.toml").write_text(text, encoding="utf-8")
            read_recipe(str(tmp_path / "shown.toml"))


@pytest.mark.artifacts
@pytest.mark.parametrize("page", [page for page in PAGES if "```bash recorded" in page.read_text("utf-8")], ids=page_id)
def test_what_is_told_of_recordings(page: Path, tmp_path: Path) -> None:
    """Commands on recordings run in a folder that holds them, and print what is shown."""
    for recordings in Path(os.environ["FUSESCOPE_ARTIFACTS"]).iterdir():
        (tmp_path / recordings.name).symlink_to(recordings)
    printed = ""
    for kind, text in blocks(page):
        if kind == "bash recorded":
            printed += run_commands(text, tmp_path)
        elif kind == "text recorded":
            compare(text, printed)


def test_the_table_of_groups() -> None:
    """It lists every kind of layer that is known, and no other."""
    text = (ROOT / "docs" / "recordings.md").read_text(encoding="utf-8")
    listed = {
        kind.strip(" ").lower(): group
        for group, kinds in re.findall(
            r"^\| `(\w+)` \| ([A-Z]\w+[^|]*) \|$", text.partition("## Groups")[2], re.MULTILINE
        )
        for kind in re.sub(r" and all .*|:.*", "", kinds).split(",")
    }
    assert listed == dict(KINDS)


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_somewhere(page: Path) -> None:
    """Each relative link and picture is a file, and its anchor a heading of it."""
    for target in (found["target"] for found in LINK.finditer(page.read_text(encoding="utf-8"))):
        if "://" in target:
            continue
        place, _, anchor = target.partition("#")
        path = page.parent / place if place else page
        assert path.exists(), f"{page_id(page)}: {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in slugs, f"{page_id(page)}: {target}"


def test_every_page_is_found() -> None:
    """Each page in docs is linked from the README."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert all(f"(docs/{page.name})" in readme for page in ROOT.glob("docs/*.md"))
