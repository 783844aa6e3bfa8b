"""What races need of a session, and how several of them are run: built together, timed one after another,
remembered.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

import torch

from polyfuse.autotune.alternatives import Alternative, alternatives, fixed_inputs
from polyfuse.autotune.benchmark import threads
from polyfuse.autotune.candidate import BuiltCall, CandidateBuilder, WorkerSetup
from polyfuse.autotune.pruning import CostModels, kernels_of, worth_building
from polyfuse.autotune.report import ProgressTable, append_log
from polyfuse.autotune.search import Search, TrialRules, TuningTask
from polyfuse.autotune.worker import InProcessRunner, TrialRunner, WorkerRunner
from polyfuse.base.log import get_logger
from polyfuse.base.settings import Settings
from polyfuse.cache import KernelStore
from polyfuse.cache.samples import SampleStore
from polyfuse.cache.timings import FAILED, Measured, TimingStore, timing_key
from polyfuse.ir.graph import Graph
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.nodes import Node, TemplateCall
from polyfuse.plugin import Backend, Config, Extensions, Source, State
from polyfuse.schedule import Decision, Launch
from polyfuse.torch_compat.devices.precision import library_flags
from polyfuse.workers import BuildPool

__all__ = ["Tuner", "note_default", "negligible", "with_default"]

_log = get_logger("autotune")

# Two races at once, in any session, would disturb each other's measurements.
_TIMING = threading.Lock()


class Tuner:
    """The races of a session.

    Attributes:
        settings: the options.
        timings: keeps what was measured.
        spent: seconds that races took so far.
    """

    def __init__(
        self, settings: Settings, extensions: Extensions, pool: BuildPool, store: KernelStore
    ) -> None:
        self.settings = settings
        self.timings = TimingStore(store.root)
        self.spent = 0.0
        self._extensions = extensions
        self._plugins = extensions.plugins
        self._pool = pool
        self._store = store
        self._runner: TrialRunner | None = None
        self._until = math.inf
        self._cost_models = CostModels(SampleStore(store.root), self._group)
        self._pruned: dict[tuple[str, Kernel], int] = {}

    # Who takes part.

    def backends(self, device_type: str) -> Iterator[Backend]:
        """Usable backends for a device type, in the order in which they are asked."""
        return self._plugins.each_backend(device_type)

    def backend(self, name: str) -> Backend:
        """A backend by name."""
        return self._plugins.backend(name)

    def claiming_backends(self, step: Launch) -> Iterator[Backend]:
        """The backend that a launch was scheduled for, then the others that claim all its nodes, each loaded
        when reached: a kernel is more than its nodes, so that the first may refuse it.
        """
        yield self.backend(step.backend)
        for backend in self.backends(step.kernel.device):
            if backend.name != step.backend and all(_claims(backend, node) for node in step.nodes):
                yield backend

    def timer(self, device: str) -> Backend:
        """The backend that knows how to time work on a device."""
        return next(iter(self.backends(device.partition(":")[0])))

    def configs(self, backend: Backend, kernel: Kernel) -> Sequence[Config]:
        """The configurations of a kernel worth building: by the backend's own estimate, if it has one, and by
        what earlier races taught.
        """
        offered = backend.configs(kernel)
        default = worth_building(backend, kernel, offered, self.settings.tune_candidates)
        if not self.settings.tune_cost_model:
            return default
        short = self._cost_models.prune(backend, kernel, offered, default)
        if short.pruned:
            self._pruned[backend.name, kernel] = short.pruned
        return short.configs

    def expect(self) -> None:
        """Start the process that times, where races are wanted and nothing is known of this machine yet: it
        imports torch while the graph is still captured.
        """
        settings = self.settings
        if settings.races and not settings.tune_in_process and self._runner is None and self.timings.empty:
            with contextlib.suppress(OSError):  # whoever times first will meet it again
                self._ready()

    def choices(
        self, graph: Graph, decisions: list[Decision], known: bool = False
    ) -> Callable[[TemplateCall, str], Sequence[Alternative]]:
        """What plugins offer for calls of a graph, or are sure of; every refusal becomes a decision."""
        static, freezing = fixed_inputs(graph), self.settings.freezing

        def of(call: TemplateCall, device_type: str) -> Sequence[Alternative]:
            offered = self._extensions.choices(device_type)
            most = self.settings.tune_candidates
            if not offered:
                return ()
            return alternatives(graph, call, offered, self._plugins, most, decisions, known, freezing, static)

        return of

    def kept(self, graph: Graph) -> frozenset[str]:
        """The parameters of a graph whose layout may be kept: with freezing, where no gradients are."""
        return fixed_inputs(graph) if self.settings.freezing and graph.kind == "inference" else frozenset()

    def built(self, backend: Backend, source: Source) -> BuiltCall:
        """A kernel to call, which is built meanwhile."""
        return BuiltCall(self._pool.submit(backend, [source], self._store), source.key)

    def note_trouble(self, backend: Backend, error: Exception, doing: str) -> None:
        """Record, and warn once, that a backend raised."""
        self._plugins.note_trouble(backend.name, error, doing)

    # What is remembered.

    def key(
        self, what: str, backends: Iterable[Backend], device: str, facts: Mapping[str, str] | None = None
    ) -> str:
        """The address of an answer: it holds all that it depends on."""
        asked = list(backends)
        known = dict(facts or {})
        for backend in asked:
            prefix = f"{backend.name} " if len(asked) > 1 else ""
            known |= {f"{prefix}{name}": value for name, value in backend.describe().items()}
        known["torch"] = torch.__version__
        known["verified"] = str(self.settings.tune_verify)
        if device.startswith("cpu"):
            known["threads"] = str(threads())
        names = "+".join(b.name for b in asked)
        return timing_key(what, names, known, self.timer(device).machine())

    def _group(self, kind: str, backend: Backend, device: str) -> str:
        """The address of what races taught of a kind of kernel."""
        return self.key(f"samples of {kind}", (backend,), device)

    # Races.

    @property
    def exhausted(self) -> bool:
        """Whether the time for races in this session is used up."""
        most = self.settings.max_autotune_seconds
        return bool(most) and self.spent >= most

    def settle(self, tasks: Iterable[TuningTask], beside: float | None = None) -> Mapping[str, Measured]:
        """The answers to questions, by key; those measured before are not measured again.

        Args:
            beside: milliseconds that the graph spends on other things; with it, what is a small part of the
                whole is not searched (`select/shares.py`).
        """
        wanted = {task.key: task for task in tasks}
        answers = {key: self.timings.read(key) for key in wanted}
        if beside is not None:
            answers |= negligible(self.timings, wanted.values(), answers, beside)
        fresh = [task for key, task in wanted.items() if answers[key].best is None]
        if fresh and not self.exhausted:
            start = time.monotonic()
            most = self.settings.max_autotune_seconds
            self._until = start + most - self.spent if most else math.inf
            try:
                with _TIMING, self.timings.exclusive(self.settings.build_timeout):
                    if beside is not None and len(wanted) + bool(beside) > 1:
                        self._time_defaults(fresh)
                        answers |= negligible(self.timings, wanted.values(), answers, beside)
                    answers |= self._settle([b for b in fresh if answers[b.key].best is None])
            finally:
                self.spent += time.monotonic() - start
        return answers

    def _time_defaults(self, tasks: Sequence[TuningTask]) -> None:
        """Time each once as it is without tuning, and remember that."""
        searches: list[Search] = []
        for task in tasks:
            search = Search(task, Measured())
            if self.timings.noted(task.key) is None and search.enter(task.default()):
                searches.append(search)
        if not searches:
            return
        runner, builder = self._ready(), CandidateBuilder(self._pool, self._store, self._until)
        builder.begin([entry for search in searches for entry in search.pending()])
        builder.wait()
        for search in searches:
            search.time(runner, builder, replace(self._rules(search), alone=True))
            note_default(self.timings, search)

    def _settle(self, tasks: Sequence[TuningTask]) -> dict[str, Measured]:
        # another process may have measured while this one waited
        answers = {task.key: self.timings.read(task.key) for task in tasks}
        unsettled = [task for task in tasks if answers[task.key].best is None]
        searches = [
            Search(task, with_default(self.timings, task.key, answers[task.key])) for task in unsettled
        ]
        if not searches:
            return answers
        runner = self._ready()
        most = self.settings.max_autotune_seconds
        progress = ProgressTable(self.settings, max(0.0, most - self.spent))
        try:
            opened = self._search(runner, searches, progress)
            for search in opened:
                answers[search.task.key] = self._closed(search, progress)
        finally:
            progress.close()
            self._pruned.clear()
            self._cost_models.renew()
        return answers

    def _search(
        self, runner: TrialRunner, searches: Sequence[Search], progress: ProgressTable
    ) -> list[Search]:
        """Run all rounds of all searches that have somebody to time; returns these."""
        builder = CandidateBuilder(self._pool, self._store, self._until)
        opened: list[Search] = []
        for search in searches:
            search.enter(search.task.opening())
            if search.entries:
                opened.append(search)
        running = opened
        while running:
            progress.begin_round(len(running))
            # where time runs out, each problem had its best guesses built
            rounds = zip_longest(*(search.pending() for search in running))
            builder.begin([entry for guesses in rounds for entry in guesses if entry is not None])
            builder.wait(progress.building)
            for search in running:
                if time.monotonic() > self._until:
                    break
                progress.problem(search.task.problem.about, len(search.pending()))
                search.time(runner, builder, self._rules(search), progress.candidate)
                self.timings.write(search.task.key, search.measured())
            late = time.monotonic() > self._until
            running = [h for h in running if not late and not self._expired(h) and h.goes_on()]
        return opened

    def _closed(self, search: Search, progress: ProgressTable) -> Measured:
        """The answer, remembered and told, and learnt from."""
        measured = search.measured(final=True)
        if self.settings.tune_cost_model:
            self._cost_models.add(search)
        search.task.pruned = sum(self._pruned.get(of, 0) for of in kernels_of(search))
        if search.task.pruned:
            about = f"{measured.about} ({search.task.pruned} not built, as earlier races taught)"
            measured = replace(measured, about=about)
        self.timings.write(search.task.key, measured)
        if measured.best is not None:
            search.task.won(search.entries[measured.best], measured.milliseconds)
            _log.info(
                "%s: %s is the fastest of %d at %.4f ms",
                measured.about, measured.best or "first guess", len(search.times),
                measured.milliseconds[measured.best],
            )  # fmt: skip
        progress.done(search.task.problem.about, measured)
        if self.settings.tune_log:
            append_log(self.settings.tune_log, search.task.key, measured, search.seconds)
        return measured

    def _rules(self, search: Search) -> TrialRules:
        return TrialRules(
            verify=self.settings.tune_verify,
            rounds=6 if search.task.problem.device.startswith("cpu") else 3,
            most_rounds=16 if search.task.problem.device.startswith("cpu") else 6,
            until=min(self._until, time.monotonic() + max(1, self.settings.tune_seconds)),
        )

    def _expired(self, search: Search) -> bool:
        return search.seconds >= self.settings.tune_seconds

    # Where they are run.

    def _ready(self) -> TrialRunner:
        if self._runner is None:
            if self.settings.tune_in_process:
                self._runner = InProcessRunner(self.backend)
            else:
                self._runner = WorkerRunner(self._setup, self.settings.tune_timeout)
        if isinstance(self._runner, WorkerRunner):
            self._runner.start()
        return self._runner

    def _setup(self) -> WorkerSetup:
        usable = (State.AVAILABLE, State.LOADED)
        places = {
            state.name: state.manifest.load
            for state in self._plugins.states()
            if state.manifest is not None and state.manifest.load and state.state in usable
        }
        return WorkerSetup(self.settings, places, threads(), library_flags())


def _claims(backend: Backend, node: Node) -> bool:
    try:
        return bool(backend.claims(node))
    except Exception as error:
        _log.info("backend %r raised %r over %s", backend.name, error, node.name)
        return False


_LEAST = 0.01
"""Of the time of a graph: a kernel with less, all its launches together, is not searched for a faster one."""


@dataclass(frozen=True)
class _Default:
    """How long a kernel takes as it is without tuning."""

    name: str
    milliseconds: float


def note_default(timings: TimingStore, search: Search) -> None:
    """Remember how long the default entry of a search takes, for later graphs and processes."""
    for name, milliseconds in search.times.items():
        if milliseconds != FAILED:
            timings.note(search.task.key, {"name": name, "milliseconds": milliseconds})


def with_default(timings: TimingStore, key: str, known: Measured) -> Measured:
    """What is known of a question, with the time of its default entry, if that was measured."""
    default = _default(timings, key)
    if default is None:
        return known
    return replace(known, milliseconds={default.name: default.milliseconds, **known.milliseconds})


def negligible(
    timings: TimingStore, tasks: Iterable[TuningTask], answers: Mapping[str, Measured], beside: float
) -> dict[str, Measured]:
    """The answers to those open questions that are not worth a search: all remains as it is.

    Args:
        answers: what is known; questions without a best are open.
        beside: milliseconds that the graph spends on other things.
    """
    open_ones: list[tuple[TuningTask, _Default]] = []
    total = beside
    for task in tasks:
        known = answers[task.key]
        if known.best is not None:
            total += task.uses * known.milliseconds[known.best]
            continue
        default = _default(timings, task.key)
        if default is not None:
            total += task.uses * default.milliseconds
            open_ones.append((task, default))
    return {
        task.key: Measured({default.name: default.milliseconds}, default.name, task.problem.about)
        for task, default in open_ones
        if task.uses * default.milliseconds < _LEAST * total
    }


def _default(timings: TimingStore, key: str) -> _Default | None:
    value = timings.noted(key)
    try:
        return _Default(str(value["name"]), float(value["milliseconds"]))  # type: ignore[index]
    except (TypeError, ValueError, KeyError):
        return None
