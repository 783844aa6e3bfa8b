"""The race for matrix products and other calls: a library's against what backends generate and plugins offer,
each with the kernels around it, on example inputs. What won is remembered, so that an equal problem is timed
once on a machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from polyfuse.base.errors import UnsupportedError
from polyfuse.base.log import get_logger
from polyfuse.ir.graph import Graph
from polyfuse.ir.nodes import View
from polyfuse.plugin import Backend, Config
from polyfuse.runtime.frozen import FROZEN
from polyfuse.schedule import Call, Decision, Launch, Schedule
from polyfuse.schedule.reductions.gemm_reductions import is_group_store, part_names
from polyfuse.schedule.schedule import schedule_graph
from polyfuse.select.choose import assign
from polyfuse.select.expand import Taken
from polyfuse.select.folds import refused_folds
from polyfuse.select.heat import Bout
from polyfuse.select.kernel_race import known_config, remember, times_text
from polyfuse.select.memo import Known, memo_key, recalled, remember_choices
from polyfuse.select.offers import FOLDS, PROLOGUE, Offer
from polyfuse.select.segments import Operands, Segment, around, node_names, segment
from polyfuse.select.sites import OBJECT, Alternative
from polyfuse.select.tolerance import tolerance
from polyfuse.select.tuner import Tuner
from polyfuse.select.work import CallWork, Operand, Problem
from polyfuse.select.workshop import Entry, Ordered, ordered
from polyfuse.symbolic import example_value

__all__ = ["LIBRARY", "race_products"]

_log = get_logger("select")

LIBRARY = "library"
"""The name of what torch calls, among those of backends."""


def race_products(
    tuner: Tuner,
    graph: Graph,
    claimed: Mapping[str, Backend],
    found: Sequence[Offer],
    decisions: list[Decision],
) -> tuple[Mapping[str, Taken], float]:
    """The calls of `graph` that something does faster than the library, with what does, and the milliseconds
    of all calls.
    """
    if not found:
        return {}, 0.0
    key = memo_key(tuner, graph, found)
    known = recalled(tuner, key, decisions)
    if known is None:
        known, settled = _raced(tuner, graph, claimed, found, decisions)
        if settled:
            remember_choices(tuner, key, decisions, known.milliseconds)
    names = known.best
    winners: dict[str, Taken] = {}
    for offer in found:
        winner = _winner(tuner, offer, *names.get(offer.call.name, LIBRARY).partition(" ")[::2])
        if winner is not None:
            winners[offer.call.name] = winner
    return winners, known.milliseconds


def _raced(
    tuner: Tuner,
    graph: Graph,
    claimed: Mapping[str, Backend],
    found: Sequence[Offer],
    decisions: list[Decision],
) -> tuple[Known, bool]:
    """What wins each race, and whether all of them could be decided."""
    bouts = {offer.call.name: bout for offer, bout in _bouts(tuner, graph, claimed, found, decisions)}
    answers = tuner.settle(bouts.values())
    names: dict[str, str] = {}
    total = 0.0
    for call, bout in bouts.items():
        measured = answers[bout.key]
        why = f"{measured.about}: {times_text(measured)}" if measured.milliseconds else "nothing was timed"
        if measured.best is None and tuner.exhausted:
            why = "the time for races is used up (`max_autotune_seconds`)"
        names[call] = measured.best or LIBRARY
        total += measured.milliseconds.get(names[call], 0.0)
        decisions.append(Decision("choice", call, names[call], why))
    return Known(names, total), all(answers[bout.key].best is not None for bout in bouts.values())


def _winner(tuner: Tuner, offer: Offer, name: str, config: str) -> Taken | None:
    """What goes by a name in the race for a call; None: the library."""
    for alternative in offer.alternatives:
        if alternative.name == name:
            if alternative.backend is None:
                return alternative.taken
            source = alternative.sources.get(config)
            if source is None:
                return None
            built = tuner.built(alternative.backend, source)
            return replace(alternative.taken, objects={alternative.key: built})
    return next((entry.taken for entry in offer.generated if entry.name == name), None)


def _bouts(
    tuner: Tuner,
    graph: Graph,
    claimed: Mapping[str, Backend],
    found: Sequence[Offer],
    decisions: list[Decision],
) -> list[tuple[Offer, ProductBout]]:
    """A bout for each product: the schedules with the library and with each backend say what they run."""
    library = schedule_graph(graph, tuner.settings, tuner.backends, claimed)
    others: dict[str, Schedule] = {}
    whole: set[str] = set()
    offered = {offer.call.name: _contestants(offer) for offer in found}
    for name in sorted({name for names in offered.values() for name in names}):
        taken = {call: names[name] for call, names in offered.items() if name in names}
        chosen = assign(graph, claimed, taken)
        others[name] = schedule_graph(
            chosen.graph, tuner.settings, tuner.backends, chosen.backends, epilogue_reductions=chosen.folded
        )
        whole |= refused_folds(tuner, others[name], decisions).keys()
    return [
        (offer, ProductBout(tuner, offer, contenders, graph.symbol_hints))
        for offer in found
        for contenders in (_contenders(offer, offered, library, others, whole),)
    ]


def _contestants(offer: Offer) -> dict[str, Taken]:
    """What is raced against the library, by name."""
    generated = {entry.name: entry.taken for entry in offer.generated}
    return generated | {alternative.name: alternative.taken for alternative in offer.alternatives}


def _nodes_of(call: str, offered: Mapping[str, Taken], contestants: Iterable[str]) -> frozenset[str]:
    """The names of all nodes that do the work of a call, whoever of some contestants does it."""
    names = {call}
    for taken in (offered[name] for name in contestants if name in offered):
        names |= {*(node.name for node in taken.nodes), *taken.removed, taken.reader} - {""}
        names.update(part for name in taken.folds for part in part_names(name))
    return frozenset(names)


@dataclass(frozen=True)
class _Contender:
    """One implementation of a product, with what runs around it.

    Attributes:
        name: the backend's, the choice's, or the library's.
        segment: the steps.
        backend: who generates it; None: the library or a choice.
        main: the launch that computes the product.
        alternative: what a choice offers.
    """

    name: str
    segment: Segment
    backend: Backend | None = None
    main: Launch | None = None
    alternative: Alternative | None = None


class ProductBout(Bout):
    """Who computes one product fastest, with what is fused into it and around it."""

    favourite = LIBRARY

    def __init__(
        self, tuner: Tuner, offer: Offer, contenders: Sequence[_Contender], hints: Mapping[str, int]
    ) -> None:
        facts = {c.name: c.segment.describe() for c in contenders}
        for other in offer.alternatives:
            facts |= {f"{other.name} {text}": source.key for text, source in other.sources.items()}
        makers = [other.backend for other in offer.alternatives if other.backend is not None]
        asked = {b.name: b for b in (*(entry.backend for entry in offer.generated), *makers)}
        self.key = tuner.key(offer.call.op, asked.values(), offer.device, facts)
        self._tuner = tuner
        self._offer = offer
        self._contenders = {c.name: c for c in contenders}
        self._hints = hints
        self._operands = Operands(hints)
        self._known: dict[str, Entry | None] = {}
        self._launches: dict[tuple[int, Config | None], Ordered | None] = {}

    def opening(self) -> Sequence[Entry]:
        """The library, and what each backend offers; nothing, where the library's call cannot be repeated."""
        try:
            entries = [e for c in self._contenders.values() for e in self._offered(c)]
        except UnsupportedError as error:
            _log.info("no race for %s: %s", self._offer.call.op, error)
            return ()
        if not entries or entries[0].name != LIBRARY:
            return ()
        device = self._offer.device
        storages = tuple(self._operands.storages)
        self.problem = Problem(
            self._about(),
            device,
            self._tuner.timer(device).name,
            storages,
            self._results(),
            tolerance(storages),
        )
        return entries

    def around(self, best: Entry) -> Sequence[Entry]:
        """What lies around a backend's best."""
        if best.backend is None or best.config is None:
            return ()
        contender = self._contenders[_contestant(best)]
        assert contender.main is not None
        kernel = contender.main.kernel
        near = (*self._tuner.configs(best.backend, kernel), *best.backend.neighbours(kernel, best.config))
        found = [self._entry(contender, config) for config in near]
        # what does well alone does so with reductions begun in it, and the other way round
        found += [
            self._entry(other, best.config)
            for other in self._contenders.values()
            if other.backend is best.backend and other is not contender and _alike(other, contender)
        ]
        return [entry for entry in found if entry is not None]

    def won(self, best: Entry, times: Mapping[str, float]) -> None:
        """Remember the configuration of the kernel too: that is how it is found when it is generated."""
        if best.backend is None or best.config is None:
            return
        main = self._contenders[_contestant(best)].main
        assert main is not None
        own = {
            name.partition(" ")[2]: ms
            for name, ms in times.items()
            if name.partition(" ")[0] == _contestant(best)
        }
        about = f"{self.problem.about}, generated by {_contestant(best)}"
        remember(self._tuner, best.backend, main.kernel, own, str(best.config), about)

    def _offered(self, contender: _Contender) -> list[Entry]:
        other = contender.alternative
        if other is not None and other.sources:
            return [
                entry for text in other.sources if (entry := self._entry(contender, None, text)) is not None
            ]
        configs: Sequence[Config | None] = (None,)
        if contender.backend is not None and contender.main is not None:
            configs = self._tuner.configs(contender.backend, contender.main.kernel) or configs
            if contender.name.endswith((PROLOGUE, FOLDS)):
                configs = configs[:1]  # a variant of what takes part anyway: more of it, where it does well
        return [e for config in configs if (e := self._entry(contender, config)) is not None]

    def _entry(self, contender: _Contender, config: Config | None, source: str = "") -> Entry | None:
        """A contender in one configuration, made once; None where it cannot be emitted."""
        text = source if config is None else str(config)
        name = f"{contender.name} {text}".strip()
        if name not in self._known:
            self._known[name] = self._made(name, contender, config, source)
        return self._known[name]

    def _made(
        self, name: str, contender: _Contender, config: Config | None, source: str = ""
    ) -> Entry | None:
        part, other = contender.segment, contender.alternative
        steps: list[CallWork | Ordered] = []
        for step in part.steps:
            if isinstance(step, Call) and step.node.op.startswith(FROZEN):
                self._operands.keep(part.graph, step.node)
            elif isinstance(step, Call):
                if other is not None and other.backend is not None and step.node.op == f"{OBJECT}{other.key}":
                    operands = self._operands.named(part.graph, other.operands)
                    steps.append(Ordered(other.backend, other.sources[source], operands))
                else:
                    steps.append(self._operands.call(part.graph, step.node))
            else:
                launch = self._launch(part.graph, step, step is contender.main, config)
                if launch is None:
                    return None
                steps.append(launch)
        return Entry(name, tuple(steps), contender.backend, config)

    def _launch(self, graph: Graph, step: Launch, main: bool, config: Config | None) -> Ordered | None:
        """A launch, emitted once for all entries that it is part of. `config` is that of the product."""
        place = id(step), config if main else None
        if place not in self._launches:
            operands = self._operands.launch(graph, step)
            self._launches[place] = next(filter(None, self._emitted(step, operands, main, config)), None)
        return self._launches[place]

    def _emitted(
        self, step: Launch, operands: tuple[Operand, ...], main: bool, config: Config | None
    ) -> Iterator[Ordered | None]:
        """A launch by each backend that may generate it: the product's own is the one that takes part, and of
        what runs around it, the next is asked where one refuses a kernel.
        """
        if main:
            yield ordered(self._tuner.backend(step.backend), step.kernel, config, operands)
            return
        for backend in self._tuner.takers(step):
            chosen = known_config(self._tuner, backend, step.kernel)
            yield ordered(backend, step.kernel, chosen, operands)

    def _results(self) -> tuple[int, ...]:
        """What every contender writes."""
        written: set[str] | None = None
        for contender in self._contenders.values():
            buffers = contender.segment.graph.buffers
            names = {w for s in contender.segment.steps for w in s.writes if buffers[w].dtype is not None}
            written = names if written is None else written & names
        numbers = self._operands.numbers
        return tuple(sorted(numbers[name] for name in written or () if name in numbers))

    def _about(self) -> str:
        call, buffers = self._offer.call, self._contenders[LIBRARY].segment.graph.buffers
        shapes = [
            f"{buffers[view.buffer].torch_dtype}[{'x'.join(self._number(n) for n in view.size)}]"
            for view in call.args
            if isinstance(view, View)
        ]
        return f"{call.op.removeprefix('aten.').partition('.')[0]} of {' '.join(shapes)}"

    def _number(self, value: object) -> str:
        return str(example_value(value, self._hints))  # type: ignore[arg-type]


