"""Output is written whole or not at all, and never in place of something else."""

from pathlib import Path

import pytest

from fusescope.graph.errors import UserError
from fusescope.graph.files import refuse_existing, replacing, write_folder, write_text

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


class TestReplacing:
    """Putting new content in the place of old: nothing but the old content of that very place may go."""

    @pytest.fixture
    def inside(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A working folder with neighbours that must stay."""
        folder = tmp_path / "outer" / "inner"
        folder.mkdir(parents=True)
        for place in (tmp_path, folder.parent, folder):
            (place / "precious.txt").write_text("here before")
        monkeypatch.chdir(folder)
        return folder

    @pytest.mark.parametrize("path", [".", "..", "./.", "../..", "/"])
    def test_a_path_without_a_name_of_its_own_is_refused(self, inside: Path, path: str) -> None:
        """Neither the working folder nor any folder above it is touched."""
        before = sorted(inside.parent.parent.rglob("*"))
        with pytest.raises(UserError, match=r"is no name for an output|is a folder of something else"):
            write_text(Path(path), "new")
        with pytest.raises(UserError, match="is no name for an output"):
            refuse_existing(Path(path), force=True)
        assert sorted(inside.parent.parent.rglob("*")) == before

    def test_a_folder_is_not_replaced_by_a_file(self, inside: Path) -> None:
        """Its content stays."""
        with pytest.raises(UserError, match="is a folder of something else"):
            write_text(inside.parent, "new")
        assert (inside.parent / "precious.txt").read_text() == "here before"

    def test_a_folder_is_replaced_where_it_may_be(self, inside: Path) -> None:
        """The old content is gone, the neighbours stay, and nothing hidden is left."""
        (inside / "run").mkdir()
        (inside / "run" / "old").touch()
        with replacing(inside / "run", may_replace=lambda folder: (folder / "old").exists()) as temporary:
            temporary.mkdir()
            (temporary / "new").touch()
        assert sorted(path.name for path in inside.rglob("*")) == ["new", "precious.txt", "run"]

    def test_a_failure_keeps_the_old_content(self, inside: Path) -> None:
        """An error in the middle leaves the file as it was."""
        path = inside / "precious.txt"

        def fail_half_way() -> None:
            with replacing(path) as temporary:
                temporary.write_text("half")
                raise ValueError("in the middle")

        with pytest.raises(ValueError, match="in the middle"):
            fail_half_way()
        assert path.read_text() == "here before"
        assert [each.name for each in inside.iterdir()] == ["precious.txt"]
