"""The choice of a kernel's configuration and, in a tournament, of the backend that generates it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from polyfuse.autotune.candidate import (
    CallStep,
    CandidateProgram,
    KernelRequest,
    Problem,
    Slot,
    Storage,
    request_kernel,
)
from polyfuse.autotune.search import TuningTask
from polyfuse.autotune.segments import Operands, Segment, around, segment, tolerance
from polyfuse.autotune.tuner import Tuner
from polyfuse.base.errors import UnsupportedError
from polyfuse.base.log import get_logger, warn_once
from polyfuse.cache.timings import FAILED, Measured
from polyfuse.ir.digest import ir_digest
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.statements import Store
from polyfuse.kit import match
from polyfuse.plugin import Backend, Config
from polyfuse.schedule import Apart, Call, Decision, Launch, Schedule
from polyfuse.symbolic import example_value

__all__ = [
    "KernelTask",
    "KernelDecision",
    "known_config",
    "remember",
    "time_fusions",
    "search_kernels",
    "spelled",
    "times_text",
]

_log = get_logger("autotune")

# As many of the losers are named as people read.
_SHOWN = 6


@dataclass(frozen=True)
class KernelDecision:
    """How a kernel is generated.

    Attributes:
        backend: by whom.
        config: in which configuration; None: as the backend likes best.
        decision: what was measured.
    """

    backend: Backend
    config: Config | None
    decision: Decision


class KernelTask(TuningTask):
    """Which configuration of which backend is fastest for one kernel."""

    def __init__(self, tuner: Tuner, kernel: Kernel, backends: Sequence[Backend], uses: int = 1) -> None:
        self.kernel = kernel
        self.uses = uses
        self.backends = tuple(backends)
        self.key = tuner.key(ir_digest(kernel), backends, kernel.device)
        self._tuner = tuner
        self._searched: set[str] = set()
        storages, self._operands = _operands(kernel)
        results = tuple(
            o.number
            for o, arg in zip(self._operands, kernel.args, strict=True)
            if isinstance(o, Slot) and arg.kind != "in"
        )
        self.problem = Problem(
            f"kernel {kernel.name} of {' '.join(s.about for s in storages[:4])}",
            kernel.device,
            tuner.timer(kernel.device).name,
            storages,
            results,
            tolerance(storages),
        )

    def opening(self) -> Sequence[CandidateProgram]:
        """What the backends offer."""
        if len(self.backends) == 1:
            return self._entries(
                (backend, config) for backend in self.backends for config in self._all(backend)
            )
        return self._entries((backend, self._all(backend)[0]) for backend in self.backends)

    def default(self) -> Sequence[CandidateProgram]:
        """The first guess of the backend that the kernel was scheduled for."""
        first = self.backends[0]
        return self._entries([(first, self._all(first)[0])])

    def around(self, best: CandidateProgram) -> Sequence[CandidateProgram]:
        """Of several backends, what else one offers that does well; then what lies around its best."""
        if best.backend is None:
            return ()
        if len(self.backends) > 1 and best.backend.name not in self._searched:
            self._searched.add(best.backend.name)
            return self._entries((best.backend, config) for config in self._all(best.backend)[1:])
        if best.config is None:
            return ()
        near = best.backend.neighbours(self.kernel, best.config)
        return self._entries((best.backend, config) for config in near)

    def decision(self, measured: Measured) -> KernelDecision | None:
        """What was measured, as a decision; None where nothing could be."""
        if measured.best is None:
            return None
        backend, config = self.backends[0], measured.best
        if len(self.backends) > 1:
            name, _, config = measured.best.partition(" ")
            backend = next(b for b in self.backends if b.name == name)
        chosen = spelled(config)
        if chosen is None:
            return None
        alone = len(self.backends) > 1 and not config
        label = measured.best if len(self.backends) > 1 else f"{backend.name} {config}".strip()
        why = times_text(measured)
        if len(measured.milliseconds) == 1:
            why += ", too small a part of the graph to look for another"
        if self.pruned:
            why += f", {self.pruned} not built, as earlier races taught"
        decision = Decision("tune", self.kernel.name, label, why)
        return KernelDecision(backend, None if alone else chosen, decision)

    def _all(self, backend: Backend) -> Sequence[Config | None]:
        return self._tuner.configs(backend, self.kernel) or (None,)

    def _entries(self, wanted: Iterable[tuple[Backend, Config | None]]) -> list[CandidateProgram]:
        out: list[CandidateProgram] = []
        for backend, config in wanted:
            text = "" if config is None else str(config)
            name = text if len(self.backends) == 1 else f"{backend.name} {text}".strip()
            step = request_kernel(backend, self.kernel, config, self._operands)
            if step is not None:
                out.append(CandidateProgram(name, (step,), backend, config))
        return out


def search_kernels(
    tuner: Tuner,
    wanted: Mapping[tuple[str, Kernel], Sequence[Backend]],
    uses: Mapping[tuple[str, Kernel], int],
    beside: float,
) -> dict[tuple[str, Kernel], KernelDecision]:
    """The fastest way to generate each kernel that has several, by (backend it was scheduled for, kernel).

    Args:
        wanted: the backends that may generate each, the first one being that it was scheduled for.
        uses: how often the graph launches each.
        beside: milliseconds that the graph spends otherwise, as far as they are known.
    """
    tasks: dict[tuple[str, Kernel], KernelTask] = {}
    for name, backends in wanted.items():
        try:
            if len(backends) > 1 or len(backends[0].configs(name[1])) > 1:
                tasks[name] = KernelTask(tuner, name[1], backends, uses[name])
        except Exception as error:
            tuner.note_trouble(backends[0], error, "offering configurations")
    answers = tuner.settle(tasks.values(), beside) if tasks else {}
    decisions = {name: task.decision(answers[task.key]) for name, task in tasks.items()}
    return {name: decision for name, decision in decisions.items() if decision is not None}


def known_config(tuner: Tuner, backend: Backend, kernel: Kernel) -> Config | None:
    """The configuration that won before; None where none did."""
    best = tuner.timings.read(tuner.key(ir_digest(kernel), (backend,), kernel.device)).best
    return None if best is None else spelled(best)


def remember(
    tuner: Tuner, backend: Backend, kernel: Kernel, times: Mapping[str, float], best: str, about: str
) -> None:
    """Keep which configuration of a kernel won a race that was about more than this kernel."""
    key = tuner.key(ir_digest(kernel), (backend,), kernel.device)
    tuner.timings.write(key, Measured(times, best, about))


def spelled(text: str) -> Config | None:
    """The configuration that prints as a text."""
    try:
        pairs = [part.partition("=") for part in text.split()]
        return Config(tuple((name, int(value)) for name, _, value in pairs))
    except ValueError:
        return None


def times_text(measured: Measured) -> str:
    """The fastest of what was measured, in words."""
    timed = sorted((ms, name) for name, ms in measured.milliseconds.items() if ms != FAILED)
    lost = sum(1 for ms in measured.milliseconds.values() if ms == FAILED)
    words = [f"{name or 'first guess'} {ms:.4f} ms" for ms, name in timed[:_SHOWN]]
    if len(timed) > _SHOWN:
        words.append(f"{len(timed) - _SHOWN} slower ones")
    if lost:
        words.append(f"{lost} failed")
    return ", ".join(words) or "nothing could be timed"


def _operands(kernel: Kernel) -> tuple[tuple[Storage, ...], tuple[Slot | int, ...]]:
    """Operands of the example sizes.

    Floating-point numbers are random: zeros and NaN are unlike anything that is worth measuring. Whole
    numbers are zero, because they may be indices.
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


