"""The fusion loop: rounds of ranked candidates, greedily merged, each refusal recorded with its reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from polyfuse.base.log import get_logger
from polyfuse.base.text import NO_TEXTS, PassTexts
from polyfuse.schedule.deps import Dependencies, stable_order
from polyfuse.schedule.fusion.legality import Fusion, Rules, can_fuse, passes_data
from polyfuse.schedule.fusion.score import Score, score
from polyfuse.schedule.fusion.units import Unit, merge, touched
from polyfuse.schedule.result import Decision

MAX_ROUNDS = 10
_log = get_logger("schedule")

Ranked = list[tuple[Score, int, Unit, Unit]]
_Search = Callable[[list[Unit], Rules, set[tuple[int, int]]], Ranked]


class Fuel:
    """Counts the decisions that `fuel` still allows; None for no limit."""

    def __init__(self, fuel: int | None) -> None:
        self._left = fuel

    def spend(self) -> bool:
        """Take one unit; False where there is none left."""
        if self._left is None:
            return True
        self._left -= 1
        return self._left >= 0


def link(units: Sequence[Unit], deps: Dependencies) -> None:
    """Fill every unit's ancestor and descendant sets. `units` are one node each, in program order."""
    at = {u.members[0].position: u for u in units}
    for unit in units:
        position = unit.members[0].position
        for before in sorted(deps.strong[position] | deps.weak[position]):
            if before in at:
                unit.before |= at[before].before | at[before].bits
    for unit in reversed(units):
        position = unit.members[0].position
        for before in sorted(deps.strong[position] | deps.weak[position]):
            if before in at:
                at[before].after |= unit.after | unit.bits


def fuse(
    units: list[Unit], rules: Rules, fuel: Fuel, decisions: list[Decision], texts: PassTexts = NO_TEXTS
) -> list[Unit]:
    """Merge units until nothing more fuses; the result is in the order of each unit's earliest node."""
    refused: set[tuple[int, int]] = set()
    alive = list(units)
    # the second only when nothing is left that saves memory traffic
    searches: tuple[_Search, ...] = (_candidates, _horizontal_candidates)
    texts.begin(partial(_text, alive))
    for search in searches:
        for _ in range(MAX_ROUNDS):
            count = len(alive)
            alive = _round(alive, search(alive, rules, refused), rules, fuel, decisions, refused)
            texts.note("fusion", partial(_text, alive))
            _log.debug("a round of fusion took %d units to %d", count, len(alive))
            if len(alive) in (1, count):
                break
    return alive


def _text(units: Sequence[Unit]) -> str:
    """A line for each unit: its device, its backend and its nodes."""
    return "".join(f"{u.device} {u.backend or 'call'}: {u.names()}\n" for u in units)


def _round(
    units: list[Unit],
    candidates: Ranked,
    rules: Rules,
    fuel: Fuel,
    decisions: list[Decision],
    refused: set[tuple[int, int]],
) -> list[Unit]:
    owner: dict[int, Unit] = {id(u): u for u in units}
    alive: dict[int, Unit] = {id(u): u for u in units}
    for _, _, a, b in candidates:
        first, second = _current(owner, a), _current(owner, b)
        if first is second:
            continue
        first, second = _in_order(first, second)
        key = (first.bits, second.bits)
        if key in refused:
            continue
        answer = can_fuse(rules, first, second)
        if isinstance(answer, str):
            refused.add(key)
            decisions.append(Decision("refuse", first.names(), second.names(), answer))
            _log.debug("%s and %s are not fused: %s", first.names(), second.names(), answer)
            continue
        if not fuel.spend():
            refused.add(key)
            decisions.append(Decision("refuse", first.names(), second.names(), "no fuel is left"))
            continue
        merged = _merge(first, second, answer, alive)
        owner[id(first)] = owner[id(second)] = merged
        owner[id(merged)] = merged
        decisions.append(Decision("fuse", first.names(), second.names(), _why(rules, first, second)))
    return sorted(alive.values(), key=lambda u: u.first)


def _current(owner: dict[int, Unit], unit: Unit) -> Unit:
    while owner[id(unit)] is not unit:
        unit = owner[id(unit)]
    return unit


