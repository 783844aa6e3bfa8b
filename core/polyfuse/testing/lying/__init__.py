"""A lying backend: one that computes what another computes, but for one planted defect.

With it, tests of a code generator are tested themselves: `DEFECTS` are the ways in which generators are
wrong, and `Lying(backend, defect)` is wrong in one of them.

* `planting`: what a defect is, and how a kernel is changed.
* `indices`, `values`, `reductions`, `stores`, `launches`: the defects.
* `backend`: the backend, for tests that have one at hand.
* `installed`: the same as a plugin that `torch.compile` finds, or in place of an installed one.
* `programs`: for each defect a program that meets it.
* `trial`: whether the conformance kit finds a defect.
"""

from __future__ import annotations

from polyfuse.base.errors import InvalidOptionError
from polyfuse.base.text import join_words, nearest
from polyfuse.testing.lying import indices, launches, reductions, stores, values
from polyfuse.testing.lying.backend import Lying
from polyfuse.testing.lying.planting import Defect

__all__ = ["DEFECTS", "Defect", "Lying", "defect"]

DEFECTS: tuple[Defect, ...] = (
    *indices.DEFECTS,
    *values.DEFECTS,
    *reductions.DEFECTS,
    *stores.DEFECTS,
    *launches.DEFECTS,
)
"""All kinds."""

_BY_NAME = {row.name: row for row in DEFECTS}


def defect(name: str) -> Defect:
    """The defect of a name; raises `InvalidOptionError` for an unknown one."""
    if name not in _BY_NAME:
        close = nearest(name, _BY_NAME) or tuple(_BY_NAME)
        raise InvalidOptionError(f"no defect is called {name!r}", f"did you mean {join_words(close, 'or')}?")
    return _BY_NAME[name]
