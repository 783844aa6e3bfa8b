"""Ahead-of-time packages: a compiled model as one file, loaded without the compiler.

`polyfuse.compiler.packages` makes packages, since that compiles; what it writes, and all that loading needs,
is here. Names are resolved on first use, so that whoever loads a package imports nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from polyfuse.base.lazy import attribute

if TYPE_CHECKING:
    from polyfuse.aot.loaded import Package as Package
    from polyfuse.aot.loading import load as load
    from polyfuse.compiler.eager_operators import eager_operators as eager_operators
    from polyfuse.compiler.packages.package import package as package

__all__ = ["Package", "eager_operators", "load", "package"]

_LAZY = {
    "Package": "polyfuse.aot.loaded:Package",
    "eager_operators": "polyfuse.compiler.eager_operators:eager_operators",
    "load": "polyfuse.aot.loading:load",
    "package": "polyfuse.compiler.packages.package:package",
}


def __getattr__(name: str) -> object:
    return attribute(__name__, _LAZY, name)


def __dir__() -> list[str]:
    return sorted(__all__)
