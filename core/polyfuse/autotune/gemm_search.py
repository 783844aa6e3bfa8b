"""The race for matrix products and other calls: a library's against what backends generate and plugins offer,
each with the kernels around it, on example inputs. What won is remembered, so that an equal problem is timed
once on a machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from polyfuse.autotune.alternatives import OBJECT, Alternative, Replacement
from polyfuse.autotune.candidate import (
    CallStep,
    CandidateProgram,
    KernelRequest,
    Operand,
    Problem,
    request_kernel,
)
from polyfuse.autotune.gemm_candidates import PROLOGUE, REDUCTIONS, TunableCall
from polyfuse.autotune.kernels import known_config, remember
from polyfuse.autotune.search import TuningTask
from polyfuse.autotune.segments import Operands, Segment, around, node_names, segment, tolerance
from polyfuse.autotune.tuner import Tuner
from polyfuse.base.errors import UnsupportedError
from polyfuse.base.log import get_logger
from polyfuse.ir.graph import Graph
from polyfuse.ir.nodes import View
from polyfuse.plugin import Backend, Config
from polyfuse.runtime.once import ONCE
from polyfuse.schedule import Call, Launch, Schedule
from polyfuse.schedule.reductions.gemm_reductions import is_fold, part_names
from polyfuse.symbolic import example_value

__all__ = ["LIBRARY", "GemmTask", "implementations_of", "replacements_of"]

_log = get_logger("autotune")

LIBRARY = "library"
"""The name of what torch calls, among those of backends."""


def replacements_of(offer: TunableCall) -> dict[str, Replacement]:
    """What is raced against the library, by name."""
    generated = {entry.name: entry.taken for entry in offer.generated}
    return generated | {alternative.name: alternative.taken for alternative in offer.alternatives}


def _nodes_of(call: str, offered: Mapping[str, Replacement], tried: Iterable[str]) -> frozenset[str]:
    """The names of all nodes that do the work of a call in any of the replacements that are tried."""
    names = {call}
    for taken in (offered[name] for name in tried if name in offered):
        names |= {*(node.name for node in taken.nodes), *taken.removed, taken.reader} - {""}
        names.update(part for name in taken.folds for part in part_names(name))
    return frozenset(names)


@dataclass(frozen=True)
class _Implementation:
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


class GemmTask(TuningTask):
    """Who computes one product fastest, with what is fused into it and around it."""

    baseline = LIBRARY

    def __init__(
        self,
        tuner: Tuner,
        offer: TunableCall,
        implementations: Sequence[_Implementation],
        hints: Mapping[str, int],
    ) -> None:
        facts = {c.name: c.segment.describe() for c in implementations}
        for other in offer.alternatives:
            facts |= {f"{other.name} {text}": source.key for text, source in other.sources.items()}
        makers = [other.backend for other in offer.alternatives if other.backend is not None]
        asked = {b.name: b for b in (*(entry.backend for entry in offer.generated), *makers)}
        self.key = tuner.key(offer.call.op, asked.values(), offer.device, facts)
        self._tuner = tuner
        self._offer = offer
        self._implementations = {c.name: c for c in implementations}
        self._hints = hints
        self._operands = Operands(hints)
        self._known: dict[str, CandidateProgram | None] = {}
        self._launches: dict[tuple[int, Config | None], KernelRequest | None] = {}

    def opening(self) -> Sequence[CandidateProgram]:
        """The library, and what each backend offers; nothing, where the library's call cannot be repeated."""
        try:
            entries = [e for c in self._implementations.values() for e in self._offered(c)]
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

    def around(self, best: CandidateProgram) -> Sequence[CandidateProgram]:
        """What lies around a backend's best."""
        if best.backend is None or best.config is None:
            return ()
        implementation = self._implementations[_implementation_of(best)]
        assert implementation.main is not None
        kernel = implementation.main.kernel
        near = (*self._tuner.configs(best.backend, kernel), *best.backend.neighbours(kernel, best.config))
        found = [self._entry(implementation, config) for config in near]
        # what does well alone does so with reductions begun in it, and the other way round
        found += [
            self._entry(other, best.config)
            for other in self._implementations.values()
            if other.backend is best.backend and other is not implementation and _alike(other, implementation)
        ]
        return [entry for entry in found if entry is not None]

    def won(self, best: CandidateProgram, times: Mapping[str, float]) -> None:
        """Remember the configuration of the kernel too: that is how it is found when it is generated."""
        if best.backend is None or best.config is None:
            return
        main = self._implementations[_implementation_of(best)].main
        assert main is not None
        own = {
            name.partition(" ")[2]: ms
            for name, ms in times.items()
            if name.partition(" ")[0] == _implementation_of(best)
        }
        about = f"{self.problem.about}, generated by {_implementation_of(best)}"
        remember(self._tuner, best.backend, main.kernel, own, str(best.config), about)

    def _offered(self, implementation: _Implementation) -> list[CandidateProgram]:
        other = implementation.alternative
        if other is not None and other.sources:
            return [
                entry
                for text in other.sources
                if (entry := self._entry(implementation, None, text)) is not None
            ]
        configs: Sequence[Config | None] = (None,)
        if implementation.backend is not None and implementation.main is not None:
            configs = self._tuner.configs(implementation.backend, implementation.main.kernel) or configs
            if implementation.name.endswith((PROLOGUE, REDUCTIONS)):
                configs = configs[:1]  # a variant of what takes part anyway: more of it, where it does well
        return [e for config in configs if (e := self._entry(implementation, config)) is not None]

    def _entry(
        self, implementation: _Implementation, config: Config | None, source: str = ""
    ) -> CandidateProgram | None:
        """A implementation in one configuration, made once; None where it cannot be emitted."""
        text = source if config is None else str(config)
        name = f"{implementation.name} {text}".strip()
        if name not in self._known:
            self._known[name] = self._made(name, implementation, config, source)
        return self._known[name]

    def _made(
        self, name: str, implementation: _Implementation, config: Config | None, source: str = ""
    ) -> CandidateProgram | None:
        part, other = implementation.segment, implementation.alternative
        steps: list[CallStep | KernelRequest] = []
        for step in part.steps:
            if isinstance(step, Call) and step.node.op.startswith(ONCE):
                self._operands.keep(part.graph, step.node)
            elif isinstance(step, Call):
                if other is not None and other.backend is not None and step.node.op == f"{OBJECT}{other.key}":
                    operands = self._operands.named(part.graph, other.operands)
                    steps.append(KernelRequest(other.backend, other.sources[source], operands))
                else:
                    steps.append(self._operands.call(part.graph, step.node))
            else:
                launch = self._launch(part.graph, step, step is implementation.main, config)
                if launch is None:
                    return None
                steps.append(launch)
        return CandidateProgram(name, tuple(steps), implementation.backend, config)

    def _launch(self, graph: Graph, step: Launch, main: bool, config: Config | None) -> KernelRequest | None:
        """A launch, emitted once for all entries that it is part of. `config` is that of the product."""
        place = id(step), config if main else None
        if place not in self._launches:
            operands = self._operands.launch(graph, step)
            self._launches[place] = next(filter(None, self._emitted(step, operands, main, config)), None)
        return self._launches[place]

    def _emitted(
        self, step: Launch, operands: tuple[Operand, ...], main: bool, config: Config | None
    ) -> Iterator[KernelRequest | None]:
        """A launch by each backend that may generate it: the product's own is the one that takes part, and of
        what runs around it, the next is asked where one refuses a kernel.
        """
        if main:
            yield request_kernel(self._tuner.backend(step.backend), step.kernel, config, operands)
            return
        for backend in self._tuner.claiming_backends(step):
            chosen = known_config(self._tuner, backend, step.kernel)
            yield request_kernel(backend, step.kernel, chosen, operands)

    def _results(self) -> tuple[int, ...]:
        """What every implementation writes."""
        written: set[str] | None = None
        for implementation in self._implementations.values():
            buffers = implementation.segment.graph.buffers
            names = {
                w for s in implementation.segment.steps for w in s.writes if buffers[w].dtype is not None
            }
            written = names if written is None else written & names
        numbers = self._operands.numbers
        return tuple(sorted(numbers[name] for name in written or () if name in numbers))

    def _about(self) -> str:
        call, buffers = self._offer.call, self._implementations[LIBRARY].segment.graph.buffers
        shapes = [
            f"{buffers[view.buffer].torch_dtype}[{'x'.join(self._number(n) for n in view.size)}]"
            for view in call.args
            if isinstance(view, View)
        ]
        return f"{call.op.removeprefix('aten.').partition('.')[0]} of {' '.join(shapes)}"

    def _number(self, value: object) -> str:
        return str(example_value(value, self._hints))  # type: ignore[arg-type]


