"""What the searches of a session share: the backends, what was measured, and how searches run: all candidates
are built together, then timed one task after another.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest

import torch

from polyfuse.autotune.alternatives import Alternative, alternatives, fixed_inputs
from polyfuse.autotune.benchmark import threads
from polyfuse.autotune.candidate import BuiltCall, CandidateBuilder, WorkerSetup
from polyfuse.autotune.pruning import CostModels, kernels_of, worth_building
from polyfuse.autotune.report import ProgressTable, append_log
from polyfuse.autotune.search import (
    RoundHelpers,
    Search,
    TrialBatch,
    TrialRules,
    TuningTask,
    run_trials,
)
from polyfuse.autotune.worker import InProcessRunner, TrialRunner, WorkerRunner
from polyfuse.base.errors import UnsupportedError
from polyfuse.base.log import get_logger, warn_once
from polyfuse.base.process import ForkedLock
from polyfuse.base.settings import Settings
from polyfuse.cache import KernelStore
from polyfuse.cache.samples import SampleStore
from polyfuse.cache.timings import FAILED, Record, TimingStore, Trial, timing_key
from polyfuse.ir.graph import Graph
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.nodes import TemplateCall
from polyfuse.plugin import Backend, Config, Extensions, FusionRules, PluginManager, Source, State
from polyfuse.plugin.hooks.registry import importable, registered
from polyfuse.runtime.devices.registry import class_name, device_of, known_devices
from polyfuse.schedule import Decision, Launch
from polyfuse.workers import BuildPool

_log = get_logger("autotune")

# Two searches at once, in any session, would disturb each other's measurements.
_TIMING = ForkedLock()

_LEAST_SHARE = 0.01
"""Of the time of a graph: a kernel with less, all its launches together, is not searched for a faster one."""


class Tuner:
    """The searches of a session.

    Attributes:
        settings: the options.
        timings: the store of what was measured.
        spent: seconds that searches took so far.
        asked: the addresses of all problems whose fastest candidate was asked for, measured now or before.
        cut_short: those whose search ran out of time, or that were only looked up in vain: the search goes on
            in a later process.

    Args:
        helpers: returns who times a part of each round elsewhere, if there is anybody.
    """

    def __init__(
        self,
        settings: Settings,
        extensions: Extensions,
        pool: BuildPool,
        store: KernelStore,
        helpers: Callable[[], RoundHelpers | None] = lambda: None,
    ) -> None:
        self.settings = settings
        self.timings = TimingStore(store.root, lambda: store.sharing)
        self.spent = 0.0
        self.asked: dict[str, None] = {}
        self.cut_short: set[str] = set()
        self._extensions = extensions
        self._plugins = extensions.plugins
        self._pool = pool
        self._store = store
        self._helpers = helpers
        self._runner: TrialRunner | None = None
        self._until = math.inf
        group = lambda kind, backend, device: self.key(f"samples of {kind}", (backend,), device)  # noqa: E731
        self._cost_models = CostModels(SampleStore(store.root), group)
        self._pruned: dict[tuple[str, Kernel], int] = {}

    # Who may do something.

    def backends(self, device_type: str) -> Iterator[Backend]:
        """Usable backends for a device type, in the order in which they are asked."""
        return self._plugins.each_backend(device_type)

    def backend(self, name: str) -> Backend:
        """A backend by name."""
        return self._plugins.backend(name)

    def fusion_rules(self, backend: str, device_type: str) -> FusionRules:
        """Plugins' fusion rules for a backend on a device type."""
        return self._extensions.fusion_rules(backend, device_type)

    def claiming_backends(self, step: Launch) -> Iterator[Backend]:
        """The backend that a launch was scheduled for, then the others that claim all its nodes, each loaded
        when reached: a kernel is more than its nodes, so that the first may refuse it.
        """
        yield self.backend(step.backend)
        for backend in self.backends(step.kernel.device):
            if backend.name == step.backend or not all(backend.claims(node) for node in step.nodes):
                continue
            if all(backend.may_group(part.kernel) for part in step.kernel.parts):
                yield backend

    def timer(self, device: str) -> Backend:
        """The backend that knows how to time work on a device."""
        return next(iter(self.backends(device.partition(":")[0])))

    def configs(self, backend: Backend, kernel: Kernel) -> Sequence[Config]:
        """The configurations of a kernel worth building: by the backend's own estimate, if it has one, and by
        the cost model.
        """
        offered = backend.configs(kernel)
        usual = worth_building(backend, kernel, offered, self.settings.tune_candidates)
        if not self.settings.tune_cost_model:
            return usual
        built = self._cost_models.prune(backend, kernel, offered, usual)
        if len(built) < len(usual):
            self._pruned[backend.name, kernel] = len(usual) - len(built)
        return built

    def takes_part(self, backend: Backend, kernel: Kernel | None = None) -> bool:
        """Whether a backend can be timed, with a kernel if one is given. One that refuses the kernel is left
        out, and so, with a warning, is one that raises: others are timed without it.

        Raises:
            Exception: what the backend raised, with `strict`, unless it refuses.
        """
        try:
            backend.describe()
            if kernel is not None:
                backend.configs(kernel)
        except UnsupportedError as error:
            _log.info("backend %r takes no part in autotuning: %s", backend.name, error)
            return False
        except Exception as error:
            if self.settings.strict:
                raise
            self.note_trouble(backend, error, "running its method `configs`")
            return False
        return True

    def neighbours(self, backend: Backend, kernel: Kernel, config: Config) -> Sequence[Config]:
        """The configurations around one; none where the backend refuses to say, or raises.

        Raises:
            Exception: what the backend raised, with `strict`, unless it refuses.
        """
        try:
            return backend.neighbours(kernel, config)
        except UnsupportedError as error:
            _log.info("backend %r offers nothing around %s: %s", backend.name, config, error)
        except Exception as error:
            if self.settings.strict:
                raise
            self.note_trouble(backend, error, "running its method `neighbours`")
        return ()

    def expect(self) -> None:
        """Start the benchmark worker, where timing is wanted and nothing is known of this machine yet: it
        imports torch while the graph is still captured.
        """
        settings = self.settings
        if (
            settings.autotunes
            and not settings.tune_in_process
            and self._runner is None
            and self.timings.empty
        ):
            with contextlib.suppress(OSError):  # the first search will meet it again
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
            found = alternatives(
                graph, call, offered, self._plugins, most, decisions, known, freezing, static
            )
            return [item for item in found if item.backend is None or self.takes_part(item.backend)]

        return of

    def frozen_parameters(self, graph: Graph) -> frozenset[str]:
        """The parameters of a graph that may be packed once: with freezing, where no gradients are."""
        return fixed_inputs(graph) if self.settings.freezing and graph.kind == "inference" else frozenset()

    def built(self, backend: Backend, source: Source) -> BuiltCall:
        """A kernel to call, which is built meanwhile."""
        return BuiltCall(self._pool.submit(backend, [source], self._store), source.key)

    def note_trouble(self, backend: Backend, error: Exception, doing: str) -> None:
        """Record, and warn once, that a backend raised."""
        self._plugins.note_trouble(backend.name, error, doing)

    # Searches.

    def key(
        self, what: str, backends: Iterable[Backend], device: str, facts: Mapping[str, str] | None = None
    ) -> str:
        """The address of what is measured: it holds all that it depends on."""
        asked = list(backends)
        known = dict(facts or {})
        for backend in asked:
            prefix = f"{backend.name} " if len(asked) > 1 else ""
            known |= {f"{prefix}{name}": value for name, value in backend.describe().items()}
        known["torch"] = torch.__version__
        known["verified"] = " ".join((self.settings.tune_verify, *self.settings.tune_tolerances))
        computing = device_of(device)
        # what won under one precision or library may lose, or round otherwise, under another
        for owner in (device_of("cpu"), computing):
            switches = {k: v for k, v in owner.switches().items() if k not in owner.timeless_switches}
            known |= {f"switch {name}": str(value) for name, value in switches.items()}
        if computing.is_host:
            known["threads"] = str(threads())
        names = "+".join(b.name for b in asked)
        return timing_key(what, names, known, self.timer(device).machine())

    @property
    def exhausted(self) -> bool:
        """Whether the time for autotuning in this session is used up."""
        most = self.settings.max_autotune_seconds
        return bool(most) and self.spent >= most

    def search(self, tasks: Iterable[TuningTask], beside: float | None = None) -> Mapping[str, Record]:
        """What is measured of each task, by its key; what was measured before is not measured again.

        Args:
            beside: milliseconds that the graph spends on other things; with it, what is a small part of the
                whole is not searched.
        """
        wanted = {task.key: task for task in tasks}
        self.asked.update(dict.fromkeys(wanted))
        records = {key: self.timings.read(key) for key in wanted}
        if beside is not None:
            records |= negligible(wanted.values(), records, beside)
        missing = [key for key, record in records.items() if record.best is None]
        if missing and self.settings.tune_lookup:
            self.cut_short.update(missing)
        if not missing or self.exhausted or self.settings.tune_lookup:
            return records
        start = time.monotonic()
        most = self.settings.max_autotune_seconds
        self._until = start + most - self.spent if most else math.inf
        try:
            with _TIMING, self.timings.exclusive(self.settings.build_timeout):
                # another process may have measured while this one waited
                records |= {
                    key: self.timings.read(key) for key, known in records.items() if known.best is None
                }
                if beside is not None and len(wanted) + bool(beside) > 1:
                    records |= self._with_defaults(wanted.values(), records)
                    records |= negligible(wanted.values(), records, beside)
                left = [
                    Search(task, records[key]) for key, task in wanted.items() if records[key].best is None
                ]
                if left:
                    records |= self._searched(left)
        finally:
            self.spent += time.monotonic() - start
        return records

    def _with_defaults(self, tasks: Iterable[TuningTask], records: Mapping[str, Record]) -> dict[str, Record]:
        """The records of open tasks with the time of what is used without tuning."""
        searches: list[Search] = []
        for task in tasks:
            known, default = records[task.key], task.default
            if known.best is not None or default is None or known.of(default) is not None:
                continue
            program, search = task.program(default), Search(task, known)
            if program is not None and search.add([program]):
                searches.append(search)
        if not searches:
            return {}
        runner, builder = self._ready(), CandidateBuilder(self._pool, self._store, self._until)
        builder.begin([program for search in searches for program in search.pending()])
        builder.wait()
        for search in searches:
            search.time(runner, builder, replace(_rules(search, self.settings, self._until), alone=True))
            self.timings.write(search.task.key, search.record())
        return {search.task.key: search.record() for search in searches}

    def _searched(self, searches: Sequence[Search]) -> dict[str, Record]:
        runner = self._ready()
        progress = ProgressTable(self.settings, max(0.0, self.settings.max_autotune_seconds - self.spent))
        try:
            opened = self._run_rounds(runner, searches, progress)
            return {search.task.key: self._closed(search, progress) for search in opened}
        finally:
            progress.close()
            self._pruned.clear()
            self._cost_models.renew()

    def _run_rounds(
        self, runner: TrialRunner, searches: Sequence[Search], progress: ProgressTable
    ) -> list[Search]:
        """Run all rounds of all searches that have something to time; returns these."""
        builder = CandidateBuilder(self._pool, self._store, self._until)
        opened: list[Search] = []
        for search in searches:
            search.add(search.task.candidates())
            if search.programs:
                opened.append(search)
        running = opened
        while running:
            progress.begin_round(len(running))
            # where time runs out, each task had its best guesses built
            rounds = zip_longest(*(search.pending() for search in running))
            builder.begin([program for guesses in rounds for program in guesses if program is not None])
            builder.wait(progress.building)
            self._time_round(runner, builder, running, progress)
            late = time.monotonic() > self._until
            if late:
                self.cut_short.update(search.task.key for search in running)
            most = self.settings.tune_seconds
            running = [s for s in running if not late and s.seconds < most and s.widen()]
        return opened

    def _time_round(
        self,
        runner: TrialRunner,
        builder: CandidateBuilder,
        running: Sequence[Search],
        progress: ProgressTable,
    ) -> None:
        """Time what is built, a part of it by those who help."""
        helpers = self._helpers()
        away: Mapping[int, Callable[[], Mapping[str, float | str] | None]] = {}
        if helpers is not None:
            batches = [
                TrialBatch(s.task.problem, tuple(s.ready(builder)), _rules(s, self.settings, self._until))
                for s in running
            ]
            # a candidate may take its time to fail
            patience = max(1, self.settings.tune_seconds) + 2 * self.settings.tune_timeout
            away = helpers.share(batches, float(patience))
        # those that were sent away last, as long as the others take
        for number in sorted(range(len(running)), key=lambda n: n in away):
            if time.monotonic() > self._until:
                break
            search = running[number]
            progress.problem(search.task.problem.about, len(search.pending()))
            outcomes = away[number]() if number in away else None
            if outcomes is None:
                search.time(runner, builder, _rules(search, self.settings, self._until), progress.candidate)
            else:
                search.note(outcomes)
            self.timings.write(search.task.key, search.record())

    def run_batch(self, batch: TrialBatch) -> Mapping[str, float | str]:
        """Time candidates for another process, as if they were this one's.

        Returns:
            milliseconds of each by name, or what was wrong with it.
        """
        until = time.monotonic() + max(1, self.settings.tune_seconds)
        with _TIMING, self.timings.exclusive(self.settings.build_timeout):
            return run_trials(self._ready(), batch.problem, batch.programs, replace(batch.rules, until=until))

    def _closed(self, search: Search, progress: ProgressTable) -> Record:
        """The record of a search that is over: stored, shown, and added to the training data."""
        record = search.record(complete=True)
        if self.settings.tune_cost_model:
            self._cost_models.add(search)
        search.task.pruned = sum(self._pruned.get(of, 0) for of in kernels_of(search))
        if search.task.pruned:
            about = f"{record.about} ({search.task.pruned} not built, by the cost model)"
            record = replace(record, about=about)
        # a search that ran out of time is used as it is, and goes on in the next process
        cut_short = search.task.key in self.cut_short
        self.timings.write(search.task.key, replace(record, complete=not cut_short))
        if record.best is not None:
            _log.info(
                "%s: %s is the fastest of %d at %.4f ms",
                record.about, record.best.candidate, len(record.trials), record.best.milliseconds,
            )  # fmt: skip
        progress.done(record)
        if self.settings.tune_log:
            append_log(self.settings.tune_log, search.task.key, record, search.seconds)
        return record

    # Where candidates run.

    def _ready(self) -> TrialRunner:
        if self._runner is None:
            if self.settings.tune_in_process:
                self._runner = InProcessRunner(self.backend, self._plugins.timer)
            else:
                self._runner = WorkerRunner(self._setup, self.settings.tune_timeout)
        if isinstance(self._runner, WorkerRunner):
            self._runner.start()
        return self._runner

    def _setup(self) -> WorkerSetup:
        usable = (State.AVAILABLE, State.LOADED)
        import_paths = {
            state.name: state.manifest.load
            for state in self._plugins.states()
            if state.manifest is not None and state.manifest.load and state.state in usable
        }
        devices = {kind: (class_name(made), made.switches()) for kind, made in known_devices().items()}
        return WorkerSetup(self.settings, import_paths, threads(), devices, _shared(self._plugins))


