"""Which results bypass the caches: those too large for them, where whole cache lines are written.

A store fetches its line first. Where nothing of a result will still be in the caches when it is read, that
doubles the traffic; and where tiles are turned over, lines that are written one after the other lie far
apart in memory, so that fetching them costs even more.
"""

from __future__ import annotations

from collections.abc import Mapping

from polyfuse.ir.kernel import Kernel
from polyfuse.kit import KernelFacts
from polyfuse.symbolic import coefficient, free_axes
from polyfuse_cpp.facts import Access, Facts
from polyfuse_cpp.loops.scope import Weave
from polyfuse_cpp.memory.address import static_multiple
from polyfuse_cpp.tiling import Plan

__all__ = ["streamed_stores"]

_LINE = 64
"""Bytes of a cache line; nothing smaller may bypass the caches."""

_LARGE = 16 << 20
"""Bytes of a result that nothing keeps."""

_LARGE_IN_TILES = 4 << 20
"""The same where tiles are turned over."""


def streamed_stores(kernel: Kernel, facts: Facts, plan: Plan, woven: Mapping[int, Weave]) -> frozenset[int]:
    """The stores (by identity) that bypass the caches; what was read from there is in them already."""
    # a register is as wide as the lanes of four bytes
    if not plan.lane or plan.lanes * 4 != _LINE:
        return frozenset()
    read = KernelFacts.of(kernel).aliases_of({a.buffer for a in facts.accesses if not a.is_store})
    return frozenset(
        id(a.stmt) for a in facts.accesses if a.buffer not in read and _streams(a, facts, plan, woven)
    )


def _streams(access: Access, facts: Facts, plan: Plan, woven: Mapping[int, Weave]) -> bool:
    """Whether one store writes a large result, line by line."""
    size = facts.memory[access.buffer].itemsize
    masked = access.stmt.mask is not None
    if access.mode != "set" or access.indirect or masked or size < 4 or access.buffer in facts.local_names:
        return False
    along = plan.tile if access in plan.tiled else plan.lane
    weave = woven.get(id(access.stmt))
    turns = len(weave.stores) if weave else 1
    if coefficient(access.index, along) != turns or (weave and weave.stores[0] is not access.stmt):
        return False
    elements = turns
    for name in free_axes(access.index):
        step = coefficient(access.index, name)
        if name != along and (step is None or not static_multiple(step, _LINE // size)):
            return False
        elements *= facts.hints[name]
    first = access.index if isinstance(access.index, int) else access.index.const
    return first % (_LINE // size) == 0 and elements * size >= (_LARGE_IN_TILES if plan.tile else _LARGE)
