"""The version of the installed distribution."""

from __future__ import annotations

from functools import cache
from importlib import metadata


@cache
def version() -> str:
    """Return the installed version, or `"0+source"` when the package is imported from a plain source tree."""
    try:
        return metadata.version("polyfuse")
    except metadata.PackageNotFoundError:
        return "0+source"
