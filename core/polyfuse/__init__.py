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
    from polyfuse.reporting.inspection.choices import choices as choices
    from polyfuse.reporting.inspection.generated import get_code as get_code
    from polyfuse.reporting.inspection.generated import run_and_get_code as run_and_get_code
    from polyfuse.reporting.inspection.scopes import debug_folder as debug_folder
    from polyfuse.reporting.inspection.scopes import fresh_cache as fresh_cache
    from polyfuse.reporting.inspection.scopes import observing as observing

    __version__: str

__all__ = [
    "__version__",
    "cache",
    "choices",
    "compile",
    "debug_folder",
    "explain",
    "fresh_cache",
    "get_code",
    "metrics",
    "observing",
    "polyfuse",
    "report",
    "reset",
    "run_and_get_code",
]

_LAZY = {
    "choices": "polyfuse.reporting.inspection.choices:choices",
    "compile": "polyfuse.interface:compile",
    "debug_folder": "polyfuse.reporting.inspection.scopes:debug_folder",
    "explain": "polyfuse.reporting.function:explain",
    "fresh_cache": "polyfuse.reporting.inspection.scopes:fresh_cache",
    "get_code": "polyfuse.reporting.inspection.generated:get_code",
    "metrics": "polyfuse.interface:metrics",
    "observing": "polyfuse.reporting.inspection.scopes:observing",
    "polyfuse": "polyfuse.backend:polyfuse",
    "report": "polyfuse.reporting.function:report",
    "reset": "polyfuse.interface:reset",
    "run_and_get_code": "polyfuse.reporting.inspection.generated:run_and_get_code",
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        from polyfuse.base.code import version

        return version()
    if name == "cache":
        from importlib import import_module

        return import_module("polyfuse.cache")
    return attribute(__name__, _LAZY, name)


def __dir__() -> list[str]:
    return sorted(__all__)
