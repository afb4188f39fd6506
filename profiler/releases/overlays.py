"""Overlays: a release other than the installed one, in a folder of the cache that goes first on a worker's path."""

import base64
import csv
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import platformdirs

from fusescope.graph.errors import UserError
from fusescope.profiler.releases import PACKAGES, Release

CACHE_VARIABLE = "FUSESCOPE_CACHE"
_BLOCK = 1 << 20
_PYTHON = f"cp{sys.version_info.major}{sys.version_info.minor}"


def cache_folder() -> Path:
    """Where overlays are kept: ``FUSESCOPE_CACHE``, or the user's cache folder."""
    given = os.environ.get(CACHE_VARIABLE)
    return Path(given) if given else Path(platformdirs.user_cache_dir("fusescope"))


def overlay_folder(release: Release) -> Path:
    """Folder of a release's overlay, whether it exists or not. It holds for this Python only."""
    return cache_folder() / "releases" / f"{release.runtime}-{release.version}-{_PYTHON}"


def cached_releases() -> tuple[str, ...]:
    """Names of the releases whose overlays for this Python are in the cache."""
    folders = sorted(path for path in (cache_folder() / "releases").glob(f"*-*-{_PYTHON}") if path.is_dir())
    parts = (folder.name.rsplit("-", 2) for folder in folders)
    return tuple(f"{runtime}=={version}" for runtime, version, _ in parts)


def remove_overlay(release: Release) -> Path:
    """Remove a release's overlay from the cache.

    Raises:
        UserError: It is not there.
    """
    folder = overlay_folder(release)
    if not folder.is_dir():
        raise UserError("is not in the cache", where=release.name, remedy="see `fusescope releases list`")
    shutil.rmtree(folder)
    return folder


def ensure_overlay(release: Release, say: Callable[[str], None]) -> Path:
    """Return a release's overlay, checked against the hashes of its wheels, after installing it if it is not there.

    Args:
        release: The release.
        say: Told before a download begins.

    Raises:
        UserError: The release does not exist, has no wheel for this Python or platform, cannot be downloaded, or
            the overlay was changed since it was installed.
    """
    folder = overlay_folder(release)
    if not folder.is_dir():
        say(f"installing {release.name} into {folder}")
        _install(release, folder)
    damaged = damaged_files(folder)
    if damaged:
        raise UserError(
            f"its overlay was changed: {len(damaged)} files do not match their wheel's RECORD, such as {damaged[0]}",
            where=release.name,
            remedy=f"remove it with `fusescope releases remove {release.name}`",
        )
    return folder


def damaged_files(folder: Path) -> list[str]:
    """Files below `folder` whose content is not what the RECORD of their wheel says, or that are missing."""
    records = list(folder.glob("*.dist-info/RECORD"))
    if not records:
        return ["RECORD"]
    found = []
    for record in records:
        with record.open(encoding="utf-8", newline="") as stream:
            rows = [row for row in csv.reader(stream) if len(row) > 1 and row[1]]
        for name, digest, *_ in rows:
            path = folder / name
            # Scripts go elsewhere with --target, and the record still lists them where they would have gone.
            if name.startswith(("..", "bin/")):
                continue
            if not path.is_file() or _digest(path, digest.partition("=")[0]) != digest:
                found.append(name)
    return found


def _digest(path: Path, algorithm: str) -> str:
    digest = hashlib.new(algorithm)
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return f"{algorithm}={base64.urlsafe_b64encode(digest.digest()).rstrip(b'=').decode()}"


def _install(release: Release, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    # The folder gets its name only when it is complete, so that an interrupted installation leaves nothing behind.
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".installing-") as scratch:
        wanted = f"{PACKAGES[release.runtime]}=={release.version}"
        target = Path(scratch) / "overlay"
        pip = [sys.executable, "-m", "pip", "install", "--no-input", "--no-compile"]
        done = subprocess.run(
            [*pip, "--target", str(target), wanted], capture_output=True, text=True, errors="replace", check=False
        )
        if done.returncode:
            raise _refusal(release, done.stderr)
        target.replace(folder)


def _refusal(release: Release, words: str) -> UserError:
    """What pip's complaint means."""
    if "No module named pip" in words:
        return UserError("pip is not in this environment", where=release.name, remedy="install pip, it brings releases")
    if offered := re.search(r"from versions: ([^)]*)\)", words):
        if offered[1].strip() in {"", "none"}:
            return UserError(
                f"the index has no {PACKAGES[release.runtime]} for this Python and platform, or cannot be reached",
                where=release.name,
                remedy="check the network, or use Linux x86_64 with a Python that it supports",
            )
        return UserError("does not exist in the index", where=release.name, remedy=f"it has {offered[1].strip()}")
    lines = [line for line in words.splitlines() if line.strip() and not line.startswith("WARNING")]
    last = next((line for line in reversed(lines) if "rror" in line), lines[-1] if lines else "no message")
    if release.runtime == "tensorrt":
        return UserError(
            f"its package cannot bring TensorRT's libraries here: {last.strip()}",
            where=release.name,
            remedy="full TensorRT needs its vendor's index and a GPU machine; on a CPU check tensorrt-rtx releases",
        )
    return UserError(f"cannot be downloaded: {last.strip()}", where=release.name, remedy="check the network")