def _why(rules: Rules, first: Unit, second: Unit) -> str:
    if second.before & first.bits and passes_data(rules, first, second):
        return "the second reads what the first computes, element by element"
    return (
        "both read the same data"
        if any(name in second.seen for name in first.seen)
        else "they do the same to other data"
    )


def _candidates(units: list[Unit], rules: Rules, refused: set[tuple[int, int]]) -> Ranked:
    # a tensor read everywhere (a mask) would give a quadratic number of pairs
    most = rules.settings.fusion_candidates or len(units)
    found: dict[tuple[int, int], None] = {}
    for positions in touched(units).values():
        for at, i in enumerate(positions):
            for j in positions[at + 1 : at + 1 + most]:
                found[i, j] = None
    if rules.settings.aggressive_fusion:
        count = len(units)
        found.update(((i, j), None) for i in range(count) for j in range(i + 1, min(i + 1 + most, count)))
    ranked: Ranked = []
    for order, (i, j) in enumerate(found):
        first, second = units[i], units[j]
        if first.is_call or second.is_call or (first.bits, second.bits) in refused:
            continue
        ranked.append((_score(rules, first, second), order, first, second))
    ranked.sort(key=lambda item: (tuple(-x for x in item[0]), item[1]))
    return ranked


def _score(rules: Rules, first: Unit, second: Unit) -> Score:
    """The score of a fusion, with what plugins' rules add to the bytes that it saves."""
    kind, shared, near = score(rules.graph, first, second, rules.hint, rules.settings.epilogue_first)
    offered = rules.offered_for(first.backend, first.device)
    if not offered.weigh or first.backend != second.backend:
        return kind, shared, near
    return kind, shared + offered.worth(rules.pair(*_in_order(first, second), first.backend)), near


def _in_order(first: Unit, second: Unit) -> tuple[Unit, Unit]:
    return (second, first) if second.after & first.bits else (first, second)


def _horizontal_candidates(units: list[Unit], rules: Rules, refused: set[tuple[int, int]]) -> Ranked:
    """Neighbours among units with equal horizontal-fusion keys."""
    keyed: dict[tuple[str, ...], list[Unit]] = {}
    for unit in units:
        if not unit.is_call and rules.fuses_horizontally(unit):
            keyed.setdefault(rules.horizontal_key(unit), []).append(unit)
    pairs = [(a, b) for group in keyed.values() for a, b in zip(group[::2], group[1::2], strict=False)]
    return [((0, 0, 0), i, a, b) for i, (a, b) in enumerate(pairs) if (a.bits, b.bits) not in refused]


def _merge(first: Unit, second: Unit, fusion: Fusion, alive: dict[int, Unit]) -> Unit:
    merged = merge(fusion.first, fusion.second, fusion.space, fusion.like or first)
    merged.merges = (*first.merges, *second.merges, (first.bits, second.bits))
    merged.before = (first.before | second.before) & ~merged.bits
    merged.after = (first.after | second.after) & ~merged.bits
    del alive[id(first)], alive[id(second)]
    above, below = merged.before | merged.bits, merged.after | merged.bits
    for other in alive.values():
        if other.bits & merged.before:
            other.after |= below
        if other.bits & merged.after:
            other.before |= above
    alive[id(merged)] = merged
    return merged


def order_units(units: Sequence[Unit], deps: Dependencies) -> list[Unit]:
    """Units in an order that respects all edges and stays near program order.

    A unit with a member from far behind, such as one that writes its part of a `cat` of many results, comes
    before the first unit that waits for it: what has nothing to do with it would be done first otherwise, and
    its results would wait in memory.
    """
    edges, needed = unit_edges(units, deps), [u.last for u in units]
    for i in reversed(stable_order(edges, needed)):
        for before in edges[i]:
            needed[before] = min(needed[before], needed[i])
    return [units[i] for i in stable_order(edges, needed)]


def unit_edges(units: Sequence[Unit], deps: Dependencies) -> list[set[int]]:
    """For each unit, the positions of those that it must follow."""
    owner = {m.position: i for i, u in enumerate(units) for m in u.members}
    edges: list[set[int]] = []
    for i, unit in enumerate(units):
        before: set[int] = set()
        for member in unit.members:
            for j in sorted(deps.strong[member.position] | deps.weak[member.position]):
                if j in owner and owner[j] != i:
                    before.add(owner[j])
        edges.append(before)
    return edges
