"""Writing files so that nothing is ever half-written."""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from fusescope.graph.errors import UserError


def refuse_existing(path: Path, *, force: bool) -> None:
    """Refuse an output that is already there, or that has no name of its own.

    Raises:
        UserError: `path` exists and `force` is false, its parent folder does not exist, or it is a folder that others
            are in, such as ``.``.
    """
    if path.name in {"", ".."}:
        raise UserError("is no name for an output", where=path, remedy="name the file or folder to write")
    if path.exists() and not force:
        raise UserError("already exists", where=path, remedy="choose another name or pass --force")
    if not path.absolute().parent.is_dir():
        raise UserError("the folder to write to does not exist", where=path.parent, remedy="create it first")


def _never(_folder: Path) -> bool:
    return False


@contextmanager
def replacing(path: Path, *, may_replace: Callable[[Path], bool] = _never) -> Iterator[Path]:
    """Yield a temporary path beside `path`; move it there only if the block ends without an error.

    The block may write a file or make a folder at the temporary path. What was at `path` is gone only when the new
    content is in its place.

    Args:
        path: Where the content is to be.
        may_replace: Whether an existing folder may be replaced; by default none may.

    Raises:
        UserError: `path` names no output of its own, is a folder that may not be replaced, or cannot be written to.
    """
    if path.name in {"", ".."}:
        raise UserError("is no name for an output", where=path, remedy="name the file or folder to write")
    if path.is_dir() and not path.is_symlink() and not may_replace(path):
        raise UserError("is a folder of something else", where=path, remedy="choose another name")
    try:
        holder = Path(tempfile.mkdtemp(prefix=f".{path.name[:100]}.", dir=path.absolute().parent))
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        yield holder / "new"
        if path.exists() or path.is_symlink():
            path.replace(holder / "old")
        (holder / "new").replace(path)
    except OSError as error:
        if (holder / "old").exists() and not path.exists():
            (holder / "old").replace(path)
        if error.filename and not Path(error.filename).absolute().is_relative_to(path.absolute().parent):
            raise  # it is about another place: not ours to explain
        raise _unwritable(path, error) from error
    finally:
        shutil.rmtree(holder, ignore_errors=True)


def _unwritable(path: Path, error: OSError) -> UserError:
    what = f"cannot be written ({error.strerror or error})"
    return UserError(what, where=path, remedy="check free space and permissions")


def write_folder(folder: Path, files: Mapping[str, str]) -> None:
    """Write a folder of UTF-8 files in one step, in place of one that holds files of these names only.

    Args:
        folder: Where to.
        files: Content by file name.

    Raises:
        UserError: The folder holds something else, the disk is full, or the place cannot be written to.
    """
    if folder.is_dir() and any(each.is_dir() or each.name not in files for each in folder.iterdir()):
        raise UserError("holds other files", where=folder, remedy="choose another folder")
    with replacing(folder, may_replace=lambda _: True) as temporary:
        temporary.mkdir()
        for name, content in files.items():
            (temporary / name).write_bytes(content.encode("utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    """Write `content` to `path` in one step: whole or not at all.

    Raises:
        UserError: The disk is full, or the place cannot be written to.
    """
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, content: str) -> None:
    """Write `content` to `path` as UTF-8 in one step: whole or not at all.

    Raises:
        UserError: The disk is full, or the place cannot be written to.
    """
    write_bytes(path, content.encode("utf-8"))
