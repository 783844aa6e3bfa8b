"""An order of steps in which fewer bytes are in use at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from polyfuse.schedule.peak.live import Live

_NEAR = 8
"""Steps before and behind the one with most bytes in use among which some are reordered."""

_ROUNDS = 64
"""How often that is done."""


def lower_peak(edges: Sequence[set[int]], live: Live) -> list[int]:
    """The order 0, 1, 2, ... with steps moved past others that they do not depend on, where the peak falls.

    Args:
        edges: for each step, those that it must follow.
    """
    order = list(range(len(edges)))
    for _ in range(_ROUNDS if order else 0):
        window = _better(order, edges, live)
        if window is None:
            break
        start, part = window
        order[start : start + len(part)] = part
    return order


def _better(order: list[int], edges: Sequence[set[int]], live: Live) -> tuple[int, list[int]] | None:
    """Where the order around its peak is replaced by which part."""
    profile = live.profile(order)
    at = max(range(len(order)), key=lambda i: profile[i][0])
    start, end = max(0, at - _NEAR), min(len(order), at + _NEAR + 1)
    part = order[start:end]
    before = profile[start - 1][1] if start else live.begin
    touched = {root for number in part for root in live.steps[number].touches}
    there = {root for root in touched if root in live.storages.given}
    for number in order[:start]:
        there.update(root for root in live.steps[number].touches if root in touched)
    uses = dict.fromkeys(touched, 0)
    for number in order[start:]:
        for root in live.steps[number].touches:
            if root in uses:
                uses[root] += 1
    best, least = None, profile[at][0]
    for moved in _moves(part, at - start, edges):
        most = max(during for during, _ in live.run(moved, before, set(there), dict(uses)))
        if most < least:
            best, least = (start, moved), most
    return best


def _moves(part: list[int], at: int, edges: Sequence[set[int]]) -> Iterator[list[int]]:
    """Orders of a part that differ in one step.

    The one at the peak comes earlier or later, one before it comes later, or one behind it earlier.
    """
    for source in range(len(part)):
        number = part[source]
        for target in range(source - 1, -1, -1):
            if part[target] in edges[number]:
                break
            if source == at or target <= at < source:
                yield [*part[:target], number, *part[target:source], *part[source + 1 :]]
        for target in range(source + 1, len(part)):
            if number in edges[part[target]]:
                break
            if source == at or source < at <= target:
                yield [*part[:source], *part[source + 1 : target + 1], number, *part[target + 1 :]]
