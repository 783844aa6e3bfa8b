"""Loads that stand before a reduction although only later ones need them."""

from __future__ import annotations

from collections.abc import Sequence

from polyfuse.ir.kernel import Section
from polyfuse.ir.statements import Load, Reduce
from polyfuse.kit import KernelFacts
from polyfuse.symbolic import free_axes
from polyfuse_triton.tiling.plan import Plan

_THREAD = 32
"""Threads of a warp."""
_MOST_BYTES = 256
"""Of early loads for each thread: a quarter of its registers."""


def fetched_early(sections: Sequence[Section], facts: KernelFacts, plan: Plan) -> list[Load]:
    """The loads along rows in sections that reduce, whose memory no store of the kernel changes, as many as
    registers hold.
    """
    assert plan.reduced is not None
    room = _MOST_BYTES * _THREAD * plan.num_warps
    found: list[Load] = []
    for section in sections:
        if not any(isinstance(stmt, Reduce) for stmt in section.body):
            continue
        for stmt in section.body:
            if not isinstance(stmt, Load) or stmt.args or stmt.buffer in facts.may_change:
                continue
            along = free_axes(stmt.index)
            if stmt.buffer in facts.row_buffers or plan.reduced.name not in along:
                continue
            room -= stmt.dtype.itemsize * (plan.elements if len(along) > 1 else plan.reduced.block)
            if room < 0:
                return found
            found.append(stmt)
    return found
