"""Fusion decided by timing: of each fused kernel, the two halves that were merged last are timed apart as
well, and stay apart where that is faster.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from polyfuse.base.errors import UnsupportedError
from polyfuse.base.log import warn_once
from polyfuse.cache.timings import Measured
from polyfuse.ir.statements import Store
from polyfuse.kit import match
from polyfuse.schedule import Call, Decision, Launch, Schedule, Unfused
from polyfuse.schedule.schedule import schedule_graph
from polyfuse.select.choose import Chosen
from polyfuse.select.heat import Bout
from polyfuse.select.kernel_race import known_config, times_text
from polyfuse.select.segments import Operands, Segment, around, segment
from polyfuse.select.tolerance import tolerance
from polyfuse.select.tuner import Tuner
from polyfuse.select.work import CallWork, Problem
from polyfuse.select.workshop import Entry, Ordered, ordered

__all__ = ["settle_fusions"]

FUSED, APART = "fused", "apart"

# How often what fuses otherwise, once halves are apart, is looked at again.
_MOST_ROUNDS = 3


def settle_fusions(
    tuner: Tuner, chosen: Chosen, schedule: Schedule
) -> tuple[Schedule, list[Decision]]:
    """A schedule in which what is faster apart is apart, and what was measured; the schedule as it is, with
    one warning, where racing itself fails. `schedule` is that of the graph that was chosen.
    """
    try:
        return _settled(tuner, chosen, schedule)
    except Exception as error:
        if tuner.settings.strict:
            raise
        warn_once("select", f"fusions are not timed: {type(error).__name__}: {error}")
        return schedule, []


def _settled(tuner: Tuner, chosen: Chosen, schedule: Schedule) -> tuple[Schedule, list[Decision]]:
    again = partial(
        schedule_graph,
        chosen.graph,
        tuner.settings,
        tuner.backends,
        chosen.backends,
        epilogue_reductions=chosen.folded,
    )
    apart: list[Unfused] = []
    decided: set[Unfused] = set()
    decisions: list[Decision] = []
    for _ in range(_MOST_ROUNDS):
        pairs = [pair for pair in _last_merges(schedule) if pair not in decided]
        if not pairs:
            break
        other = again(unfused=[*apart, *pairs])
        bouts = {pair: FusionBout(tuner, pair, schedule, other) for pair in pairs}
        answers = tuner.settle(bouts.values())
        faster: list[Unfused] = []
        for pair, bout in bouts.items():
            measured = answers[bout.key]
            decisions.append(_decision(pair, measured))
            if measured.best == APART:
                faster.append(pair)
        decided.update(pairs)
        if not faster:
            break
        apart += faster
        schedule = again(unfused=apart)
    return schedule, decisions


def _last_merges(schedule: Schedule) -> Iterator[Unfused]:
    """The halves of each fused kernel, but for kernels of products, which were raced as they are, and for
    those that add up atomically, which cannot be run twice alike.
    """
    merges: dict[frozenset[str], Unfused] = {}
    for decision in schedule.decisions:
        if decision.kind == "fuse":
            first, second = (frozenset(names.split("+")) for names in (decision.first, decision.second))
            merges[first | second] = first, second
    for step in schedule.steps:
        if isinstance(step, Launch) and match(step.kernel) is None and not _adds(step):
            pair = merges.get(frozenset(node.name for node in step.nodes))
            if pair is not None:
                yield pair


def _adds(step: Launch) -> bool:
    """Whether a kernel combines what it stores with what was there."""
    stores = (s for section in step.kernel.sections for s in section.body if isinstance(s, Store))
    return any(store.mode != "set" for store in stores)


def _decision(pair: Unfused, measured: Measured) -> Decision:
    first, second = ("+".join(sorted(half)) for half in pair)
    return Decision("tune", f"{first} and {second}", measured.best or FUSED, times_text(measured))


class FusionBout(Bout):
    """Whether two halves of a kernel are faster as one."""

    favourite = FUSED

    def __init__(self, tuner: Tuner, pair: Unfused, fused: Schedule, apart: Schedule) -> None:
        own = pair[0] | pair[1]
        for _ in range(2):
            for schedule in (fused, apart):
                own = own.union(*(found for step in schedule.steps if (found := around(step, own))))
        self._segments = {FUSED: segment(fused, own), APART: segment(apart, own)}
        self._tuner = tuner
        self._operands = Operands(fused.graph.symbol_hints)
        names = {s.backend for part in self._segments.values() for s in part.steps if isinstance(s, Launch)}
        device = next(s.kernel.device for s in self._segments[FUSED].steps if isinstance(s, Launch))
        facts = {name: part.describe() for name, part in self._segments.items()}
        self.key = tuner.key("fusion", [tuner.backend(name) for name in sorted(names)], device, facts)
        self._device = device

    def opening(self) -> Sequence[Entry]:
        """Both ways; nothing, where something around cannot be repeated."""
        try:
            found = [self._entry(name, part) for name, part in self._segments.items()]
        except UnsupportedError:
            return ()
        storages = tuple(self._operands.storages)
        self.problem = Problem(
            f"{len(self._segments[APART].steps)} kernels as {len(self._segments[FUSED].steps)}",
            self._device,
            self._tuner.timer(self._device).name,
            storages,
            self._results(),
            tolerance(storages),
        )
        return [entry for entry in found if entry is not None]

    def around(self, best: Entry) -> Sequence[Entry]:
        """There is nothing else."""
        return ()

    def _entry(self, name: str, part: Segment) -> Entry | None:
        steps: list[CallWork | Ordered] = []
        for step in part.steps:
            if isinstance(step, Call):
                steps.append(self._operands.call(part.graph, step.node))
                continue
            backend = self._tuner.backend(step.backend)
            config = known_config(self._tuner, backend, step.kernel)
            launch = ordered(backend, step.kernel, config, self._operands.launch(part.graph, step))
            if launch is None:
                return None
            steps.append(launch)
        return Entry(name, tuple(steps))

    def _results(self) -> tuple[int, ...]:
        written = [{w for s in part.steps for w in s.writes} for part in self._segments.values()]
        buffers, numbers = self._segments[FUSED].graph.buffers, self._operands.numbers
        names = (n for n in written[0] & written[1] if n in numbers and buffers[n].dtype is not None)
        return tuple(sorted(numbers[name] for name in names))
