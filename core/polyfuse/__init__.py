"""Polyfuse: a tensor compiler for PyTorch whose code generators are plugins.

Importing this package costs almost nothing: no torch, no plugin, no toolchain. Names are resolved on first
use (PEP 562), so `polyfuse.polyfuse`, the function given to `torch.compile`, is imported only when someone
asks for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from polyfuse.base.lazy import attribute

if TYPE_CHECKING:
    from polyfuse import cache as cache
    from polyfuse.backend import polyfuse as polyfuse
    from polyfuse.interface import compile as compile
    from polyfuse.interface import metrics as metrics
    from polyfuse.interface import reset as reset
    from polyfuse.reporting.function import explain as explain
    from polyfuse.reporting.function import report as report

    __version__: str

__all__ = ["__version__", "cache", "compile", "explain", "metrics", "polyfuse", "report", "reset"]

_LAZY = {
    "compile": "polyfuse.interface:compile",
    "explain": "polyfuse.reporting.function:explain",
    "metrics": "polyfuse.interface:metrics",
    "polyfuse": "polyfuse.backend:polyfuse",
    "report": "polyfuse.reporting.function:report",
    "reset": "polyfuse.interface:reset",
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        from polyfuse.base.version import version

        return version()
    if name == "cache":
        from importlib import import_module

        return import_module("polyfuse.cache")
    return attribute(__name__, _LAZY, name)


def __dir__() -> list[str]:
    return sorted(__all__)
