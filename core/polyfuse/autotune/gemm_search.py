"""The tuning task of one matmul, convolution or other call: what a library does is timed against what
backends generate and plugins offer, each with the kernels around it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from polyfuse.autotune.alternatives import OBJECT, Alternative, Replacement
from polyfuse.autotune.candidate import (
    CallStep,
    CandidateProgram,
    KernelRequest,
    Operand,
    request_kernel,
)
from polyfuse.autotune.gemm_candidates import GeneratedGemm, TunableCall
from polyfuse.autotune.pruning import first_few, promising
from polyfuse.autotune.search import TuningTask
from polyfuse.autotune.segments import Operands, Segment, around, node_names, segment
from polyfuse.autotune.tuner import Tuner
from polyfuse.base.errors import UnsupportedError
from polyfuse.base.log import get_logger
from polyfuse.cache.timings import Candidate
from polyfuse.ir.graph import Graph
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.nodes import View
from polyfuse.plugin import Config
from polyfuse.runtime.frozen import FROZEN
from polyfuse.schedule import Launch, Schedule
from polyfuse.schedule.reductions.gemm_reductions import is_group_store, part_names
from polyfuse.symbolic import example_value

_log = get_logger("autotune")

LIBRARY = "library"
"""The name of what torch calls, among those of backends."""


@dataclass(frozen=True)
class Implementation:
    """One implementation of a call, with what runs around it.

    Attributes:
        name: the backend's, the choice's, or the library's.
        segment: the steps.
        generated: what a backend generates; with `main`, the launch that computes the sum of products.
        alternative: what a plugin's choice offers.
    """

    name: str
    segment: Segment
    generated: GeneratedGemm | None = None
    main: Launch | None = None
    alternative: Alternative | None = None


class GemmTask(TuningTask):
    """Which implementation of one call is fastest, with what is fused into it and around it."""

    baseline = LIBRARY

    def __init__(
        self,
        tuner: Tuner,
        tunable: TunableCall,
        implementations: Sequence[Implementation],
        hints: Mapping[str, int],
    ) -> None:
        facts = {i.name: i.segment.describe() for i in implementations}
        for other in tunable.alternatives:
            named = ((Candidate(other.name, config), source) for config, source in other.sources.items())
            facts |= {str(candidate): source.key for candidate, source in named}
        makers = [other.backend for other in tunable.alternatives if other.backend is not None]
        asked = {b.name: b for b in (*(entry.backend for entry in tunable.generated), *makers)}
        self.key = tuner.key(tunable.call.op, asked.values(), tunable.device, facts)
        self._tuner = tuner
        self._tunable = tunable
        self._implementations = {i.name: i for i in implementations}
        self._hints = hints
        self._operands = Operands(hints)
        self._programs: dict[Candidate, CandidateProgram | None] = {}
        self._launches: dict[tuple[int, Config | None], KernelRequest | None] = {}

    def candidates(self) -> Sequence[CandidateProgram]:
        """The library, and what each backend offers; nothing, where the library's call cannot be repeated."""
        try:
            wanted = [
                Candidate(i.name, config)
                for i in self._implementations.values()
                for config in self._configs(i)
            ]
            programs = self._made(wanted)
        except UnsupportedError as error:
            _log.info("%s is not timed: %s", self._tunable.call.op, error)
            return ()
        if not programs or programs[0].name != LIBRARY:
            return ()
        device = self._tunable.device
        segments = [i.segment for i in self._implementations.values()]
        timer, tolerances = self._tuner.timer(device).name, self._tuner.settings.tune_tolerances
        self.problem = self._operands.problem(self._about(), device, timer, segments, tolerances)
        return programs

    def neighbours(self, best: CandidateProgram) -> Sequence[CandidateProgram]:
        """What else a backend offers that does well, and what differs from its best in one decision."""
        if best.backend is None or best.config is None:
            return ()
        own = self._implementations[best.candidate.implementation]
        assert own.main is not None and own.generated is not None
        kernel = own.main.kernel
        offered = self._tuner.configs(best.backend, kernel)
        around = self._tuner.neighbours(best.backend, kernel, best.config)
        near = promising(best.backend, kernel, best.config, (*offered, *around))
        wanted = [Candidate(own.name, config) for config in near]
        # what does well alone does so with reductions in its epilogue, and the other way round
        wanted += [
            Candidate(other.name, best.config)
            for other in self._implementations.values()
            if other is not own
            and other.generated is not None
            and (other.generated.backend, other.generated.form) == (best.backend, own.generated.form)
        ]
        return self._made(wanted)

    @property
    def operands(self) -> Mapping[str, int]:
        """Storages of the problem by the names of their buffers, known after `candidates`."""
        return self._operands.numbers

    @property
    def segment(self) -> Segment:
        """The steps that are timed, as the library does the call."""
        return self._implementations[LIBRARY].segment

    def replacement(self, candidate: Candidate) -> Replacement | None:
        """What is done instead of the call; None: the library does it."""
        own = self._implementations.get(candidate.implementation)
        if own is not None and own.generated is not None:
            return own.generated.replacement
        other = own.alternative if own is not None else None
        if other is None or other.backend is None:
            return other.replacement if other is not None else None
        source = other.sources.get(candidate.config)
        if source is None:
            return None
        return replace(other.replacement, objects={other.key: self._tuner.built(other.backend, source)})

    def kernel(self, candidate: Candidate) -> Kernel | None:
        """The kernel that a candidate's configuration is of."""
        own = self._implementations.get(candidate.implementation)
        return own.main.kernel if own is not None and own.main is not None else None

    def _configs(self, own: Implementation) -> Sequence[Config | None]:
        """Those of the first round; none where the backend refuses the kernel."""
        if own.alternative is not None and own.alternative.sources:
            return list(own.alternative.sources)
        if own.generated is None or own.main is None:
            return (None,)
        if not self._tuner.takes_part(own.generated.backend, own.main.kernel):
            return ()
        backend, kernel = own.generated.backend, own.main.kernel
        found = first_few(backend, kernel, self._tuner.configs(backend, kernel)) or (None,)
        # of a variant of what is tried anyway, more only where it does well
        return found[:1] if own.generated.removed or own.generated.reductions else found

    def _made(self, wanted: Iterable[Candidate]) -> list[CandidateProgram]:
        """The programs of candidates, each made once, without those that cannot be generated."""
        for candidate in wanted:
            if candidate not in self._programs:
                self._programs[candidate] = self._program(candidate)
        found = (self._programs[candidate] for candidate in dict.fromkeys(wanted))
        return [program for program in found if program is not None]

    def _program(self, candidate: Candidate) -> CandidateProgram | None:
        own = self._implementations[candidate.implementation]
        part, other = own.segment, own.alternative
        steps: list[CallStep | KernelRequest] = []
        for step in part.steps:
            if isinstance(step, Launch):
                launch = self._launch(part.graph, step, step is own.main, candidate.config)
                if launch is None:
                    return None
                steps.append(launch)
            elif step.node.op.startswith(FROZEN):
                self._operands.freeze(part.graph, step.node)
            elif other is not None and other.backend is not None and step.node.op == f"{OBJECT}{other.key}":
                operands = self._operands.named(part.graph, other.operands)
                steps.append(KernelRequest(other.backend, other.sources[candidate.config], operands))
            else:
                steps.append(self._operands.call(part.graph, step.node))
        return CandidateProgram(
            candidate, tuple(steps), own.generated.backend if own.generated is not None else None
        )

    def _launch(self, graph: Graph, step: Launch, main: bool, config: Config | None) -> KernelRequest | None:
        """A launch, emitted once for all programs that it is part of. `config` is that of the main launch."""
        key = id(step), config if main else None
        if key not in self._launches:
            operands = self._operands.named(graph, step.operands)
            self._launches[key] = next(filter(None, self._emitted(step, operands, main, config)), None)
        return self._launches[key]

    def _emitted(
        self, step: Launch, operands: tuple[Operand, ...], main: bool, config: Config | None
    ) -> Iterator[KernelRequest | None]:
        """A launch by each backend that may generate it: the main one by its own alone, and of what runs
        around it, the next is asked where one refuses a kernel.
        """
        if main:
            yield request_kernel(self._tuner.backend(step.backend), step.kernel, config, operands)
            return
        for backend in self._tuner.claiming_backends(step):
            yield request_kernel(backend, step.kernel, None, operands)

    def _about(self) -> str:
        call, buffers = self._tunable.call, self._implementations[LIBRARY].segment.graph.buffers
        shapes = [
            f"{buffers[view.buffer].torch_dtype}[{'x'.join(self._number(n) for n in view.size)}]"
            for view in call.args
            if isinstance(view, View)
        ]
        return f"{call.op.removeprefix('aten.').partition('.')[0]} of {' '.join(shapes)}"

    def _number(self, value: object) -> str:
        return str(example_value(value, self._hints))  # type: ignore[arg-type]


