"""Kernels of a schedule to callables: emission, builds in the background, and what takes the place of a
kernel that fails: another configuration of it, then the next backend.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from polyfuse.base.errors import PolyfuseError, UnsupportedError
from polyfuse.base.log import get_logger, warn_once
from polyfuse.cache import Located
from polyfuse.compiler.naming import emit_named
from polyfuse.compiler.session import CompileSession
from polyfuse.ir.kernel import Kernel
from polyfuse.kit import match
from polyfuse.plugin import Backend, Config, Launchable, Source
from polyfuse.program.steps import Program, ProgramKernel
from polyfuse.runtime.profile import metered
from polyfuse.schedule import Launch, Schedule
from polyfuse.select.kernel_race import Verdict, known_config, settle_kernels
from polyfuse.workers import BuildFuture

__all__ = ["Emitted", "PendingKernel", "emit_kernels", "pending_kernels", "submit", "tune_kernels"]

_log = get_logger("compiler")

# How many configurations are looked at when the first one is not good.
_CONFIGS_TRIED = 8


@dataclass(frozen=True)
class Emitted:
    """The source of one kernel and who wrote it."""

    backend: Backend
    source: Source


Tuned = Mapping[tuple[str, Kernel], Verdict]


def tune_kernels(schedule: Schedule, session: CompileSession, beside: float = 0.0) -> Tuned:
    """How each kernel is generated that was raced, by (backend it was scheduled for, kernel).

    Args:
        beside: milliseconds that the graph spends otherwise, as far as they are known.
    """
    settings = session.settings
    if not settings.tune_kernels and not settings.tournament:
        return {}
    wanted: dict[tuple[str, Kernel], Sequence[Backend]] = {}
    launches = [step for step in schedule.steps if isinstance(step, Launch)]
    for step in launches:
        if (step.backend, step.kernel) in wanted:
            continue
        first = _taker(step, session)
        found: tuple[Backend, ...] = (first,)
        raced = _is_raced(step.kernel, session)
        if raced and known_config(session.tuner, first, step.kernel) is not None:
            continue
        if settings.tournament and first.races_kernels and not raced:
            found = tuple(b for b in session.tuner.takers(step) if b.races_kernels)
        wanted[step.backend, step.kernel] = found
    try:
        uses = Counter((step.backend, step.kernel) for step in launches)
        return settle_kernels(session.tuner, wanted, uses, beside)
    except Exception as error:
        if settings.strict:
            raise
        warn_once("select", f"kernels are not tuned: {type(error).__name__}: {error}")
        return {}


def emit_kernels(
    schedule: Schedule, session: CompileSession, tuned: Tuned
) -> dict[tuple[str, Kernel], Emitted]:
    """The source of every distinct kernel, by (backend it was scheduled for, kernel)."""
    out: dict[tuple[str, Kernel], Emitted] = {}
    for step in schedule.steps:
        if not isinstance(step, Launch) or (step.backend, step.kernel) in out:
            continue
        verdict = tuned.get((step.backend, step.kernel))
        backends = session.tuner.takers(step)
        if verdict is not None:
            backends = _first(verdict.backend, backends)
        out[step.backend, step.kernel] = _emit(step.kernel, backends, session, verdict)
    return out


def _taker(step: Launch, session: CompileSession) -> Backend:
    """The first backend that does not refuse the whole of a kernel: it is more than its nodes."""
    for backend in session.tuner.takers(step):
        try:
            backend.configs(step.kernel)
        except UnsupportedError as error:
            _log.info("backend %r refuses kernel %s: %s", backend.name, step.kernel.name, error)
        else:
            return backend
    return session.plugins.backend(step.backend)


def _first(first: Backend, others: Iterable[Backend]) -> Iterator[Backend]:
    yield first
    for backend in others:
        if backend.name != first.name:
            yield backend


def _emit(
    kernel: Kernel, backends: Iterable[Backend], session: CompileSession, verdict: Verdict | None
) -> Emitted:
    failure: Exception | None = None
    for backend in backends:
        try:
            return Emitted(backend, emit_named(backend, kernel, _config(backend, kernel, session, verdict)))
        except UnsupportedError as error:  # an answer, not a failure: the whole kernel is more than its nodes
            failure = error
            _log.info("backend %r refuses kernel %s: %s", backend.name, kernel.name, error)
        except Exception as error:
            if session.settings.strict:
                raise
            failure = error
            session.plugins.note_trouble(backend.name, error, "generating code")
    raise PolyfuseError(
        f"no backend could generate code for kernel {kernel.name} ({failure})",
        "set strict to see the first failure",
    ) from failure


def _config(
    backend: Backend, kernel: Kernel, session: CompileSession, verdict: Verdict | None
) -> Config | None:
    """The configuration that a race decided for; None: as the backend likes best."""
    if verdict is not None and verdict.backend is backend:
        return verdict.config
    return known_config(session.tuner, backend, kernel) if _is_raced(kernel, session) else None


def _is_raced(kernel: Kernel, session: CompileSession) -> bool:
    """Whether this is a matrix product, won in one configuration against the library."""
    return session.settings.matrix_products == "fastest" and match(kernel) is not None


def _start_builds(session: CompileSession, backend: Backend, sources: Sequence[Source]) -> BuildFuture:
    return session.pool.submit(backend, sources, session.store)


def submit(emitted: dict[tuple[str, Kernel], Emitted], session: CompileSession) -> dict[str, BuildFuture]:
    """Start all builds, one batch a backend."""
    by_backend: dict[str, tuple[Backend, list[Source]]] = {}
    for item in emitted.values():
        by_backend.setdefault(item.backend.name, (item.backend, []))[1].append(item.source)
    return {
        name: session.pool.submit(backend, sources, session.store)
        for name, (backend, sources) in by_backend.items()
    }


@dataclass
class PendingKernel:
    """A kernel on its way. `result` waits for it, and turns to the next backend if it failed to build."""

    emitted: Emitted
    future: BuildFuture
    launch: Launch
    session: CompileSession

    def result(self) -> Callable[..., Any]:
        """The callable kernel; with the option `profile`, one that measures itself."""
        kernel, source, found = self.launch.kernel, self.emitted.source, self._found()
        if not self.session.settings.profile:
            return found
        uses = [{"size": 0, "inout": 2}.get(arg.kind, 1) for arg in kernel.args] + [0] * bool(source.scratch)
        return metered(source.name, source.key, kernel.device.partition(":")[0], uses, found)

    def folder(self) -> Path | None:
        """Where the built kernel lies; None where something else took its place."""
        key = self.emitted.source.key
        if isinstance(self.future.outcomes()[key], PolyfuseError):
            return None
        place = self.future.places()[key]
        good = _is_good(self.emitted.backend, self.future, self.emitted.source)
        return place.folder if good and isinstance(place, Located) else None

    def _found(self) -> Callable[..., Any]:
        """The callable kernel.

        Where it could not be built as it should be, other configurations of it are tried. Where its backend
        failed, the next one that claims it takes its place, and the interpretation of the kernel in the end;
        with `strict`, the failure is raised.
        """
        source, future = self.emitted.source, self.future
        outcome = future.outcomes()[source.key]
        if isinstance(outcome, PolyfuseError) or not _is_good(self.emitted.backend, future, source):
            outcome = self._otherwise(outcome)
        if not isinstance(outcome, PolyfuseError):
            return outcome
        if self.session.settings.strict:
            raise outcome
        failed, kernel = self.emitted.backend.name, self.launch.kernel
        _log.info("%s", outcome)
        for backend in self.session.tuner.takers(self.launch):
            if backend.name != failed:
                found = self._from(backend)
                if found is not None:
                    _warn_of_replacement(failed, kernel, outcome, repr(backend.name))
                    return found
        _warn_of_replacement(failed, kernel, outcome, "an interpreter")
        return self._called_alike(0, partial(_interpret, kernel))

    def _called_alike(self, scratch: int, found: Launchable) -> Launchable:
        """A kernel that takes the place of the planned one, called with the scratch of that: passed on only
        if it is as much as this one asks for.
        """
        planned = self.emitted.source.scratch
        return partial(_without_last, found) if planned and scratch != planned else found

    def _otherwise(self, outcome: Launchable | PolyfuseError) -> Launchable | PolyfuseError:
        """The kernel in another configuration, if one can be built as it should be; else any that can be
        built, at first the one that there was.
        """
        backend, kernel = self.emitted.backend, self.launch.kernel
        try:
            configs = backend.configs(kernel)[1:_CONFIGS_TRIED]
            sources = [emit_named(backend, kernel, config) for config in configs]
            if not sources:
                return outcome
            future = _start_builds(self.session, backend, sources)
            for source in sources:
                found = future.outcomes()[source.key]
                if isinstance(found, PolyfuseError):
                    continue
                found = self._called_alike(source.scratch, found)
                if _is_good(backend, future, source):
                    _log.info("kernel %s is built in another configuration", kernel.name)
                    return found
                if isinstance(outcome, PolyfuseError):
                    outcome = found
        except Exception as error:
            self.session.plugins.note_trouble(backend.name, error, "building in other configurations")
        return outcome

    def _from(self, backend: Backend) -> Callable[..., Any] | None:
        """The kernel as another backend makes it, or None if that fails too."""
        try:
            source = emit_named(backend, self.launch.kernel)
        except UnsupportedError as error:
            _log.info("backend %r refuses kernel %s: %s", backend.name, self.launch.kernel.name, error)
            return None
        except Exception as error:
            self.session.plugins.note_trouble(backend.name, error, "generating code")
            return None
        found = self.session.pool.submit(backend, [source], self.session.store).outcomes()[source.key]
        if isinstance(found, PolyfuseError):
            _log.info("%s", found)
            return None
        return self._called_alike(source.scratch, found)


def _is_good(backend: Backend, future: BuildFuture, source: Source) -> bool:
    """Whether what was built is as its backend wants it."""
    place = future.places()[source.key]
    if not isinstance(place, Located):
        return False
    try:
        verdict = backend.review(place.folder, place.source_key)
    except Exception as error:
        _log.info("backend %r raised %r over %s", backend.name, error, source.name)
        return True
    if not verdict:
        _log.info("kernel %s is not as it should be: %s", source.name, verdict)
    return bool(verdict)


def _without_last(kernel: Launchable, *operands: Any) -> None:
    kernel(*operands[:-1])


def _interpret(kernel: Kernel, *operands: Any) -> None:
    # needed only where every backend failed, and slow to import
    from polyfuse.ir.interpret import run_kernel

    run_kernel(kernel, operands)


def _warn_of_replacement(failed: str, kernel: Kernel, error: PolyfuseError, other: str) -> None:
    warn_once(
        "compiler",
        f"backend {failed!r} could not provide kernel {kernel.name} ({error.cause}); {other} takes its "
        "place, here and wherever it fails; POLYFUSE_STRICT=1 raises the error with the compiler's words",
        key=f"replacement of {failed}",
    )


def pending_kernels(
    program: Program,
    schedule: Schedule,
    emitted: dict[tuple[str, Kernel], Emitted],
    futures: dict[str, BuildFuture],
    session: CompileSession,
) -> dict[str, PendingKernel]:
    """For every kernel of the program, by its name there, the kernel on its way."""
    launches = {step.name: step for step in schedule.steps if isinstance(step, Launch)}

    def pending(entry: ProgramKernel) -> PendingKernel:
        launch = launches[entry.launches[0]]
        item = emitted[entry.backend, entry.kernel]
        return PendingKernel(item, futures[item.backend.name], launch, session)

    return {entry.name: pending(entry) for entry in program.kernels}
