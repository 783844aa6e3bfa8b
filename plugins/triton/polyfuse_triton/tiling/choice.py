"""The choice of a plan: which axes a tile covers, how large it is, how many neighbouring points one thread
takes, and what else is worth trying.

Triton gives each thread as many neighbours as the widest access of the narrowest type needs. Where accesses
cannot be wide (windows of pooling, read in steps and from odd offsets), or types of several widths meet,
fewer neighbours are better: the accesses of a warp then cover fewer lines of the cache, and results need not
be exchanged between threads before they are stored.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.kernel import Kernel
from polyfuse.kit import Access, without_aliases
from polyfuse.plugin import Config
from polyfuse_triton.reductions.row_buffers import row_use
from polyfuse_triton.reductions.row_groups import row_groups
from polyfuse_triton.target import Target
from polyfuse_triton.tiling.plan import Dim, Plan, power_of_two
from polyfuse_triton.tiling.pointwise import can_split, contiguous_weights, pointwise_plan
from polyfuse_triton.tiling.reduction import joined_plan, reduction_plan, walkers_plan
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


_LARGEST_TILE = 1 << 17
_MOST_OF_THREAD = 64
"""Points of a thread, at most, that are tried: with hundreds, the assembler alone takes minutes."""
_SPLIT = Config.of(x=128, y=8)
"""Rows and columns apart, where a plan has them as one."""
_PERSISTENT, _LOOPED, _JOINED, _WALKERS = 1, 2, 3, 4
"""Values of a configuration's ``rows``."""


def choose_plan(kernel: Kernel, target: Target, config: Config | None = None) -> Plan:
    """The plan for a kernel; a configuration overrides what it names.

    Raises:
        UnsupportedError: its rows can neither be computed again nor fit in registers.
    """
    # aliases that a plan cannot take are refused after it
    facts = Facts.of(without_aliases(kernel))
    if not any(section.looped for section in kernel.sections):
        split = config is not None and bool(config.get("y"))
        return _overridden(pointwise_plan(facts, target, row_groups(kernel, facts), split), facts, config)
    rows = row_use(facts)
    wanted = (config or Config()).get("rows")
    persistent = None if wanted == 0 else wanted == _PERSISTENT
    if wanted == _JOINED:
        plan = joined_plan(kernel, facts, target, rows, (config or Config()).get("r"))
    elif wanted == _WALKERS:
        plan = walkers_plan(kernel, facts, target, rows, (config or Config()).get("programs"))
    else:
        plan = reduction_plan(kernel, facts, target, rows, persistent)
    plan = _overridden(plan, facts, config)
    if rows.must_stay and not plan.persistent and (plan.walks or not plan.is_shared):
        raise UnsupportedError(
            f"kernel {kernel.name} computes rows that can neither be computed again nor fit in registers",
            "let the scheduler split it",
        )
    if plan.walkers and plan.chunks < 2:
        raise UnsupportedError(
            f"kernel {kernel.name} has rows of one chunk of so many numbers", "walk them in shorter ones"
        )
    return plan


def candidates(kernel: Kernel, target: Target) -> tuple[Config, ...]:
    """Configurations worth a try, the one that is used without trying first."""
    facts = Facts.of(kernel)
    if not facts.axes and not facts.raxes:
        return ()
    default = choose_plan(kernel, target)
    found = [_config_of(default), *_possible(kernel, target, default)]
    if default.reduced is None and len(default.dims) == 1 and can_split(facts, default.dims[0].axes):
        found.append(_config_of(choose_plan(kernel, target, _SPLIT)))
    return tuple(dict.fromkeys(found))


def neighbours(kernel: Kernel, target: Target, config: Config) -> tuple[Config, ...]:
    """Configurations that differ from one in one thing."""
    return tuple(dict.fromkeys(_possible(kernel, target, choose_plan(kernel, target, config))))


def _possible(kernel: Kernel, target: Target, plan: Plan) -> Iterator[Config]:
    """Configurations around a plan that can be built."""
    for config in _around(plan):
        try:
            changed = choose_plan(kernel, target, config)
        except UnsupportedError:
            continue
        threads = 32 * changed.num_warps
        if 32 <= changed.elements <= min(_LARGEST_TILE, _MOST_OF_THREAD * threads):
            yield _config_of(changed)


def _config_of(plan: Plan) -> Config:
    values = {dim.name: dim.block for dim in plan.dims}
    if plan.dims:
        # a missing value is 0, which says nothing
        values["together"] = 1 + max(dim.together for dim in plan.dims)
    if plan.reduced is not None:
        if plan.walkers:
            values["programs"] = plan.walkers
        values["rows"] = _rows_of(plan)
    return Config.of(**values, warps=plan.num_warps, stages=plan.num_stages)


def _rows_of(plan: Plan) -> int:
    """The value of `rows`."""
    if plan.joins:
        return _WALKERS if plan.walkers else _JOINED
    return _PERSISTENT if plan.persistent else _LOOPED


def _around(plan: Plan) -> Iterator[Config]:
    """The plan with one thing changed."""
    base = dict(_config_of(plan).values)
    for dim in plan.dims:
        if plan.persistent and dim is plan.reduced:
            continue
        for factor in (2, 0.5, 4, 0.25):
            block = int(dim.block * factor)
            if block >= 1:
                yield Config.of(**{**base, dim.name: block})
                if factor > 1:
                    yield Config.of(**{**base, dim.name: block, "warps": min(16, plan.num_warps * 2)})
    for warps in (1, 2, 4, 8, 16):
        if warps != plan.num_warps and plan.elements >= warps * 32:
            yield Config.of(**{**base, "warps": warps})
    for count in (0, 1, 4):
        if base.get("together", 1 + count) != 1 + count:
            yield Config.of(**{**base, "together": 1 + count})
    if plan.reduced is not None:
        for rows in (_PERSISTENT, _LOOPED, _JOINED, _WALKERS):
            if rows != base["rows"]:
                yield Config.of(rows=rows)
        if plan.walkers:
            for programs in (4, 8):
                yield Config.of(**{**base, "programs": programs})
        if plan.groups is not None or not (plan.persistent or plan.joins):
            for stages in (1, 2, 3, 4):
                yield Config.of(**{**base, "stages": stages})


def _overridden(plan: Plan, facts: Facts, config: Config | None) -> Plan:
    if config is None:
        return with_neighbours(plan, facts)

    def dim(old: Dim) -> Dim:
        block = config.get(old.name)
        if not block or (plan.persistent and old is plan.reduced):
            return old
        return replace(old, block=power_of_two(block))

    changed = replace(
        plan,
        tiles=tuple(dim(d) for d in plan.tiles),
        reduced=None if plan.reduced is None else dim(plan.reduced),
        num_warps=config.get("warps") or plan.num_warps,
        num_stages=config.get("stages") or plan.num_stages,
    )
    if changed.reduced is not None and changed.reduced.is_one:
        changed = replace(changed, looks_back=False)
    together = config.get("together")
    return with_neighbours(changed, facts, together - 1 if together else None)
