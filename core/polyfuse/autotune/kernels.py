"""The tuning tasks of scheduled kernels: in which configuration of which backend each is fastest, and whether
two halves of a fused one are faster apart.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from polyfuse.autotune.candidate import (
    CallStep,
    CandidateProgram,
    KernelRequest,
    Problem,
    Slot,
    Storage,
    request_kernel,
)
from polyfuse.autotune.gemm_choice import GemmSelection
from polyfuse.autotune.report import trials_text
from polyfuse.autotune.search import TuningTask
from polyfuse.autotune.segments import Operands, Segment, around, segment, tolerance
from polyfuse.autotune.tuner import Tuner
from polyfuse.base.errors import UnsupportedError, WrongCandidateError
from polyfuse.base.log import warn_once
from polyfuse.cache.timings import Candidate, Record
from polyfuse.ir.digest import ir_digest
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.nodes import Reduction
from polyfuse.ir.ops import CONTRACTIONS
from polyfuse.ir.statements import Store
from polyfuse.plugin import Backend, Config
from polyfuse.schedule import Call, Launch, Schedule, TuningDecision, Unfused
from polyfuse.symbolic import example_value

FUSED, APART = "fused", "apart"


class KernelTask(TuningTask):
    """Which configuration of which backend is fastest for one kernel.

    Attributes:
        kernel: this one.
        operands: what it is launched with.
    """

    def __init__(self, tuner: Tuner, kernel: Kernel, backends: Sequence[Backend], uses: int = 1) -> None:
        self.kernel = kernel
        self.uses = uses
        self._tuner = tuner
        self.key = tuner.key(ir_digest(kernel), backends, kernel.device)
        self._backends = {backend.name: backend for backend in backends}
        self._configs = {b.name: tuner.configs(b, kernel) or (None,) for b in backends}
        self._widened: set[str] = set()
        storages, self.operands = _operands(kernel)
        results = tuple(
            o.number
            for o, arg in zip(self.operands, kernel.args, strict=True)
            if isinstance(o, Slot) and arg.kind != "in"
        )
        self.problem = Problem(
            f"kernel {kernel.name} of {' '.join(s.about for s in storages[:4])}",
            kernel.device,
            tuner.timer(kernel.device).name,
            storages,
            results,
            tolerance(storages, {o.op for o in kernel.origins}, tuner.settings.tune_tolerances),
        )
        # the first guess of the backend that the kernel was scheduled for
        first = next(iter(self._configs))
        self.default = Candidate(first, self._configs[first][0])

    def candidates(self) -> Sequence[CandidateProgram]:
        """What the backend offers; of several backends, the first guess of each."""
        most = None if len(self._backends) == 1 else 1
        return self._programs(Candidate(n, c) for n, found in self._configs.items() for c in found[:most])

    def configs(self, backend: str) -> Sequence[Config | None]:
        """What one of the backends offers, its first guess first."""
        return self._configs[backend]

    def neighbours(self, best: CandidateProgram) -> Sequence[CandidateProgram]:
        """Of several backends, what else one offers that does well; then what differs in one decision."""
        name = best.candidate.implementation
        if len(self._backends) > 1 and name not in self._widened:
            self._widened.add(name)
            return self._programs(Candidate(name, config) for config in self._configs[name][1:])
        if best.config is None:
            return ()
        near = self._tuner.neighbours(self._backends[name], self.kernel, best.config)
        return self._programs(Candidate(name, config) for config in near)

    def program(self, candidate: Candidate) -> CandidateProgram | None:
        """The launch in one configuration."""
        backend = self._backends[candidate.implementation]
        step = request_kernel(backend, self.kernel, candidate.config, self.operands)
        return None if step is None else CandidateProgram(candidate, (step,), backend)

    def decision(self, record: Record) -> TuningDecision | None:
        """What follows from what was measured; None where nothing could be."""
        best = record.best
        if best is None:
            return None
        why = trials_text(record)
        if len(record.trials) == 1:
            why += ", too small a part of the graph to look for another"
        if self.pruned:
            why += f", {self.pruned} not built, by the cost model"
        return TuningDecision(self.kernel.name, best.candidate, record.trials, why)

    def _programs(self, candidates: Iterable[Candidate]) -> list[CandidateProgram]:
        found = map(self.program, candidates)
        return [program for program in found if program is not None]


def search_kernels(
    tuner: Tuner,
    wanted: Mapping[tuple[str, Kernel], Sequence[Backend]],
    uses: Mapping[tuple[str, Kernel], int],
    beside: float,
) -> dict[tuple[str, Kernel], TuningDecision]:
    """The fastest way to generate each kernel that has several, by (backend it was scheduled for, kernel).

    Args:
        wanted: the backends that may generate each, the first one being that it was scheduled for.
        uses: how often the graph launches each.
        beside: milliseconds that the graph spends otherwise, as far as they are known.
    """
    tasks: dict[tuple[str, Kernel], KernelTask] = {}
    for name, asked in wanted.items():
        backends = [backend for backend in asked if tuner.takes_part(backend, name[1])]
        try:
            if len(backends) > 1 or (backends and len(backends[0].configs(name[1])) > 1):
                tasks[name] = KernelTask(tuner, name[1], backends, uses[name])
        except Exception as error:  # those that take part have answered: it is the one that times them
            tuner.note_trouble(tuner.timer(name[1].device), error, "timing kernels")
    records = tuner.search(tasks.values(), beside) if tasks else {}
    found = {name: task.decision(records[task.key]) for name, task in tasks.items()}
    return {name: decision for name, decision in found.items() if decision is not None}


def _operands(kernel: Kernel) -> tuple[tuple[Storage, ...], tuple[Slot | int, ...]]:
    """Operands of the example sizes.

    Floating-point numbers are random: zeros and NaN are unlike anything that is worth measuring. Integers are
    zero, because they may be indices.
    """
    sizes = {arg.name: arg.hint if arg.hint is not None else 1 for arg in kernel.args if arg.kind == "size"}
    storages: list[Storage] = []
    operands: list[Slot | int] = []
    for arg in kernel.args:
        if arg.kind == "size":
            operands.append(sizes[arg.name])
            continue
        operands.append(Slot(len(storages)))
        count = example_value(arg.numel if arg.numel is not None else 0, sizes)
        fill = "normal" if arg.dtype.is_float and arg.kind != "out" else "zero"
        dtype = str(arg.dtype.torch).removeprefix("torch.")
        storages.append(Storage(dtype, kernel.device, max(1, count), fill, updated=arg.kind == "inout"))
    return tuple(storages), tuple(operands)


def time_fusions(tuner: Tuner, selection: GemmSelection, schedule: Schedule) -> Schedule:
    """A schedule in which what is faster apart is not fused; the schedule as it is, with one warning, where
    timing itself fails.

    Args:
        schedule: that of `selection`.
    """
    try:
        return _timed(tuner, selection, schedule)
    except WrongCandidateError:
        raise
    except Exception as error:
        if tuner.settings.strict:
            raise
        warn_once("autotune", f"fusions are not timed: {type(error).__name__}: {error}")
        return schedule


def _timed(tuner: Tuner, selection: GemmSelection, schedule: Schedule) -> Schedule:
    unfused: list[Unfused] = []
    timed: set[Unfused] = set()
    decisions: list[TuningDecision] = []
    # the merges of a kernel, and of those that replace one that is divided, are finite, but many
    for _ in range(2 * tuner.settings.max_fusion_size):
        pairs = [*_next_merges(schedule, timed)]
        if not pairs or tuner.exhausted:
            break
        other = selection.schedule(tuner, [*unfused, *pairs])
        tasks = {pair: FusionTask(tuner, pair, schedule, other) for pair in pairs}
        records = tuner.search(tasks.values())
        found = [task.decision(records[task.key]) for task in tasks.values()]
        decisions += found
        faster = [pair for pair, one in zip(pairs, found, strict=True) if one.candidate == Candidate(APART)]
        timed.update(pairs)
        if faster:
            unfused += faster
            schedule = selection.schedule(tuner, unfused)
    rows = (decision.row("tune") for decision in decisions)
    return replace(schedule, decisions=(*schedule.decisions, *rows))


def _next_merges(schedule: Schedule, timed: Collection[Unfused]) -> Iterator[Unfused]:
    """The last merge of each fused kernel that was not timed yet, but for GEMMs, which were timed as they
    are, and for those that add up atomically, which cannot be run twice alike.
    """
    for step in schedule.steps:
        if isinstance(step, Launch) and not _is_gemm(step) and not _adds(step):
            yield from [merge for merge in reversed(step.merges) if merge not in timed][:1]


def _is_gemm(step: Launch) -> bool:
    return any(isinstance(node, Reduction) and node.kind in CONTRACTIONS for node in step.nodes)


def _adds(step: Launch) -> bool:
    """Whether a kernel combines what it stores with what was there."""
    stores = (s for section in step.kernel.sections for s in section.body if isinstance(s, Store))
    return any(store.mode != "set" for store in stores)


class FusionTask(TuningTask):
    """Whether two halves of a kernel are faster as one."""

    baseline = FUSED

    def __init__(self, tuner: Tuner, pair: Unfused, fused: Schedule, apart: Schedule) -> None:
        own = pair[0] | pair[1]
        for _ in range(2):
            for schedule in (fused, apart):
                own = own.union(*(found for step in schedule.steps if (found := around(step, own))))
        self._segments = {FUSED: segment(fused, own), APART: segment(apart, own)}
        self._tuner = tuner
        self._subject = " and ".join("+".join(sorted(half)) for half in pair)
        self._operands = Operands(fused.graph.symbol_hints)
        names = {s.backend for part in self._segments.values() for s in part.steps if isinstance(s, Launch)}
        self._device = next(s.kernel.device for s in self._segments[FUSED].steps if isinstance(s, Launch))
        facts = {name: part.describe() for name, part in self._segments.items()}
        self.key = tuner.key("fusion", [tuner.backend(name) for name in sorted(names)], self._device, facts)

    def candidates(self) -> Sequence[CandidateProgram]:
        """Both ways; nothing, where something around cannot be repeated."""
        try:
            found = [self._program(Candidate(name), part) for name, part in self._segments.items()]
        except UnsupportedError:
            return ()
        about = f"{len(self._segments[APART].steps)} kernels as {len(self._segments[FUSED].steps)}"
        timer = self._tuner.timer(self._device).name
        segments, tolerances = [*self._segments.values()], self._tuner.settings.tune_tolerances
        self.problem = self._operands.problem(about, self._device, timer, segments, tolerances)
        return [program for program in found if program is not None]

    def decision(self, record: Record) -> TuningDecision:
        """What follows from what was measured: a kernel stays fused where nothing could be."""
        candidate = record.best.candidate if record.best is not None else Candidate(FUSED)
        return TuningDecision(self._subject, candidate, record.trials, trials_text(record))

    def _program(self, candidate: Candidate, part: Segment) -> CandidateProgram | None:
        steps: list[CallStep | KernelRequest] = []
        for step in part.steps:
            if isinstance(step, Call):
                steps.append(self._operands.call(part.graph, step.node))
                continue
            operands = self._operands.named(part.graph, step.operands)
            launch = request_kernel(self._tuner.backend(step.backend), step.kernel, step.config, operands)
            if launch is None:
                return None
            steps.append(launch)
        return CandidateProgram(candidate, tuple(steps))