def _contenders(
    offer: Offer,
    offered: Mapping[str, Mapping[str, Taken]],
    library: Schedule,
    others: Mapping[str, Schedule],
    whole: Set[str],
) -> list[_Contender]:
    """The library and all others, each with the steps that compute the same.

    Args:
        offered: what is raced for each call, by the names of the call and the contestant.
        whole: names of reductions that backends will not begin in the kernels of products.
    """
    # what other contestants would do of other calls is no matter here
    contestants = offered[offer.call.name]
    same = {call: _nodes_of(call, names, contestants) for call, names in offered.items()}
    own = same[offer.call.name]
    schedules = [library, *(others[name] for name in contestants)]
    for _ in range(2):  # what shares a step with a node that moved counts on all sides
        for schedule in schedules:
            own = own.union(*(found for s in schedule.steps if (found := around(s, own))))
        own = own.union(*(nodes for nodes in same.values() if nodes & own))
    out = [_Contender(LIBRARY, segment(library, own))]
    for entry in offer.generated:
        part, product = segment(others[entry.name], own), entry.form.product.name
        main = next((s for s in part.steps if isinstance(s, Launch) and product in node_names(s)), None)
        begun = main is not None and any(map(is_group_store, main.nodes))
        if entry.folds and (whole & set(entry.folds) or not begun):
            continue  # the reductions do not fit into the kernel
        out.append(_Contender(entry.name, part, entry.backend, main))
    for alternative in offer.alternatives:
        part = segment(others[alternative.name], own)
        out.append(_Contender(alternative.name, part, alternative=alternative))
    return out


def _alike(one: _Contender, other: _Contender) -> bool:
    """Whether all that two contenders of a backend differ in is where reductions begin."""
    return one.name.removesuffix(FOLDS) == other.name.removesuffix(FOLDS)


def _contestant(entry: Entry) -> str:
    """The name without the configuration."""
    return entry.name.partition(" ")[0]
