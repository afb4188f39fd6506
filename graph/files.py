"""Writing files so that nothing is ever half-written."""

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from fusescope.graph.errors import UserError


def refuse_existing(path: Path, *, force: bool) -> None:
    """Refuse an output that is already there.

    Raises:
        UserError: `path` exists and `force` is false, or its parent folder does not exist.
    """
    if path.exists() and not force:
        raise UserError("already exists", where=path, remedy="choose another name or pass --force")
    if not path.absolute().parent.is_dir():
        raise UserError("the folder to write to does not exist", where=path.parent, remedy="create it first")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; move it there only if the block ends without an error.

    The block may write a file or make a folder at the temporary path.

    Raises:
        UserError: The disk is full, or the place cannot be written to.
    """
    temporary: Path | None = None
    try:
        holder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.absolute().parent))
        temporary = holder / path.name
        yield temporary
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        temporary.replace(path)
    except OSError as error:
        if error.filename and not Path(error.filename).absolute().is_relative_to(path.absolute().parent):
            raise  # it is about another place: not ours to explain
        raise UserError(
            f"cannot be written ({error.strerror or error})",
            where=path,
            remedy="check free space and permissions",
        ) from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary.parent, ignore_errors=True)


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
    with replacing(folder) as temporary:
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
