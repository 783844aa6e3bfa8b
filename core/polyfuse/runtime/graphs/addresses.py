"""Addresses for what a recorded program allocates, found before it is recorded.

An allocator answers one request after the other, and what it cannot know leaves gaps: results that are there
to the end lie between values that are not, and what comes later is larger than what was freed. A program that
is recorded allocates the same at every run, so what one run of it did says what the recording will do.

Times are numbers of events of that run: allocations, releases and calls. Addresses are bytes from the
beginning of a pool.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

MOST: Final = 400
"""Large allocations beyond which nothing is planned: the time of planning grows with their square."""

ALIGNMENT: Final = 512
"""Of addresses: that of an allocator of a device."""

BEFORE: Final = 0
"""The time before all of a program."""


@dataclass(frozen=True)
class Request:
    """Memory that is in use from one event to another one. `needed` is a time of the backward: when that has
    read it for the last time; 0: it does not read it.
    """

    nbytes: int
    first: int
    last: int
    needed: int = 0


@dataclass(frozen=True)
class Call:
    """A function that a program called, as it is recognised, and which of a run's requests it made, in their
    order.
    """

    op: Any
    requests: tuple[int, ...]


@dataclass(frozen=True)
class Run:
    """What a run of a program allocated.

    Attributes:
        requests: the large ones, in order.
        calls: all calls that may allocate, in order.
        released: input -> when the program let go of it; for the others it is `end`.
        end: a time behind all of the program.
        inputs: bytes of those that were watched, and that no other run is known to have made.
        needed: request -> when the run that read it last had let go of it.
        readers: runs that read requests, the last one last.
    """

    requests: tuple[Request, ...]
    calls: tuple[Call, ...]
    released: dict[int, int]
    end: int
    inputs: dict[int, int]
    needed: dict[int, int] = field(default_factory=dict)
    readers: list[Run] = field(default_factory=list)


@dataclass(frozen=True)
class Busy:
    """A range of addresses that is in use for a time."""

    low: int
    high: int
    first: int
    last: int


@dataclass(frozen=True)
class Plan:
    """Where requests lie.

    Attributes:
        starts: of the requests of each group.
        limit: bytes of the pool that are needed.
    """

    starts: tuple[tuple[int, ...], ...]
    limit: int


@dataclass(frozen=True)
class Outcome:
    """What becomes of requests.

    Attributes:
        mapped: bytes that the pool has in the end.
        ranges: of each request, in the order of groups.
        plan: by which it does; None: an allocator took the smallest gap for each.
    """

    mapped: int
    ranges: tuple[tuple[int, int], ...]
    plan: Plan | None


Group = Sequence[Request]
"""Requests of one call, which begin together."""

Judge = Callable[[Outcome], int]
"""What of an outcome is to be small, in bytes."""


def make_plan(
    groups: Sequence[Group],
    busy: Sequence[Busy],
    mapped: int,
    step: int,
    least: int,
    judge: Judge | None = None,
    bound: int = 0,
) -> Outcome | None:
    """Find addresses, so that a pool grows as little as possible.

    Args:
        groups: what is requested.
        busy: what is in use already.
        mapped: bytes that the pool has.
        step: bytes by which it grows.
        least: bytes of the smallest range that can be held free of others.
        judge: says which outcome is best; None: that of the smallest pool.
        bound: what no outcome is judged to be less than.

    Returns None if there are none, or too many. An outcome without a plan: none is better than that.
    """
    if not 0 < sum(map(len, groups)) <= MOST:
        return None
    if judge is None:
        judge, bound = _size, least_mapped(groups, busy, mapped, step)
    best = _outcome([[r] for g in groups for r in g], None, busy, mapped, step, least)
    size = judge(best)
    end = max(request.last for group in groups for request in group)
    several = any(len(group) > 1 for group in groups)
    seen = set()
    for order, apart in itertools.product(_ORDERS, (True, False) if several else (True,)):
        if size <= bound:
            break
        keys = [order(group, end) for group in groups]
        plan = _pack(groups, sorted(range(len(groups)), key=keys.__getitem__), busy, mapped, apart)
        if plan.starts in seen:
            continue
        seen.add(plan.starts)
        grown = mapped + -(-max(0, plan.limit - mapped) // step) * step
        # where it does not come true, it grows still
        outcome = _outcome(groups, plan, busy, grown, step, least)
        judged = judge(outcome)
        if judged < size:
            best, size = outcome, judged
    return best


def least_mapped(groups: Sequence[Group], busy: Sequence[Busy], mapped: int, step: int) -> int:
    """How many bytes a pool has at least, however well all lies in it: what is in use at a time."""
    changes: list[tuple[int, int]] = []
    for one in busy:
        changes += [(one.first, one.high - one.low), (one.last, one.low - one.high)]
    for request in itertools.chain.from_iterable(groups):
        changes += [(request.first, aligned(request.nbytes)), (request.last, -aligned(request.nbytes))]
    most = max(itertools.accumulate(change for _, change in sorted(changes)), default=0)
    return mapped + -(-max(0, most - mapped) // step) * step


def _size(outcome: Outcome) -> int:
    return outcome.mapped


def _as_a_stack(group: Group, end: int) -> tuple[int, ...]:
    """What is there to the end comes first, and of that what a backward needs longest: what it is done with
    is one range then.
    """
    if any(request.last == end for request in group):
        return 0, -max(request.needed for request in group), group[0].first
    return 1, _by_area(group, end)


def _stack_of_last(group: Group, end: int) -> tuple[int, ...]:
    if any(request.last == end for request in group):
        return 0, -max(request.needed for request in group), group[0].first
    return 1, -max(request.last for request in group), _by_size(group, end)


def _by_area(group: Group, end: int) -> int:
    return -sum(request.nbytes * (request.last - request.first) for request in group)


def _by_size(group: Group, end: int) -> int:
    return -sum(request.nbytes for request in group)


def _last_first(group: Group, end: int) -> tuple[int, int]:
    return -max(request.last for request in group), _by_size(group, end)


def _longest_first(group: Group, end: int) -> tuple[int, int]:
    return -max(request.last - request.first for request in group), _by_size(group, end)


def _in_order(group: Group, end: int) -> int:
    return group[0].first


_ORDERS: Final[tuple[Callable[[Group, int], Any], ...]] = (
    _as_a_stack,
    _stack_of_last,
    _by_area,
    _by_size,
    _last_first,
    _longest_first,
    _in_order,
)


def aligned(nbytes: int) -> int:
    """As many bytes as an allocator takes for a request."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _pack(
    groups: Sequence[Group], order: Iterable[int], busy: Sequence[Busy], mapped: int, apart: bool
) -> Plan:
    """Give each request, one group after the other, the smallest gap that there is for it; or each group, for
    the time of all its requests, if they are not `apart`.
    """
    used = list(busy)
    limit = max((one.high for one in busy), default=0)
    limit = max(limit, mapped)
    starts: list[tuple[int, ...]] = [()] * len(groups)
    for k in order:
        at = 0
        if not apart:
            last = max(request.last for request in groups[k])
            size = sum(aligned(request.nbytes) for request in groups[k])
            at = _gap_for(Request(size, groups[k][0].first, last), used, limit)
        for request in groups[k]:
            if apart:
                at = _gap_for(request, used, limit)
            starts[k] += (at,)
            high = at + aligned(request.nbytes)
            used.append(Busy(at, high, request.first, request.last))
            limit = max(limit, high)
            at = high
    return Plan(tuple(starts), max((one.high for one in used), default=0))


