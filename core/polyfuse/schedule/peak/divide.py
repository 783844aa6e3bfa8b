"""Fusions that need more memory than their nodes one by one.

A fused kernel runs once: what its first nodes read stays in memory until its last nodes can run, and what its
last nodes write waits from the time of the first. Where that raises the peak by more than both halves would
read, such kernels are divided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from polyfuse.schedule.context import ScheduleContext
from polyfuse.schedule.fusion.score import nbytes
from polyfuse.schedule.fusion.units import Unit
from polyfuse.schedule.peak.live import Storages, live, storages
from polyfuse.schedule.result import Unfused

_ADDED_BYTES, _ADDED_PART = 64 << 10, 256
"""Bytes, and the part of the peak, that fusions may add."""


def peak_of(context: ScheduleContext, units: Sequence[Unit], removed: Iterable[str]) -> tuple[int, int]:
    """Most bytes in use while units run in this order, and the position of the unit that runs then."""
    profile = live(context, units, removed).profile(range(len(units)))
    at = max(range(len(profile)), key=lambda i: profile[i][0], default=0)
    return (profile[at][0] if profile else 0), at


def allowed(peak: int) -> int:
    """The peak up to which fusions may raise that of the nodes one by one."""
    return peak + max(_ADDED_BYTES, peak // _ADDED_PART)


def divisions(context: ScheduleContext, units: Sequence[Unit], at: int) -> list[Unfused]:
    """Nodes that are not fused, so that fewer bytes are in use while the unit at a position runs.

    They are those of another unit that the program has before it, and those that it has behind it.
    """
    sizes, roots = storages(context), context.roots
    uses: dict[str, list[int]] = {}
    for position, unit in enumerate(units):
        for root in dict.fromkeys(roots[name] for name in unit.seen):
            uses.setdefault(root, []).append(position)
    found: list[Unfused] = []
    for position, unit in enumerate(units):
        if position == at or unit.is_call:
            continue
        parts = _Parts(unit, units[at].first, roots)
        if not (parts.early and parts.late):
            continue
        # both would read it
        shared = nbytes(context.graph, parts.touched(0) & parts.touched(1), context.hint)
        if _gain(parts, position, at, sizes, uses) > shared:
            found.append((parts.early, parts.late))
    return found


class _Parts:
    """The nodes of a unit before and behind a position of the program, and the storages that they touch."""

    def __init__(self, unit: Unit, now: int, roots: Mapping[str, str]) -> None:
        late = [member.position >= now for member in unit.members]
        names: tuple[set[str], set[str]] = set(), set()
        self.reads: tuple[set[str], set[str]] = set(), set()
        self.writes: tuple[set[str], set[str]] = set(), set()
        for member, is_late in zip(unit.members, late, strict=True):
            names[is_late].add(member.node.name)
        for item in unit.accesses:
            side = self.writes if item.access.write else self.reads
            side[late[item.member]].add(roots[item.access.buffer])
        self.early, self.late = frozenset(names[0]), frozenset(names[1])

    def touched(self, side: int) -> set[str]:
        """The storages that the first part touches, or the last."""
        return self.reads[side] | self.writes[side]


def _gain(parts: _Parts, position: int, at: int, found: Storages, uses: Mapping[str, Sequence[int]]) -> int:
    """Bytes that are not in use at a position if a unit on the other side did one of its parts there.

    A unit behind the position would do its first part before it, a unit before it its last part behind it.
    """
    reads, writes = parts.reads, parts.writes

    def held(names: set[str]) -> int:
        return sum(found.sizes.get(root, 0) for root in names)

    def is_there(root: str, others: Callable[[int], bool]) -> bool:
        return any(others(use) for use in uses[root] if use != position)

    early = reads[0] | writes[0]
    if position > at:
        released = {
            root
            for root in reads[0] - reads[1] - writes[1] - writes[0]
            if root not in found.live_out and not is_there(root, lambda use: use >= at)
        }
        begun = {
            root
            for root in writes[0]
            if not is_there(root, lambda use: use <= at)
            and (root in reads[1] or root in found.live_out or is_there(root, lambda use: use > at))
        }
        return held(released) - held(begun)
    postponed = {root for root in writes[1] - early if not is_there(root, lambda use: use <= at)}
    postponed = {root for root in postponed if root in found.live_out or is_there(root, lambda use: use > at)}
    waiting = {
        root
        for root in reads[1]
        if root not in found.live_out and root not in writes[1] and not is_there(root, lambda use: use >= at)
    }
    return held(postponed) - held(waiting)