def implementations_of(
    tunable: TunableCall,
    tried: Mapping[str, Mapping[str, Replacement]],
    library: Schedule,
    others: Mapping[str, Schedule],
    refused: Set[str],
) -> list[Implementation]:
    """The library and all others, each with the steps that compute the same.

    Args:
        tried: what is tried instead of each call, by the names of the call and the implementation.
        library: the schedule in which libraries do all calls.
        others: the schedules with each of the other implementations.
        refused: names of reductions that backends will not begin in the epilogues of GEMMs.
    """
    # what other implementations would do of other calls does not matter here
    own_names = tried[tunable.call.name]
    same = {call: _nodes_of(call, replacements, own_names) for call, replacements in tried.items()}
    own = same[tunable.call.name]
    schedules = [library, *(others[name] for name in own_names)]
    for _ in range(2):  # what shares a step with a node that moved counts on all sides
        for schedule in schedules:
            own = own.union(*(found for s in schedule.steps if (found := around(s, own))))
        own = own.union(*(nodes for nodes in same.values() if nodes & own))
    out = [Implementation(LIBRARY, segment(library, own))]
    for entry in tunable.generated:
        part, gemm = segment(others[entry.name], own), entry.form.gemm.name
        main = next((s for s in part.steps if isinstance(s, Launch) and gemm in node_names(s)), None)
        if entry.reductions and (
            main is None or refused & set(entry.reductions) or not any(map(is_group_store, main.nodes))
        ):
            continue  # the reductions do not fit into the kernel
        out.append(Implementation(entry.name, part, entry, main))
    for alternative in tunable.alternatives:
        part = segment(others[alternative.name], own)
        out.append(Implementation(alternative.name, part, alternative=alternative))
    return out


def _nodes_of(call: str, replacements: Mapping[str, Replacement], own_names: Iterable[str]) -> frozenset[str]:
    """The names of all nodes that do the work of a call, in any of some implementations."""
    names = {call}
    for found in (replacements[name] for name in own_names if name in replacements):
        names |= {*(node.name for node in found.nodes), *found.removed, found.reader} - {""}
        names.update(part for name in found.reductions for part in part_names(name))
    return frozenset(names)
