"""Output is written whole or not at all, and never in place of something else."""

from pathlib import Path

import pytest

from fusescope.graph.errors import UserError
from fusescope.graph.files import write_folder

FILES = {"a.csv": "ä,1\r\n", "b.csv": ""}


class TestWriteFolder:
    """`write_folder`."""

    def test_the_content(self, tmp_path: Path) -> None:
        """Every file is there, byte for byte in UTF-8, and nothing else is beside the folder."""
        write_folder(tmp_path / "out", FILES)
        found = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
        assert found == {"a.csv": b"\xc3\xa4,1\r\n", "b.csv": b""}
        assert [path.name for path in tmp_path.iterdir()] == ["out"]

    def test_an_older_one_is_replaced(self, tmp_path: Path) -> None:
        """A folder that holds files of these names only is replaced."""
        write_folder(tmp_path / "out", FILES)
        write_folder(tmp_path / "out", {"a.csv": "new", "b.csv": "new"})
        assert {path.read_text() for path in (tmp_path / "out").iterdir()} == {"new"}

    @pytest.mark.parametrize("other", ["mine.csv", "a.txt", "folder/a.csv"])
    def test_foreign_files_are_kept(self, tmp_path: Path, other: str) -> None:
        """A folder that holds anything else is refused and stays as it is."""
        path = tmp_path / "out" / other
        path.parent.mkdir(parents=True)
        path.write_text("mine")
        with pytest.raises(UserError, match="holds other files"):
            write_folder(tmp_path / "out", FILES)
        assert path.read_text() == "mine"
        assert [each.name for each in (tmp_path / "out").iterdir()] == [Path(other).parts[0]]

    def test_a_failure_leaves_nothing(self, tmp_path: Path) -> None:
        """If a file cannot be written there is no folder, not even a temporary one."""
        with pytest.raises(UnicodeEncodeError):
            write_folder(tmp_path / "out", {"a.csv": "fine", "b.csv": "\ud800"})
        assert list(tmp_path.iterdir()) == []
