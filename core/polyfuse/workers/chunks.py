"""Dividing kernels into units that are built together.

Starting a compiler costs more than a small kernel, so small kernels share a unit; but each CPU should
have one. Text length stands for the time that a kernel takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from polyfuse.plugin import Source

# In characters of source: above it, units are no longer balanced well among CPUs.
MAX_UNIT: Final = 160_000


def divide(sources: Sequence[Source], workers: int, min_unit: int) -> tuple[tuple[Source, ...], ...]:
    """Divide sources into units of nearly equal size, at most one each for `workers`, or several each where
    they would grow too big. Below `min_unit` characters of source, a unit of its own costs more than it saves
    even when a CPU is idle; where that is 1, every source is a unit of its own.

    Deterministic: the same sources in any order give the same units.
    """
    if not sources:
        return ()
    if min_unit <= 1:
        return tuple((source,) for source in sorted(sources, key=lambda item: (-len(item.text), item.key)))
    total = sum(len(source.text) for source in sources)
    wanted = min(workers, max(1, total // min_unit))
    count = min(len(sources), wanted * -(-total // (wanted * MAX_UNIT)))
    units: list[list[Source]] = [[] for _ in range(count)]
    sizes = [0] * count
    for source in sorted(sources, key=lambda item: (-len(item.text), item.key)):
        lightest = sizes.index(min(sizes))
        units[lightest].append(source)
        sizes[lightest] += len(source.text) + 1
    return tuple(tuple(unit) for unit in units)
