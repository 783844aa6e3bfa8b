"""How many neighbouring points one thread takes.

Triton gives each thread as many neighbours as the widest access of the narrowest type needs. Where accesses
cannot be wide (windows of pooling, read in steps and from odd offsets), or types of several widths meet,
fewer neighbours are better: the accesses of a warp then cover fewer lines of the cache, and results need not
be exchanged between threads before they are stored.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from polyfuse.kit import Access
from polyfuse_triton.tiling.plan import Dim, Plan
from polyfuse_triton.tiling.pointwise import contiguous_weights
from polyfuse_triton.tiling.register_pressure import Facts

_WARP = 32
_WIDEST, _LINE = 16, 128
"""Bytes of the widest access, and of a cache line."""
_EXCHANGE = 0.1
"""What it costs to hand a value from thread to thread, beside asking for a cache line."""
_GAIN = 0.8
"""The part of the cost that is left where a choice is better than Triton's."""


def with_neighbours(plan: Plan, facts: Facts, wanted: int | None = None) -> Plan:
    """The plan with the most neighbours that a thread takes along its contiguous dimension: `wanted`, or the
    best guess; 0 leaves it to Triton.
    """
    if not plan.dims:
        return plan
    weights = contiguous_weights(facts.accesses, facts)
    lead = max(plan.dims, key=lambda dim: weights[dim.axes[-1]])
    count = max(1, plan.elements // (plan.num_warps * _WARP))
    chosen = _best(plan, lead, facts, count) if wanted is None else wanted

    def changed(dim: Dim) -> Dim:
        return replace(dim, together=chosen) if dim is lead and chosen else dim

    reduced = None if plan.reduced is None else changed(plan.reduced)
    return replace(plan, tiles=tuple(changed(d) for d in plan.tiles), reduced=reduced)


def _best(plan: Plan, lead: Dim, facts: Facts, count: int) -> int:
    axis = lead.axes[-1]
    near = [a for a in facts.accesses if a.indirect or axis in a.strides]
    others = [dim.axes[-1] for dim in plan.dims if dim is not lead]
    if not near or any(a.is_contiguous(other) for a in near for other in others):
        # nothing to gain, or threads that lie along different dimensions for different accesses
        return 0
    most = max(1, min(count, _WIDEST // min(a.itemsize for a in near)))
    choices = [1 << k for k in reversed(range(most.bit_length()))]
    if len(lead.axes) > 1:
        # Of a dimension whose index is divided, Triton loses sight of neighbours when it knows how many
        # there are: it is one point, where some access cannot be wide anyway, or what Triton finds.
        choices = choices[:1] if all(a.strides.get(axis) in (None, 0, 1) for a in near) else [choices[0], 1]
    costs = {n: _cost(near, facts, lead.axes, n) for n in choices}
    best = min(choices, key=lambda n: costs[n])
    return best if costs[best] < _GAIN * costs[choices[0]] else 0


def _cost(accesses: Sequence[Access], facts: Facts, group: Sequence[str], count: int) -> float:
    """Cache lines asked for at each point, and exchanges before stores that are narrower than loads."""
    lines = sum(_lines(a, facts, group, count) for a in accesses)
    narrow = [a for a in accesses if a.is_store and _WIDEST // a.itemsize < count]
    exchanges = sum(bool(a.is_contiguous(group[-1])) for a in narrow)
    return lines + _EXCHANGE * exchanges


def _lines(access: Access, facts: Facts, group: Sequence[str], count: int) -> float:
    """Cache lines that an access asks for at each point, where a thread has `count` neighbours."""
    step = access.strides.get(group[-1])
    if access.indirect and step != 1:
        return 1.0
    if not step:
        return 0.0
    wide = _width(access, facts, group, min(count, _WIDEST // access.itemsize)) if step == 1 else 1
    lines = min(_WARP, max(1.0, _WARP * count * abs(step) * access.itemsize / _LINE))
    return lines / (_WARP * wide)


def _width(access: Access, facts: Facts, group: Sequence[str], most: int) -> int:
    """Neighbouring elements that are read at once: as many as everything that moves an address allows."""
    index = access.index
    steps = [index if isinstance(index, int) else index.const]
    steps += [step for axis, step in access.strides.items() if axis != group[-1] and step is not None]
    extent = facts.sizes[group[-1]]
    if len(group) > 1 and isinstance(extent, int):
        # each row of a joined dimension begins at another offset
        steps.append(extent)
    return math.gcd(most, *steps)
