"""The choice of a strategy: which axis lanes run along, in which order loops nest, what is unrolled or
split.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from polyfuse.ir.kernel import Section
from polyfuse.ir.ops import CHECK_MODE
from polyfuse.ir.statements import Reduce, Scan, Store
from polyfuse.kit import Access, is_multiple
from polyfuse.symbolic import axis, bounds, coefficient, free_axes
from polyfuse_cpp.facts import Facts
from polyfuse_cpp.loops.scans import scans_across
from polyfuse_cpp.memory.address import index_text

_FEW = 4
"""A loop shorter than this is not worth vectors."""

_NEAR = 4
"""Elements from one lane to the next up to which lanes lie in few vectors, taken apart in registers."""

_REPEATED = 16
"""Price of what all points of an axis compute alike, in vector additions, from which it is computed once."""

_REPEATED_CROWDED = 64
"""The same where what the axis stores competes for room in the caches."""

_PAGE, _LINES = 4096, 64
"""Bytes after which addresses share a set of the L1 cache, and lines that find room in it or near it."""

_LITTLE = 16
"""Price of a point, in vector additions, up to which an update of scattered memory is most of the work."""

_ROWS = 32
"""Rows from which on threads have enough of them to share, none of which is divided."""

_ITEMS = 1024
"""Points that are left for threads to share, where one axis is done by one of them."""


@dataclass(frozen=True)
class Split:
    """How a long reduction is cut: chunks of `size` steps of a reduction axis of extent `extent` (text)."""

    axis: str
    size: int
    extent: str
    count_hint: int


@dataclass(frozen=True)
class Plan:
    """How one kernel is run.

    Attributes:
        lane: axis that lanes run along; empty: everything is scalar.
        across: whether that axis is a reduction axis.
        axes: parallel axes, outermost first; a parallel lane axis is the last one.
        raxes: reduction axes, outermost first; a lane axis among them is the last one.
        lanes: lanes of a vector.
        unroll: vectors side by side at every parallel point.
        unrolls: vectors side by side in each section's loop, where lanes run along a reduction axis.
        along: whether threads divide the lane axis only, because stores collide along all the others.
        serial: whether one thread does it all, because stores may collide everywhere and their order matters.
        limits: (reduction axis, first, end) as text, where a pass covers only a part of it.
        tile: a second axis along which some accesses are contiguous; empty: none worth transposing tiles
            for.
        tiled: those accesses; where there is no second axis, accesses that are contiguous along the innermost
            reduction axis, of which tiles are transposed in its loop.
        repeated: a parallel axis, in none of `axes`, that each vector runs through by itself, after what does
            not depend on it; empty: there is none worth it.
    """

    lane: str
    across: bool
    axes: tuple[str, ...]
    raxes: tuple[str, ...]
    lanes: int
    unroll: int = 1
    unrolls: tuple[int, ...] = ()
    along: bool = False
    serial: bool = False
    limits: tuple[tuple[str, str, str], ...] = ()
    tile: str = ""
    tiled: tuple[Access, ...] = ()
    repeated: str = ""


def choose_plan(
    facts: Facts, lanes: int, lane: str = "", unroll: int = 0, without: Collection[str] = ()
) -> Plan:
    """The plan for a kernel on a machine with vectors of `lanes` lanes.

    `lane` names the lane axis and `unroll` says how many vectors stand side by side; an empty name and zero
    leave the choice here. Lanes do not run along the axes `without`.
    """
    kernel = facts.kernel
    steps = facts.hints[facts.raxes[-1]] if facts.raxes else 1
    scans = any(isinstance(s, Scan) and not scans_across(s, steps) for s in facts.statements)
    best = "" if lanes == 1 else _lane(facts, scans, lanes, without)
    lane = lane if best and lane and lane not in without else best
    across = lane in facts.raxes
    inner, lane = lane, "" if lane == best and _is_scattered(lane, facts) else lane
    axes = tuple(a for a in facts.axes if a != inner) + ((inner,) if inner and not across else ())
    raxes = tuple(a for a in facts.raxes if a != lane) + ((lane,) if across else ())
    steps = -(-facts.hints[lane] // lanes) if lane else 1
    unrolls = tuple(_unroll(part, steps, across, facts) if lane else 1 for part in kernel.sections)
    if unroll:
        unrolls = tuple(
            unroll if old > 1 or (_may_unroll(part, across) and lane) else 1
            for old, part in zip(unrolls, kernel.sections)
        )
    apart = min((u for u, part in zip(unrolls, kernel.sections) if part.looped), default=1)
    plan = Plan(lane, across, axes, raxes, lanes if lane else 1, 1 if across else apart, unrolls)
    plan = _with_collisions(plan, facts, kernel.deterministic)
    if facts.raxes:
        return _with_transposed_loops(plan, facts)
    return _with_repeated(_with_tiles(plan, facts), facts)


def lane_choices(facts: Facts) -> tuple[int, ...]:
    """Positions of the axes that lanes could run along, counted from 1."""
    scans = any(s.op == "scan" for s in facts.statements)
    names = (*facts.axes, *(() if scans else facts.raxes))
    return tuple(position for position, name in enumerate(names, 1) if facts.hints[name] >= 2 * _FEW)


def choose_split(facts: Facts, plan: Plan) -> Split | None:
    """Whether, and where, a long reduction is cut into chunks."""
    kernel = facts.kernel
    looped = [part for part in kernel.sections if part.looped]
    stmts = [s for part in looped for s in part.body]
    if (
        not facts.raxes
        or kernel.row_buffers
        or not all(any(s.op == "reduce" for s in part.body) for part in looped)
    ):
        return None
    collide = any(isinstance(s, Store) and s.mode not in ("set", CHECK_MODE) for s in stmts)
    if collide or any(isinstance(s, Scan) for s in stmts) or not looped:
        return None
    before = (a for a in facts.all_accesses if not a.is_store and not a.looped)
    if any(a.buffer in facts.written for a in before):
        # such a value would be loaded again by a later pass, when it is another one
        return None
    length, points = facts.points(facts.raxes), facts.points(facts.axes)
    name = max(plan.raxes, key=lambda r: facts.hints[r])
    inner = length // max(1, facts.hints[name])
    if plan.across or not plan.lane:
        few = 16 if len(looped) == 1 else 2
        if points > few or length < 32768 * len(looped):
            return None
        size = max(1, 16384 // inner)
    else:
        if length < 512 or (len(looped) > 1 and points > 4096):
            return None
        size = max(1, min(1024, max(64, 65536 // points)) // inner)
    if size > 64 or name == plan.lane:
        # vectors must begin at multiples of their lanes
        size = max(64, size // 64 * 64)
    count = -(-facts.hints[name] // size)
    return Split(name, size, index_text(facts.sizes[name]), count) if count >= 2 else None


def _lane(facts: Facts, scans: bool, lanes: int, without: Collection[str]) -> str:
    """The axis along which most memory is contiguous; the innermost parallel one where several are equal."""
    candidates = [*reversed(facts.axes), *(() if scans else reversed(facts.raxes))]
    best, best_score = "", float("-inf")
    for position, name in enumerate(candidates):
        extent = facts.hints[name]
        if name in without or (extent < _FEW and facts.sizes[name] == extent):
            continue
        score = -position * 0.01
        for access in facts.all_accesses:
            if facts.raxes and access.looped:
                score += 8 * _score_in_loop(access, name, facts, lanes)
            else:
                score += _score(access, name, facts)
        if extent < 16:
            score -= 2
        if score > best_score:
            best, best_score = name, score
    return "" if scans and best_score <= 0 and not (best and _scans_rows(best, facts, lanes)) else best


def _is_scattered(lane: str, facts: Facts) -> bool:
    """Whether each lane would update memory of its own and little else is done: points one by one are faster
    than vectors whose lanes are taken apart.
    """
    if facts.raxes or facts.kernel.row_buffers or facts.cost > _LITTLE:
        return False
    updates = [a for a in facts.all_accesses if a.is_store and a.mode not in ("set", CHECK_MODE)]
    if all(is_apart(a, lane, facts) for a in updates):
        return False  # threads can share the lanes
    return any(lane in facts.depends[v] for a in updates for v in a.indirect)


def _scans_rows(lane: str, facts: Facts, lanes: int) -> bool:
    """Whether scans along contiguous memory pay for the transposed tiles that lanes across them take: those
    with slow steps do, others where there are rows enough, also for threads, and values of 32 bits or fewer.
    """
    inner = facts.raxes[-1]
    looped = [a for a in facts.all_accesses if a.looped and coefficient(a.index, lane) != 0]
    if facts.hints[inner] <= _FEW or not all(_runs_along(a, inner, lane, facts) for a in looped):
        return False
    scans = [s for s in facts.statements if isinstance(s, Scan)]
    if all(s.kind == "logsumexp" for s in scans):
        return True
    return facts.hints[lane] >= 8 * lanes and all(s.dtype.itemsize <= 4 for s in scans)


def _score(access: Access, lane: str, facts: Facts) -> float:
    """How well one access suits lanes along an axis."""
    if access.buffer in facts.row_buffers:
        return 0.5
    weight = _share(access, facts)
    if any(lane in facts.depends[v] for v in access.indirect):
        return -1.0 * weight
    step = coefficient(access.index, lane)
    if isinstance(step, int) and step == 1:
        return (4.0 if access.is_store else 3.0) * weight
    if isinstance(step, int) and step == 0:
        # nothing to load for each lane, or a reduction's result
        return 0.0
    if step is None or (isinstance(step, int) and abs(step) <= _NEAR):
        return -1.0 * weight
    return -2.0 * weight


def _score_in_loop(access: Access, lane: str, facts: Facts, lanes: int) -> float:
    """The same in a loop: rows that do not fill a vector leave lanes idle, and are better transposed."""
    score = _score(access, lane, facts)
    inner = facts.raxes[-1]
    filled = facts.hints[inner] / lanes
    if filled >= 1 or score == 0:
        return score
    if lane in facts.raxes:
        return score * filled if score > 0 and lane == inner else score
    if not _runs_along(access, inner, lane, facts):
        return score
    return 2.0 * min(1.0, facts.hints[lane] / lanes) * _share(access, facts)


def _share(access: Access, facts: Facts) -> float:
    """The part of the points at which an access touches memory of its own: little for a bias, all for the
    data.
    """
    if access.indirect:
        return 1.0
    own = total = 1.0
    for name in (*facts.axes, *facts.raxes):
        total *= max(1, facts.hints[name])
        if name in access.strides:
            own *= max(1, facts.hints[name])
    return max(0.05, own / total)


def _unroll(part: Section, steps: int, across: bool, facts: Facts) -> int:
    """Vectors side by side: enough to hide the latency of an accumulation, few where the body is long
    anyway.
    """
    if not _may_unroll(part, across):
        return 1
    cost = facts.cost_of(part.body)
    limit = 4 if not across or cost <= 12 else 2 if cost <= 16 else 1
    while limit > 1 and limit > steps:
        limit //= 2
    return limit


def _may_unroll(part: Section, across: bool) -> bool:
    """Whether vectors side by side make sense: states that wait in a buffer take one at a time."""
    if not part.looped or any(s.op == "scan" for s in part.body):
        return False
    kinds = [s.kind for s in part.body if isinstance(s, Reduce)]
    return not across or (bool(kinds) and "welford" not in kinds and "online_softmax" not in kinds)


def _with_collisions(plan: Plan, facts: Facts, deterministic: bool) -> Plan:
    """Keep threads from storing to one element where that is cheap, or where the order of such stores
    matters.
    """
    updates = [
        a
        for a in facts.all_accesses
        if a.is_store and (a.mode not in ("set", CHECK_MODE) or (deterministic and a.indirect))
    ]
    if not updates:
        return plan
    apart = all(is_apart(a, plan.lane, facts) for a in updates) if plan.lane and not plan.across else False
    if apart and facts.hints[plan.lane] >= 2 * plan.lanes:
        return replace(plan, along=True)
    return replace(plan, serial=True) if deterministic else plan


def _with_tiles(plan: Plan, facts: Facts) -> Plan:
    """Where some accesses run along the lane axis and others along a second one, work on square tiles."""
    if not plan.lane or facts.kernel.row_buffers or plan.along or plan.serial:
        return plan
    if facts.hints[plan.lane] < plan.lanes // 2:
        return plan
    best: tuple[Access, ...] = ()
    tile = ""
    for name in plan.axes[:-1]:
        if facts.hints[name] < plan.lanes // 2:
            continue
        found = tuple(a for a in facts.all_accesses if _runs_along(a, name, plan.lane, facts))
        if len(found) > len(best):
            best, tile = found, name
    if not best:
        return plan
    axes = (*(a for a in plan.axes if a not in (tile, plan.lane)), tile, plan.lane)
    return replace(plan, tile=tile, tiled=best, axes=axes)


def _with_repeated(plan: Plan, facts: Facts) -> Plan:
    """Where most of the work is the same along an axis, as the positions and weights of an interpolation are
    for all channels, do it once for each vector.
    """
    if not plan.lane or plan.tile or plan.along or plan.serial or facts.kernel.row_buffers:
        return plan
    best, saved = "", 0.0
    for name in plan.axes[:-1]:
        extent = facts.hints[name]
        if extent < 2 or facts.points([a for a in plan.axes if a != name]) < _ITEMS:
            continue
        pure = ((stmt, facts.depends_of(stmt)) for stmt in facts.statements if facts.is_pure(stmt))
        price = facts.cost_of(stmt for stmt, axes in pure if plan.lane in axes and name not in axes)
        least = _REPEATED_CROWDED if _is_crowded(name, facts) else _REPEATED
        if price >= least and 2 * price >= facts.cost and price * (1 - 1 / extent) > saved:
            best, saved = name, price * (1 - 1 / extent)
    return replace(plan, axes=tuple(a for a in plan.axes if a != best), repeated=best)


def _is_crowded(name: str, facts: Facts) -> bool:
    """Whether the points of an axis store to memory that competes for few sets of the L1 cache."""
    if facts.hints[name] <= _LINES:
        return False
    steps = ((coefficient(a.index, name), facts.memory[a.buffer]) for a in facts.all_accesses if a.is_store)
    return any(isinstance(step, int) and step and step * kind.itemsize % _PAGE == 0 for step, kind in steps)


def _with_transposed_loops(plan: Plan, facts: Facts) -> Plan:
    """Where lanes run along a parallel axis, transpose tiles of what runs along the innermost loop."""
    if not plan.lane or plan.across or plan.along or plan.serial:
        return plan
    name = plan.raxes[-1]
    if facts.hints[plan.lane] < plan.lanes // 2 or facts.hints[name] <= _FEW:
        return plan
    read = {a.buffer for a in facts.all_accesses if not a.is_store}
    found = tuple(
        a
        for a in facts.all_accesses
        if a.looped and _runs_along(a, name, plan.lane, facts) and not (a.is_store and a.buffer in read)
    )
    # transposing what is loaded takes registers enough
    return replace(plan, tiled=found, unroll=plan.unroll if all(a.is_store for a in found) else 1)


def _runs_along(access: Access, name: str, lane: str, facts: Facts) -> bool:
    """Whether an access is contiguous along an axis and jumps along the lanes."""
    if access.stmt.mask is not None or access.mode not in ("load", "set"):
        return False
    if access.mode == "load" and access.buffer in facts.written:
        return False
    if any(facts.depends[v] & {name, lane} for v in access.indirect):
        return False
    step = coefficient(access.index, lane)
    return coefficient(access.index, name) == 1 and step is not None and step not in (0, 1, -1)


def is_apart(access: Access, name: str, facts: Facts) -> bool:
    """Whether two points that differ on axis `name` never store to one element.

    So it is where the position on that axis is what remains of the address by some number of which all else,
    the positions that data name included, are multiples.
    """
    step = coefficient(access.index, name)
    if not isinstance(step, int) or step == 0:
        return False
    size = facts.sizes[name]
    for axis_name in free_axes(access.index):
        factor = coefficient(access.index, axis_name)
        if factor is None:
            return False
        if axis_name == name:
            continue
        span = step * size
        if isinstance(span, int):
            if not is_multiple(factor, span):
                return False
        elif factor != span and not (not isinstance(factor, int) and factor % span == 0):
            return False
    return True


def are_rows_apart(facts: Facts, plan: Plan) -> bool:
    """Whether kernels that update memory point by point have rows enough for threads, and no two of them
    update one element: what lies within a row spans less than the step from row to row.
    """
    updates = [a for a in facts.all_accesses if a.is_store and a.mode not in ("set", CHECK_MODE)]
    if not updates or plan.lane or plan.serial or facts.raxes or facts.points(plan.axes[:-1]) < _ROWS:
        return False
    return all(_spans_less_than_rows(a, plan.axes[:-1], facts) for a in updates)


def _spans_less_than_rows(access: Access, rows: tuple[str, ...], facts: Facts) -> bool:
    rest, steps = access.index, list[tuple[int, int]]()
    for name in rows:
        size, step = facts.sizes[name], coefficient(access.index, name)
        if size == 1:
            continue
        if not isinstance(size, int) or not isinstance(step, int) or step <= 0:
            return False
        steps.append((step, size))
        rest = rest - axis(name, size) * step
    low, high = bounds(rest)
    if low is None or high is None:
        return False
    span = high - low
    for step, size in sorted(steps):
        if step <= span:
            return False
        span += step * (size - 1)
    return True