FUSED, APART = "fused", "apart"

# How often what fuses otherwise, once halves are apart, is looked at again.
_MOST_ROUNDS = 3


def time_fusions(
    tuner: Tuner, schedule: Schedule, again: Callable[[Sequence[Apart]], Schedule]
) -> tuple[Schedule, list[Decision]]:
    """A schedule in which what is faster apart is apart, and what was measured; the schedule as it is, with
    one warning, where racing itself fails.

    Args:
        again: schedules the same graph with some nodes kept apart.
    """
    try:
        return _settled(tuner, schedule, again)
    except Exception as error:
        if tuner.settings.strict:
            raise
        warn_once("select", f"fusions are not timed: {type(error).__name__}: {error}")
        return schedule, []


def _settled(
    tuner: Tuner, schedule: Schedule, again: Callable[[Sequence[Apart]], Schedule]
) -> tuple[Schedule, list[Decision]]:
    apart: list[Apart] = []
    decided: set[Apart] = set()
    decisions: list[Decision] = []
    for _ in range(_MOST_ROUNDS):
        pairs = [pair for pair in _last_merges(schedule) if pair not in decided]
        if not pairs:
            break
        other = again([*apart, *pairs])
        tasks = {pair: FusionTask(tuner, pair, schedule, other) for pair in pairs}
        answers = tuner.settle(tasks.values())
        faster: list[Apart] = []
        for pair, task in tasks.items():
            measured = answers[task.key]
            decisions.append(_decision(pair, measured))
            if measured.best == APART:
                faster.append(pair)
        decided.update(pairs)
        if not faster:
            break
        apart += faster
        schedule = again(apart)
    return schedule, decisions


def _last_merges(schedule: Schedule) -> Iterator[Apart]:
    """The halves of each fused kernel, but for kernels of products, which were raced as they are, and for
    those that add up atomically, which cannot be run twice alike.
    """
    merges: dict[frozenset[str], Apart] = {}
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


def _decision(pair: Apart, measured: Measured) -> Decision:
    first, second = ("+".join(sorted(half)) for half in pair)
    return Decision("tune", f"{first} and {second}", measured.best or FUSED, times_text(measured))


class FusionTask(TuningTask):
    """Whether two halves of a kernel are faster as one."""

    baseline = FUSED

    def __init__(self, tuner: Tuner, pair: Apart, fused: Schedule, apart: Schedule) -> None:
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

    def opening(self) -> Sequence[CandidateProgram]:
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

    def around(self, best: CandidateProgram) -> Sequence[CandidateProgram]:
        """There is nothing else."""
        return ()

    def _entry(self, name: str, part: Segment) -> CandidateProgram | None:
        steps: list[CallStep | KernelRequest] = []
        for step in part.steps:
            if isinstance(step, Call):
                steps.append(self._operands.call(part.graph, step.node))
                continue
            backend = self._tuner.backend(step.backend)
            config = known_config(self._tuner, backend, step.kernel)
            launch = request_kernel(backend, step.kernel, config, self._operands.launch(part.graph, step))
            if launch is None:
                return None
            steps.append(launch)
        return CandidateProgram(name, tuple(steps))

    def _results(self) -> tuple[int, ...]:
        written = [{w for s in part.steps for w in s.writes} for part in self._segments.values()]
        buffers, numbers = self._segments[FUSED].graph.buffers, self._operands.numbers
        names = (n for n in written[0] & written[1] if n in numbers and buffers[n].dtype is not None)
        return tuple(sorted(numbers[name] for name in names))
