"""Index expressions as CUDA text."""

from __future__ import annotations

from collections.abc import Mapping

from polyfuse.kit import c_index
from polyfuse.symbolic import IndexLike


def index_text(index: IndexLike, names: Mapping[str, str]) -> str:
    """`index` in 64 bits; `names` says what axes and symbols are called."""
    return c_index(index, names, "{}LL".format)
