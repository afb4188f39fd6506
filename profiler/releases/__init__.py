"""TensorRT releases: what each does with the fusion pattern suite, and what changed from one to the next."""

import importlib.metadata
import re
from collections.abc import Mapping
from dataclasses import dataclass

from fusescope.graph.errors import UserError

PACKAGES: Mapping[str, str] = {"tensorrt-rtx": "tensorrt-rtx-cu13", "tensorrt": "tensorrt-cu13"}
"""Runtime to the package of the index that brings it."""

INSTALLED = "installed"
_RELEASE = re.compile(r"(?P<runtime>[a-z-]+)==(?P<version>\d+(?:\.\d+)*(?:\.post\d+)?)")


@dataclass(frozen=True, slots=True)
class Release:
    """One release of a runtime."""

    runtime: str
    """``tensorrt-rtx`` or ``tensorrt``."""

    version: str
    """Its full version, such as ``1.7.1.116``."""

    installed: bool = False
    """Whether it is the one of this environment, so that no overlay is needed."""

    @property
    def name(self) -> str:
        """How it is named on the command line."""
        return f"{self.runtime}=={self.version}"

    @property
    def order(self) -> tuple[int, ...]:
        """The version as numbers, to sort releases by."""
        return tuple(int(part) for part in re.findall(r"\d+", self.version))


def release_named(text: str) -> Release:
    """Read ``tensorrt-rtx==1.7.1.116``, ``tensorrt==11.4.0.106`` or ``installed``.

    Raises:
        UserError: It is none of these, or nothing is installed.
    """
    if text == INSTALLED:
        return _installed()
    match = _RELEASE.fullmatch(text)
    if match is None or match["runtime"] not in PACKAGES:
        raise UserError(
            f"{text!r} is no release", remedy="name one as tensorrt-rtx==1.7.1.116, tensorrt==11.4.0.106 or installed"
        )
    here = _installed_version(match["runtime"]) == match["version"]
    return Release(match["runtime"], match["version"], installed=here)


def _installed() -> Release:
    runtime = "tensorrt-rtx"
    version = _installed_version(runtime)
    if version is None:
        raise UserError(
            "no TensorRT is installed here", where=INSTALLED, remedy="name a release, such as tensorrt-rtx==1.7.1.116"
        )
    return Release(runtime, version, installed=True)


def _installed_version(runtime: str) -> str | None:
    try:
        return importlib.metadata.version(PACKAGES[runtime])
    except importlib.metadata.PackageNotFoundError:
        return None