def negligible(
    tasks: Iterable[TuningTask], records: Mapping[str, Record], beside: float
) -> dict[str, Record]:
    """The records of those open tasks that are not worth a search: what is used without tuning stays.

    Args:
        records: what is known; tasks without a best are open.
        beside: milliseconds that the graph spends on other things.
    """
    open_ones: list[tuple[TuningTask, Trial]] = []
    total = beside
    for task in tasks:
        record = records[task.key]
        trial = record.best
        if trial is None and task.default is not None:
            trial = record.of(task.default)
            if trial is not None and trial.milliseconds != FAILED:
                open_ones.append((task, trial))
        if trial is not None and trial.milliseconds != FAILED:
            total += task.uses * trial.milliseconds
    return {
        task.key: Record(task.problem.about, (trial,), complete=True)
        for task, trial in open_ones
        if task.uses * trial.milliseconds < _LEAST_SHARE * total
    }


def _shared(plugins: PluginManager) -> tuple[tuple[str, str], ...]:
    """The plugins of this program that the worker can import, too. Others that time launches or generate
    kernels are named once.
    """
    import_paths = {known.name: importable(known.plugin) for known in registered()}
    for name in (name for name, import_path in import_paths.items() if not import_path):
        times = plugins.hooks.implements(name, "polyfuse_timer")
        if times or plugins.generates(name):
            warn_once(
                "autotune",
                f"plugin {name!r}, which this program registered, cannot be imported by the benchmark "
                "worker, so that its timer and kernels are not used there; register a module that can be "
                "imported, or set the option `tune_in_process`",
            )
    return tuple((name, import_path) for name, import_path in import_paths.items() if import_path)


def _rules(search: Search, settings: Settings, until: float) -> TrialRules:
    """How the candidates of a search are timed.

    Args:
        until: the `time.monotonic` at which autotuning ends.
    """
    on_host = device_of(search.task.problem.device).is_host
    return TrialRules(
        verify=settings.tune_verify != "off",
        raises=settings.tune_verify == "raise",
        rounds=6 if on_host else 3,
        most_rounds=16 if on_host else 6,
        until=min(until, time.monotonic() + max(1, settings.tune_seconds)),
    )
