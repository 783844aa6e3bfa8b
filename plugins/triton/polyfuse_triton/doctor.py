"""What `polyfuse doctor` says of Triton and the GPUs."""

from __future__ import annotations

from importlib import metadata

from polyfuse.base.errors import PolyfuseError
from polyfuse.base.settings import Settings
from polyfuse.plugin import Finding
from polyfuse_triton.target import targets_of

__all__ = ["findings"]


def findings(settings: Settings) -> list[Finding]:
    """Triton's version and the targets."""
    found: list[Finding] = []
    try:
        found.append(Finding("triton", True, metadata.version("triton")))
    except metadata.PackageNotFoundError:
        found.append(Finding("triton", True, "not installed", "run pip install 'polyfuse[triton]'"))
    try:
        names = ", ".join(f"{t.name} ({t.processors} multiprocessors)" for t in targets_of(settings))
        found.append(Finding("targets", True, names))
    except PolyfuseError as error:
        found.append(Finding("targets", True, error.cause, error.fix))
    return found