def _gap_for(request: Request, used: Sequence[Busy], limit: int) -> int:
    """The beginning of the smallest gap of those below `limit`, or else of the last one, which goes on."""
    size = aligned(request.nbytes)
    gaps = list(_gaps(_conflicts(request, used), limit))
    fitting = [(high - low, low) for low, high in gaps if high - low >= size]
    if fitting:
        return min(fitting)[1]
    return gaps[-1][0] if gaps and gaps[-1][1] == limit else limit


def _conflicts(request: Request, used: Sequence[Busy]) -> list[tuple[int, int]]:
    """Ranges that are in use while a request is, by address."""
    return sorted((u.low, u.high) for u in used if u.first < request.last and request.first < u.last)


def _gaps(ranges: Sequence[tuple[int, int]], limit: int) -> Iterator[tuple[int, int]]:
    """What is free between ranges, and up to a limit."""
    at = 0
    for low, high in ranges:
        if low > at:
            yield at, low
        at = max(at, high)
    if limit > at:
        yield at, limit


def _outcome(
    groups: Sequence[Group],
    plan: Plan | None,
    busy: Sequence[Busy],
    mapped: int,
    step: int,
    least: int,
) -> Outcome:
    """The requests of a group are where they were planned if that is free by then, or else side by side in
    the smallest gap.
    """
    events: list[tuple[int, int, int, int]] = []
    for k, group in enumerate(groups):
        events.append((group[0].first, 1, k, 0))
        events += [(request.last, 0, k, n) for n, request in enumerate(group)]
    waiting = sorted(((one.last, one.low, one.high) for one in busy), reverse=True)
    ranges = sorted((one.low, one.high) for one in busy)
    found: dict[tuple[int, int], tuple[int, int]] = {}
    for time, begins, k, n in sorted(events):
        while waiting and waiting[-1][0] <= time:
            ranges.remove(waiting.pop()[1:])
        if not begins:
            ranges.remove(found[k, n])
            continue
        sizes = [aligned(request.nbytes) for request in groups[k]]
        size = sum(sizes)
        gaps = list(_gaps(ranges, mapped))
        holes = None if plan is None else opened(list(zip(plan.starts[k], sizes, strict=True)), gaps, least)
        starts = None if holes is None else landed(sizes, holes)
        if starts is None:
            fitting = [(high - low, low) for low, high in gaps if high - low >= size]
            at = min(fitting)[1] if fitting else max((high for _, high in ranges), default=0)
            mapped += max(0, -(-(at + size - mapped) // step) * step)
            starts = [at + sum(sizes[:number]) for number in range(len(sizes))]
        for number, (at, nbytes) in enumerate(zip(starts, sizes, strict=True)):
            found[k, number] = at, at + nbytes
            bisect.insort(ranges, (at, at + nbytes))
    return Outcome(mapped, tuple(where for _, where in sorted(found.items())), plan)


def opened(
    planned: Sequence[tuple[int, int]], gaps: Sequence[tuple[int, int]], least: int
) -> list[tuple[int, int]] | None:
    """Where ranges (address, bytes) are free of all else, if they lie in gaps; None if not.

    What is free before one and smaller than `least` cannot be held, and so it begins there.
    """
    holes: list[tuple[int, int]] = []
    for low, size in sorted(planned):
        around = [start for start, high in gaps if start <= low and low + size <= high]
        if not around:
            return None
        start = max(around[0], holes[-1][1]) if holes else around[0]
        if start > low:
            return None
        at = low if low - start >= least else start
        holes.append((at, at + size))
    return holes


def landed(sizes: Sequence[int], holes: Sequence[tuple[int, int]]) -> list[int] | None:
    """Where requests are that take, one after the other, the smallest of some holes."""
    free: list[tuple[int, int]] = []
    for low, high in holes:
        if free and free[-1][1] == low:
            free[-1] = free[-1][0], high
        else:
            free.append((low, high))
    starts = []
    for size in sizes:
        fitting = [(high - low, low) for low, high in free if high - low >= size]
        if not fitting:
            return None
        room, at = min(fitting)
        free.remove((at, at + room))
        if room > size:
            free.append((at + size, at + room))
        starts.append(at)
    return starts
