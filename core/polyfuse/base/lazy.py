"""Names of a package that are imported when somebody asks for them (PEP 562)."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

__all__ = ["attribute"]


def attribute(package: str, places: Mapping[str, str], name: str) -> object:
    """What a package's `__getattr__` returns.

    Args:
        package: its name.
        places: `"module:attribute"` for each of its names, or `"module"` where it is one.
        name: the one that is asked for.

    Raises:
        AttributeError: the package has no such name.
    """
    if name not in places:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    module, _, found = places[name].partition(":")
    imported = import_module(module)
    return getattr(imported, found) if found else imported
