"""What races need of a session, and how several of them are run: built together, timed one after another,
remembered.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest

import torch

from polyfuse.base.log import get_logger
from polyfuse.base.settings import Settings
from polyfuse.cache import KernelStore
from polyfuse.cache.samples import SampleStore
from polyfuse.cache.timings import Measured, TimingStore, timing_key
from polyfuse.ir.graph import Graph
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.nodes import Node, TemplateCall
from polyfuse.plugin import Backend, Config, Extensions, Source, State
from polyfuse.schedule import Decision, Launch
from polyfuse.select.contest import Rules
from polyfuse.select.experience import Experience, kernels_of
from polyfuse.select.heat import Bout, Heat
from polyfuse.select.machine import threads
from polyfuse.select.progress import Board, append_log
from polyfuse.select.prune import worth_building
from polyfuse.select.shares import note_usual, settled_by_share, with_usual
from polyfuse.select.sites import Alternative, alternatives, fixed_inputs
from polyfuse.select.tracks import ChildTrack, LocalTrack, Track
from polyfuse.select.work import Circumstances
from polyfuse.select.workshop import BuiltCall, Workshop
from polyfuse.torch_compat.devices.precision import library_flags
from polyfuse.workers import BuildPool

__all__ = ["Tuner"]

_log = get_logger("select")

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
        self._track: Track | None = None
        self._until = math.inf
        self._experience = Experience(SampleStore(store.root), self._group)
        self._spared: dict[tuple[str, Kernel], int] = {}

    # Who takes part.

    def backends(self, device_type: str) -> Iterator[Backend]:
        """Usable backends for a device type, in the order in which they are asked."""
        return self._plugins.each_backend(device_type)

    def backend(self, name: str) -> Backend:
        """A backend by name."""
        return self._plugins.backend(name)

    def takers(self, step: Launch) -> Iterator[Backend]:
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
        usual = worth_building(backend, kernel, offered, self.settings.tune_candidates)
        if not self.settings.tune_cost_model:
            return usual
        short = self._experience.shortlist(backend, kernel, offered, usual)
        if short.spared:
            self._spared[backend.name, kernel] = short.spared
        return short.configs

    def expect(self) -> None:
        """Start the process that times, where races are wanted and nothing is known of this machine yet: it
        imports torch while the graph is still captured.
        """
        settings = self.settings
        if settings.autotunes and not settings.tune_in_process and self._track is None and self.timings.empty:
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

    def settle(self, bouts: Iterable[Bout], beside: float | None = None) -> Mapping[str, Measured]:
        """The answers to questions, by key; those measured before are not measured again.

        Args:
            beside: milliseconds that the graph spends on other things; with it, what is a small part of the
                whole is not searched (`select/shares.py`).
        """
        wanted = {bout.key: bout for bout in bouts}
        answers = {key: self.timings.read(key) for key in wanted}
        if beside is not None:
            answers |= settled_by_share(self.timings, wanted.values(), answers, beside)
        fresh = [bout for key, bout in wanted.items() if answers[key].best is None]
        if fresh and not self.exhausted:
            start = time.monotonic()
            most = self.settings.max_autotune_seconds
            self._until = start + most - self.spent if most else math.inf
            try:
                with _TIMING, self.timings.exclusive(self.settings.build_timeout):
                    if beside is not None and len(wanted) + bool(beside) > 1:
                        self._measure_usual(fresh)
                        answers |= settled_by_share(self.timings, wanted.values(), answers, beside)
                    answers |= self._settle([b for b in fresh if answers[b.key].best is None])
            finally:
                self.spent += time.monotonic() - start
        return answers

    def _measure_usual(self, bouts: Sequence[Bout]) -> None:
        """Time each once as it is without tuning, and remember that."""
        heats: list[Heat] = []
        for bout in bouts:
            heat = Heat(bout, Measured())
            if self.timings.noted(bout.key) is None and heat.enter(bout.usual()):
                heats.append(heat)
        if not heats:
            return
        track, workshop = self._ready(), Workshop(self._pool, self._store, self._until)
        workshop.begin([entry for heat in heats for entry in heat.pending()])
        workshop.wait()
        for heat in heats:
            heat.time(track, workshop, replace(self._rules(heat), alone=True))
            note_usual(self.timings, heat)

    def _settle(self, bouts: Sequence[Bout]) -> dict[str, Measured]:
        # another process may have measured while this one waited
        answers = {bout.key: self.timings.read(bout.key) for bout in bouts}
        unsettled = [bout for bout in bouts if answers[bout.key].best is None]
        heats = [Heat(bout, with_usual(self.timings, bout.key, answers[bout.key])) for bout in unsettled]
        if not heats:
            return answers
        track = self._ready()
        most = self.settings.max_autotune_seconds
        board = Board(self.settings, max(0.0, most - self.spent))
        try:
            opened = self._search(track, heats, board)
            for heat in opened:
                answers[heat.bout.key] = self._closed(heat, board)
        finally:
            board.close()
            self._spared.clear()
            self._experience.renew()
        return answers

    def _search(self, track: Track, heats: Sequence[Heat], board: Board) -> list[Heat]:
        """Run all rounds of all heats that have somebody to time; returns these."""
        workshop = Workshop(self._pool, self._store, self._until)
        opened: list[Heat] = []
        for heat in heats:
            heat.enter(heat.bout.opening())
            if heat.entries:
                opened.append(heat)
        running = opened
        while running:
            board.begin_round(len(running))
            # where time runs out, each problem had its best guesses built
            rounds = zip_longest(*(heat.pending() for heat in running))
            workshop.begin([entry for guesses in rounds for entry in guesses if entry is not None])
            workshop.wait(board.building)
            for heat in running:
                if time.monotonic() > self._until:
                    break
                board.problem(heat.bout.problem.about, len(heat.pending()))
                heat.time(track, workshop, self._rules(heat), board.candidate)
                self.timings.write(heat.bout.key, heat.measured())
            late = time.monotonic() > self._until
            running = [h for h in running if not late and not self._expired(h) and h.goes_on()]
        return opened

    def _closed(self, heat: Heat, board: Board) -> Measured:
        """The answer, remembered and told, and learnt from."""
        measured = heat.measured(final=True)
        if self.settings.tune_cost_model:
            self._experience.add(heat)
        heat.bout.spared = sum(self._spared.get(of, 0) for of in kernels_of(heat))
        if heat.bout.spared:
            about = f"{measured.about} ({heat.bout.spared} not built, as earlier races taught)"
            measured = replace(measured, about=about)
        self.timings.write(heat.bout.key, measured)
        if measured.best is not None:
            heat.bout.won(heat.entries[measured.best], measured.milliseconds)
            _log.info(
                "%s: %s is the fastest of %d at %.4f ms",
                measured.about, measured.best or "first guess", len(heat.times),
                measured.milliseconds[measured.best],
            )  # fmt: skip
        board.done(heat.bout.problem.about, measured)
        if self.settings.tune_log:
            append_log(self.settings.tune_log, heat.bout.key, measured, heat.seconds)
        return measured

    def _rules(self, heat: Heat) -> Rules:
        return Rules(
            verify=self.settings.tune_verify,
            rounds=6 if heat.bout.problem.device.startswith("cpu") else 3,
            most_rounds=16 if heat.bout.problem.device.startswith("cpu") else 6,
            until=min(self._until, time.monotonic() + max(1, self.settings.tune_seconds)),
        )

    def _expired(self, heat: Heat) -> bool:
        return heat.seconds >= self.settings.tune_seconds

    # Where they are run.

    def _ready(self) -> Track:
        if self._track is None:
            if self.settings.tune_in_process:
                self._track = LocalTrack(self.backend)
            else:
                self._track = ChildTrack(self._circumstances, self.settings.tune_timeout)
        if isinstance(self._track, ChildTrack):
            self._track.start()
        return self._track

    def _circumstances(self) -> Circumstances:
        usable = (State.AVAILABLE, State.LOADED)
        places = {
            state.name: state.manifest.load
            for state in self._plugins.states()
            if state.manifest is not None and state.manifest.load and state.state in usable
        }
        return Circumstances(self.settings, places, threads(), library_flags())


def _claims(backend: Backend, node: Node) -> bool:
    try:
        return bool(backend.claims(node))
    except Exception as error:
        _log.info("backend %r raised %r over %s", backend.name, error, node.name)
        return False