def implementations_of(
    offer: TunableCall,
    offered: Mapping[str, Mapping[str, Replacement]],
    library: Schedule,
    others: Mapping[str, Schedule],
    whole: Set[str],
) -> list[_Implementation]:
    """The library and all others, each with the steps that compute the same.

    Args:
        offered: what is raced for each call, by the names of the call and the contestant.
        whole: names of reductions that backends will not begin in the kernels of products.
    """
    # what other names would do of other calls is no matter here
    own_names = offered[offer.call.name]
    same = {call: _nodes_of(call, names, own_names) for call, names in offered.items()}
    own = same[offer.call.name]
    schedules = [library, *(others[name] for name in own_names)]
    for _ in range(2):  # what shares a step with a node that moved counts on all sides
        for schedule in schedules:
            own = own.union(*(found for s in schedule.steps if (found := around(s, own))))
        own = own.union(*(nodes for nodes in same.values() if nodes & own))
    out = [_Implementation(LIBRARY, segment(library, own))]
    for entry in offer.generated:
        part, product = segment(others[entry.name], own), entry.form.product.name
        main = next((s for s in part.steps if isinstance(s, Launch) and product in node_names(s)), None)
        if entry.folds and (main is None or whole & set(entry.folds) or not any(map(is_fold, main.nodes))):
            continue  # the reductions do not fit into the kernel
        out.append(_Implementation(entry.name, part, entry.backend, main))
    for alternative in offer.alternatives:
        part = segment(others[alternative.name], own)
        out.append(_Implementation(alternative.name, part, alternative=alternative))
    return out


def _alike(one: _Implementation, other: _Implementation) -> bool:
    """Whether all that two implementations of a backend differ in is where reductions begin."""
    return one.name.removesuffix(REDUCTIONS) == other.name.removesuffix(REDUCTIONS)


def _implementation_of(entry: CandidateProgram) -> str:
    """The name without the configuration."""
    return entry.name.partition(" ")[0]
