"""Names of a package that are imported when somebody asks for them (PEP 562), and what imports are spared."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module

_YOUNG = 50_000
"""New objects after which the young ones are collected; Python's own 700. A hundred such collections may be
followed by a look at all that torch and its imports made, which takes some 0.2 s: after 70000 objects, of
which importing Dynamo, or tracing a small network, makes several times as many."""


@contextmanager
def rare_collections() -> Iterator[None]:
    """Inside, where many objects are made of which nearly all stay, garbage is looked for less often, unless
    somebody made that rarer still. Of memory this takes what 50000 objects of garbage hold."""
    before = gc.get_threshold()
    if not 0 < before[0] < _YOUNG:  # 0: never
        yield
        return
    rarer = (_YOUNG, *before[1:])
    gc.set_threshold(*rarer)
    try:
        yield
    finally:
        if gc.get_threshold() == rarer:
            gc.set_threshold(*before)


def attribute(package: str, import_paths: Mapping[str, str], name: str) -> object:
    """What a package's `__getattr__` returns.

    Args:
        package: its name.
        import_paths: `"module:attribute"` for each of its names, or `"module"` where it is one.
        name: the one that is asked for.

    Raises:
        AttributeError: the package has no such name.
    """
    if name not in import_paths:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    module, _, found = import_paths[name].partition(":")
    with rare_collections():  # it may import torch and Dynamo
        imported = import_module(module)
    return getattr(imported, found) if found else imported
