"""The race for matrix products: a library's call against what backends generate, each with the kernels around
it, on example inputs. What won is remembered, so that an equal problem is timed once on a machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from polyfuse.base.errors import PolyfuseError
from polyfuse.base.log import get_logger
from polyfuse.cache.timings import LOST, Measured, timing_key
from polyfuse.compiler.naming import emit_named
from polyfuse.compiler.segments import Samples, Segment, node_names, run_all, segment
from polyfuse.compiler.session import CompileSession
from polyfuse.compiler.tuning import Race, race_for
from polyfuse.ir.graph import Graph
from polyfuse.plugin import Backend, Launchable
from polyfuse.schedule import Call, Decision, Launch, Schedule, schedule_graph
from polyfuse.select.choose import assign
from polyfuse.select.offers import Offer

__all__ = ["LIBRARY", "race_products"]

_log = get_logger("select")

LIBRARY = "library"
"""The name of what torch calls, among those of backends."""

# How often each contender is timed, in turns.
_ROUNDS = 3
# A generated product must be faster by more than the noise of a measurement.
_GAIN = 0.98


def race_products(
    session: CompileSession, graph: Graph, found: Sequence[Offer], decisions: list[Decision]
) -> Mapping[str, Backend]:
    """The calls of `graph` that a backend computes faster than the library, with that backend."""
    if not found:
        return {}
    field = _Field(session, graph, found)
    winners: dict[str, Backend] = {}
    for offer in found:
        measured = field.measure(offer)
        best = measured.best or LIBRARY
        times = ", ".join(f"{name} {ms:.4f} ms" for name, ms in sorted(measured.milliseconds.items()))
        decisions.append(Decision("choice", offer.call.name, best, times or "nothing could be timed"))
        for backend in offer.backends:
            if backend.name == best:
                winners[offer.call.name] = backend
    return winners


@dataclass(frozen=True)
class _Contender:
    """One implementation of a product, with what runs around it."""

    name: str
    segment: Segment


class _Field:
    """The schedules of one graph: with the library, and with each backend where it can."""

    def __init__(self, session: CompileSession, graph: Graph, found: Sequence[Offer]) -> None:
        self.session = session
        self.graph = graph
        self.library = schedule_graph(graph, session.settings, session.backends)
        self.generated: dict[str, Schedule] = {}
        self.by_name: dict[str, Backend] = {}
        for offer in found:
            for backend in offer.backends:
                self.by_name.setdefault(backend.name, backend)
        for name, backend in self.by_name.items():
            winners = {o.call.name: backend for o in found if backend in o.backends}
            chosen = assign(graph, found, winners)
            self.generated[name] = schedule_graph(
                chosen.graph, session.settings, session.backends, chosen.backends
            )

    def measure(self, offer: Offer) -> Measured:
        """What each contender took, and the name of the best."""
        contenders = self._contenders(offer)
        first = self._timer(offer)
        facts = {c.name: c.segment.describe() for c in contenders}
        facts |= {f"{b.name} {k}": v for b in offer.backends for k, v in b.describe().items()}
        key = timing_key(offer.call.op, first.name, facts, first.machine())
        known = self.session.timings.read(key)
        if known.best is not None:
            return known
        times = self._time(contenders, first)
        ours = {name: ms for name, ms in times.items() if name != LIBRARY and ms != LOST}
        best = min(ours, key=lambda name: ours[name], default=LIBRARY)
        if best != LIBRARY and ours[best] > _GAIN * times.get(LIBRARY, LOST):
            best = LIBRARY
        measured = Measured(times, best)
        self.session.timings.write(key, measured)
        return measured

    def _timer(self, offer: Offer) -> Backend:
        """The backend that knows how to time work on the device."""
        device_type = offer.form.accumulator.device.partition(":")[0]
        return next(iter(self.session.backends(device_type)))

    def _contenders(self, offer: Offer) -> list[_Contender]:
        """The library and each backend, each with the steps that compute the same nodes."""
        own = {offer.call.name, *(node.name for node in offer.form.nodes)}
        out: list[_Contender] = []
        for backend in offer.backends:
            theirs = self.generated[backend.name]
            nodes = frozenset(own)
            for _ in range(2):  # what shares a step with a node that moved counts on both sides
                for schedule in (theirs, self.library):
                    touched = (names for s in schedule.steps if (names := _around(s, nodes)))
                    nodes = nodes.union(*touched)
            if not out:
                out.append(_Contender(LIBRARY, segment(self.library, nodes)))
            out.append(_Contender(backend.name, segment(theirs, nodes)))
        return out

    def _time(self, contenders: Sequence[_Contender], timer: Backend) -> dict[str, float]:
        """Milliseconds of each contender: the least of several rounds, in turns."""
        samples = Samples(self.graph.symbol_hints)
        runs: dict[str, Launchable] = {}
        times: dict[str, float] = {}
        for contender in contenders:
            try:
                runs[contender.name] = self._runnable(contender, samples)
            except Exception as error:
                times[contender.name] = LOST
                _log.warning("%s is out of the race for a matrix product: %s", contender.name, error)
        for _ in range(_ROUNDS):
            for name, run in runs.items():
                try:
                    taken = timer.benchmark(run, ())
                except Exception as error:
                    taken = LOST
                    _log.warning("%s is out of the race for a matrix product: %s", name, error)
                times[name] = min(times.get(name, taken), taken) if taken != LOST else LOST
        return times

    def _runnable(self, contender: _Contender, samples: Samples) -> Launchable:
        part = contender.segment
        actions = []
        for step in part.steps:
            if isinstance(step, Call):
                actions.append(samples.call(part.graph, step.node))
            else:
                actions.append(samples.launch(part.graph, step, self._built(step)))
        return run_all(actions)

    def _built(self, step: Launch) -> Launchable:
        """The kernel of a launch, in the best configuration known or found."""
        backend = self.by_name.get(step.backend) or self.session.plugins.backend(step.backend)
        config = race_for(backend, step.kernel, self.session) if step.backend in self.by_name else None
        if isinstance(config, Race):
            config = config.run()
        source = emit_named(backend, step.kernel, config)
        future = self.session.pool.submit(backend, [source], self.session.store)
        outcome = future.outcomes()[source.key]
        if isinstance(outcome, PolyfuseError):
            raise outcome
        return outcome


def _around(step: Launch | Call, nodes: frozenset[str]) -> frozenset[str]:
    """All nodes of a launch that computes some of these; other calls are no part of a race."""
    names = node_names(step)
    return names if isinstance(step, Launch) and names & nodes else frozenset()
