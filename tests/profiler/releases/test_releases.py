"""Names of releases, and overlays: installing one, checking it, removing it."""

import base64
import hashlib
import zipfile
from pathlib import Path

import pytest

from fusescope.graph.errors import UserError
from fusescope.profiler.releases import Release, overlays, release_named

FAKE = Release("tensorrt-rtx", "9.9.9.1")


@pytest.fixture
def offline_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An index without a network that has one release of TensorRT for RTX, and an empty cache."""
    index = tmp_path / "index"
    index.mkdir()
    code = b"__version__ = '9.9.9.1'\n"
    info = "tensorrt_rtx_cu13-9.9.9.1.dist-info"
    files = {
        "tensorrt_rtx/__init__.py": code,
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: tensorrt-rtx-cu13\nVersion: 9.9.9.1\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [f"{name},sha256={_urlsafe(content)},{len(content)}" for name, content in files.items()]
    with zipfile.ZipFile(index / "tensorrt_rtx_cu13-9.9.9.1-py3-none-any.whl", "w") as wheel:
        for name, content in files.items():
            wheel.writestr(name, content)
        wheel.writestr(f"{info}/RECORD", "\n".join([*rows, f"{info}/RECORD,,"]) + "\n")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setenv(overlays.CACHE_VARIABLE, str(tmp_path / "cache"))
    return index


def _urlsafe(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def test_a_release_is_read_from_its_name() -> None:
    """Runtime and version are told apart, and the name is given back."""
    release = release_named("tensorrt==11.4.0.106")
    assert (release.runtime, release.version, release.installed) == ("tensorrt", "11.4.0.106", False)
    assert release.name == "tensorrt==11.4.0.106"


@pytest.mark.parametrize("text", ["", "1.7", "tensorrt-rtx", "tensorrt-rtx=1.7", "onnxruntime==1.20", "tensorrt==x"])
def test_what_is_no_release_is_refused_with_an_example(text: str) -> None:
    """The message shows how releases are named."""
    with pytest.raises(UserError, match=r"tensorrt-rtx==1\.7\.1\.116"):
        release_named(text)


@pytest.mark.compiles
def test_the_installed_release_needs_no_overlay() -> None:
    """`installed` and its full name are the same release."""
    installed = release_named("installed")
    assert installed.installed
    assert release_named(installed.name) == installed


def test_an_overlay_is_installed_once_and_then_found(offline_index: Path) -> None:
    """The second time needs no index at all."""
    said: list[str] = []
    folder = overlays.ensure_overlay(FAKE, said.append)
    assert (folder / "tensorrt_rtx" / "__init__.py").is_file()
    for wheel in offline_index.iterdir():
        wheel.unlink()
    assert overlays.ensure_overlay(FAKE, said.append) == folder
    assert len(said) == 1
    assert overlays.cached_releases() == (FAKE.name,)


def test_a_changed_overlay_is_refused(offline_index: Path) -> None:
    """A file that is not what its wheel's RECORD says is named, with the command that mends it."""
    folder = overlays.ensure_overlay(FAKE, lambda _: None)
    (folder / "tensorrt_rtx" / "__init__.py").write_text("__version__ = 'other'\n")
    with pytest.raises(UserError, match=r"tensorrt_rtx/__init__\.py; remove it with .*9\.9\.9\.1"):
        overlays.ensure_overlay(FAKE, lambda _: None)


def test_a_removed_overlay_is_gone(offline_index: Path) -> None:
    """Removing works once; then there is nothing to remove."""
    folder = overlays.ensure_overlay(FAKE, lambda _: None)
    assert overlays.remove_overlay(FAKE) == folder
    assert not folder.exists()
    with pytest.raises(UserError, match="not in the cache"):
        overlays.remove_overlay(FAKE)


def test_a_release_that_does_not_exist_names_those_that_do(offline_index: Path) -> None:
    """pip's list of versions is passed on, and nothing half-installed stays behind."""
    with pytest.raises(UserError, match=r"tensorrt-rtx==1\.0: does not exist in the index; it has 9\.9\.9\.1"):
        overlays.ensure_overlay(Release("tensorrt-rtx", "1.0"), lambda _: None)
    assert overlays.cached_releases() == ()
    assert not list((overlays.cache_folder() / "releases").iterdir())


def test_full_tensorrt_that_cannot_bring_its_libraries_is_explained(offline_index: Path) -> None:
    """The package of the index is a source package that fetches libraries; where that fails, the message says so."""
    source = offline_index / "tensorrt_cu13-11.4.0.106.tar.gz"
    source.write_bytes(b"not an archive")
    with pytest.raises(UserError, match=r"tensorrt==11\.4\.0\.106: its package cannot bring TensorRT's libraries here"):
        overlays.ensure_overlay(Release("tensorrt", "11.4.0.106"), lambda _: None)


def test_an_index_without_the_package_is_told_from_a_missing_version(offline_index: Path) -> None:
    """No version at all means no wheel for this Python and platform, or no network."""
    with pytest.raises(UserError, match="no tensorrt-cu13 for this Python and platform, or cannot be reached"):
        overlays.ensure_overlay(Release("tensorrt", "11.4.0.106"), lambda _: None)
