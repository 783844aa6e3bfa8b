"""Which results bypass the caches: those too large for them, where whole cache lines are written.

A store fetches its line first. Where nothing of a result will still be in the caches when it is read, that
doubles the traffic; and where tiles are transposed, lines that are written one after the other lie far
apart in memory, so that fetching them costs even more.

Memory that the C library has just mapped is different: the system fills each of its pages with zeros when it
is first written to, which leaves the page's lines in the caches. Past these, it would be written twice. So a
kernel asks whether a page in the middle of each such result is there already.
"""

from __future__ import annotations

from collections.abc import Mapping

from polyfuse.kit import Access, is_multiple
from polyfuse.symbolic import coefficient, free_axes
from polyfuse_cpp.facts import Facts
from polyfuse_cpp.loops.scope import InterleavedStores
from polyfuse_cpp.memory.address import index_text
from polyfuse_cpp.tiling import Plan

_LINE = 64
"""Bytes of a cache line; nothing smaller may bypass the caches."""

_LARGE = 16 << 20
"""Bytes of a result that nothing keeps."""

_LARGE_IN_TILES = 4 << 20
"""The same where tiles are transposed."""


def streaming_stores(facts: Facts, plan: Plan, groups: Mapping[int, InterleavedStores]) -> frozenset[int]:
    """The stores (by identity) that bypass the caches; what was read from there is in them already."""
    # a register is as wide as the lanes of four bytes
    if not plan.lane or plan.lanes * 4 != _LINE or plan.repeated:
        return frozenset()
    read = facts.aliases_of({a.buffer for a in facts.all_accesses if not a.is_store})
    unread = (a for a in facts.all_accesses if a.buffer not in read)
    return frozenset(id(a.stmt) for a in unread if _is_streaming(a, facts, plan, groups))


def middles(facts: Facts, streaming: frozenset[int]) -> list[str]:
    """Texts of an address in the middle of what each of some stores writes."""
    found = (a for a in facts.all_accesses if id(a.stmt) in streaming)
    halves = {name: f"(({index_text(size)}) / 2)" for name, size in facts.sizes.items()}
    return [f"{a.buffer} + {index_text(a.index, halves)}" for a in found]


def _is_streaming(access: Access, facts: Facts, plan: Plan, groups: Mapping[int, InterleavedStores]) -> bool:
    """Whether one store writes a large result, line by line."""
    size = facts.memory[access.buffer].itemsize
    masked = access.stmt.mask is not None
    if access.mode != "set" or access.indirect or masked or size < 4 or access.buffer in facts.row_buffers:
        return False
    along = plan.tile if access in plan.tiled else plan.lane
    group = groups.get(id(access.stmt))
    count = len(group.stores) if group else 1
    if coefficient(access.index, along) != count or (group and group.stores[0] is not access.stmt):
        return False
    elements = count
    for name in free_axes(access.index):
        step = coefficient(access.index, name)
        if name != along and (step is None or not is_multiple(step, _LINE // size)):
            return False
        elements *= facts.hints[name]
    first = access.index if isinstance(access.index, int) else access.index.const
    return first % (_LINE // size) == 0 and elements * size >= (_LARGE_IN_TILES if plan.tile else _LARGE)
