"""Kernels of a schedule to callables: tuning, emission, builds in the background, and what a kernel that
fails falls back to: another configuration of it, then the next backend.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from polyfuse.autotune.kernels import search_kernels
from polyfuse.base.errors import KernelBuildError, PolyfuseError, UnsupportedError
from polyfuse.base.log import get_logger, warn_once
from polyfuse.cache import Located
from polyfuse.compiler.guarding import (
    BuiltKernel,
    Guard,
    barred,
    called_alike,
    interpreted,
    replacements,
)
from polyfuse.compiler.packages.kernels import GeneratedFrom
from polyfuse.compiler.reports.naming import emit_named
from polyfuse.compiler.reports.progress import note_built
from polyfuse.compiler.reports.report import Provider
from polyfuse.compiler.session import CompileSession
from polyfuse.ir.kernel import Kernel
from polyfuse.plugin import Backend, Config, Launchable, Source
from polyfuse.program import Program, ProgramKernel
from polyfuse.runtime.profile import metered
from polyfuse.schedule import Launch, Schedule, is_unasked, note_interpreted
from polyfuse.workers import BuildFuture

_log = get_logger("compiler")

# So many lines of a compiler's output are part of a warning.
_TAIL = 5

# How many configurations are looked at when the first one is not good.
_CONFIGS_TRIED = 8


@dataclass(frozen=True)
class Emitted:
    """The source of one kernel and who wrote it.

    Attributes:
        backend, source: these.
        provider: who provides the kernel in the end.
        config: in which configuration; None: as the backend likes best.
        tuned: whether it was chosen for being fast: then it is checked, whatever the option `check` says.
    """

    backend: Backend
    source: Source
    provider: Provider
    config: Config | None = None
    tuned: bool = False


def tune_kernels(schedule: Schedule, session: CompileSession, beside: float = 0.0) -> Schedule:
    """The schedule with the fastest configuration of each kernel that has several.

    Args:
        beside: milliseconds that the graph spends otherwise, as far as they are known.
    """
    settings = session.settings
    if not settings.tune_kernels and not settings.autotune_backends:
        return schedule
    wanted: dict[tuple[str, Kernel], Sequence[Backend]] = {}
    launches = [step for step in schedule.steps if isinstance(step, Launch)]
    for step in launches:
        if (step.backend, step.kernel) in wanted or step.choice is not None or step.kernel.parts:
            continue
        first = _accepting_backend(step, session)
        found: tuple[Backend, ...] = (first,)
        if settings.autotune_backends and first.autotunes_kernels:
            found = tuple(b for b in session.tuner.claiming_backends(step) if b.autotunes_kernels)
        wanted[step.backend, step.kernel] = found
    try:
        uses = Counter((step.backend, step.kernel) for step in launches)
        choices = search_kernels(session.tuner, wanted, uses, beside)
    except Exception as error:
        if settings.strict:
            raise
        warn_once("autotune", f"kernels are not tuned: {type(error).__name__}: {error}")
        return schedule
    steps = tuple(
        replace(step, choice=step.choice or choices.get((step.backend, step.kernel)))
        if isinstance(step, Launch)
        else step
        for step in schedule.steps
    )
    rows = tuple(choice.row("tune") for choice in choices.values())
    return replace(schedule, steps=steps, decisions=(*schedule.decisions, *rows))


def emit_kernels(schedule: Schedule, session: CompileSession) -> dict[tuple[str, Kernel], Emitted]:
    """The source of every distinct kernel, by (backend it was scheduled for, kernel)."""
    out: dict[tuple[str, Kernel], Emitted] = {}
    for step in schedule.steps:
        if not isinstance(step, Launch) or (step.backend, step.kernel) in out:
            continue
        item = _emit(step, session)
        if item.backend.name != step.backend and is_unasked(item.backend, session.settings):
            what = ", ".join(dict.fromkeys(o.op for node in step.nodes for o in node.origins))
            note_interpreted(f"kernel {step.kernel.name} of {what}", item.provider.reason, session.settings)
        out[step.backend, step.kernel] = item
    return out


def _accepting_backend(step: Launch, session: CompileSession) -> Backend:
    """The first backend that does not refuse the whole of a kernel: it is more than its nodes."""
    for backend in session.tuner.claiming_backends(step):
        try:
            backend.configs(step.kernel)
        except UnsupportedError as error:
            _log.info("backend %r refuses kernel %s: %s", backend.name, step.kernel.name, error)
        except Exception as error:
            if session.settings.strict:
                raise
            session.plugins.note_trouble(backend.name, error, "running its method `configs`")
        else:
            return backend
    return session.plugins.backend(step.backend)


def _emit(step: Launch, session: CompileSession) -> Emitted:
    """The kernel of a launch by the backend that was chosen, else by the next one that generates it."""
    kernel, choice = step.kernel, step.choice
    chosen = "" if choice is None else choice.candidate.implementation
    backends = session.tuner.claiming_backends(step)
    if chosen and chosen != step.backend:
        first = session.plugins.backend(chosen)
        backends = chain((first,), (backend for backend in backends if backend.name != chosen))
    failure: Exception | None = None
    reason = ""
    for backend in backends:
        try:
            tuned = backend.name == chosen
            config = step.config if tuned else None
            if session.choose_config is not None:
                config, tuned = session.choose_config(backend, kernel), False
            emitted = _allowed(backend, kernel, config, session, reason)
            if emitted is not None:
                return replace(emitted, tuned=tuned)
            reason = f"{backend.name}'s kernel is barred"
        except UnsupportedError as error:  # an answer, not a failure: the whole kernel is more than its nodes
            failure, reason = error, f"{backend.name} refuses it: {error.cause}"
            _log.info("backend %r refuses kernel %s: %s", backend.name, kernel.name, error)
        except Exception as error:
            if session.settings.strict:
                raise
            failure, reason = error, f"{backend.name} raised {type(error).__name__} over it"
            session.plugins.note_trouble(backend.name, error, "running its method `emit`")
    if failure is None:  # all that could be generated is barred
        interpreter = session.plugins.backend("interpreter")
        return Emitted(interpreter, emit_named(interpreter, kernel), Provider(interpreter.name, reason))
    raise PolyfuseError(
        f"no backend could generate code for kernel {kernel.name} ({failure})",
        "set strict to see the first failure",
    ) from failure


def _allowed(
    backend: Backend, kernel: Kernel, config: Config | None, session: CompileSession, reason: str
) -> Emitted | None:
    """The source of a kernel in a configuration that is not barred: the one asked for, or the next one."""
    source = emit_named(backend, kernel, config)
    why = barred(session, backend, kernel, source)
    if not why:
        return Emitted(backend, source, Provider(backend.name, reason), config)
    _log.info("kernel %s by backend %r is barred: %s", kernel.name, backend.name, why)
    for other in tuple(backend.configs(kernel))[:_CONFIGS_TRIED]:
        source = emit_named(backend, kernel, other)
        if not barred(session, backend, kernel, source):
            return Emitted(backend, source, Provider(backend.name, reason), other)
    return None


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
    """A kernel that is being built. `result` waits for it, and tries the next backend if it failed to build.

    Attributes:
        name: in the host program.
    """

    name: str
    emitted: Emitted
    future: BuildFuture
    launch: Launch
    session: CompileSession

    @property
    def _kernel(self) -> Kernel:
        return self.launch.kernel

    @property
    def built(self) -> GeneratedFrom:
        """What it is generated from."""
        source, config = self.emitted.source, self.emitted.config
        return GeneratedFrom(self._kernel, source.name, "" if config is None else str(config))

    def _claiming_backends(self) -> Iterable[Backend]:
        return self.session.tuner.claiming_backends(self.launch)

    def _guarded(
        self, backend: Backend, source: Source, config: Config | None, found: Launchable
    ) -> Callable[..., Any]:
        """A built kernel, checked if that was asked for, called as the planned one is."""
        alike = found
        if source is not self.emitted.source:
            alike = called_alike(self._kernel, source, found)
        address = self.session.pool.address(backend, source)
        text = "" if config is None else str(config)
        built = BuiltKernel(self._kernel, source.name, backend, address, text)
        tuned = self.emitted.tuned and source is self.emitted.source
        guard = Guard(built, self.session, self._claiming_backends, self._note_provider)
        return guard.around(alike, tuned=tuned)

    def result(self) -> Callable[..., Any]:
        """The callable kernel; with the option `profile`, one that measures itself."""
        kernel, source, found = self._kernel, self.emitted.source, self._found()
        note_built()
        if not self.session.settings.profile:
            return found
        uses = [{"size": 0, "inout": 2}.get(arg.kind, 1) for arg in kernel.args]
        return metered(self.name, source.key, kernel.device.partition(":")[0], uses, found)

    def folder(self) -> Path | None:
        """Where the built kernel lies; None where it fell back to something else."""
        key = self.emitted.source.key
        if isinstance(self.future.outcomes()[key], PolyfuseError):
            return None
        location = self.future.locations()[key]
        good = _is_good(self.emitted.backend, self.future, self.emitted.source)
        return location.folder if good and isinstance(location, Located) else None

    def _found(self) -> Callable[..., Any]:
        """The callable kernel.

        Where it could not be built as it should be, other configurations of it are tried. Where its backend
        failed, it falls back to the next one that claims it, and to the interpretation of the kernel in the
        end; with `strict`, the failure is raised.
        """
        source, future, first = self.emitted.source, self.future, self.emitted.backend
        outcome = future.outcomes()[source.key]
        good = not isinstance(outcome, PolyfuseError) and (
            # what a test chose is what it gets
            self.session.choose_config is not None or _is_good(first, future, source)
        )
        if good and not isinstance(outcome, PolyfuseError):
            return self._guarded(first, source, self.emitted.config, outcome)
        other = self._otherwise(isinstance(outcome, PolyfuseError))
        if other is not None:
            return other
        if not isinstance(outcome, PolyfuseError):
            return self._guarded(first, source, self.emitted.config, outcome)
        if self.session.settings.strict:
            raise outcome
        failed, kernel = first.name, self._kernel
        _log.info("%s", outcome)
        for built, other_source, found in replacements(
            kernel, (failed,), self.session, self._claiming_backends()
        ):
            self._note_provider(built.backend.name, f"{failed} failed: {outcome.cause}")
            _warn_of_replacement(failed, kernel, outcome, repr(built.backend.name))
            alike = called_alike(kernel, other_source, found)
            return Guard(built, self.session, self._claiming_backends, self._note_provider, (failed,)).around(
                alike
            )
        self._note_provider("an interpreter", f"{failed} failed: {outcome.cause}")
        _warn_of_replacement(failed, kernel, outcome, "an interpreter")
        return interpreted(kernel)

    def _note_provider(self, name: str, reason: str) -> None:
        self.emitted.provider.backend, self.emitted.provider.reason = name, reason

    def _otherwise(self, any_will_do: bool) -> Callable[..., Any] | None:
        """The kernel in another configuration that can be built as it should be; else, if any will do, in one
        that can be built at all.
        """
        backend, kernel = self.emitted.backend, self._kernel
        spare: Callable[..., Any] | None = None
        try:
            configs = backend.configs(kernel)[1:_CONFIGS_TRIED]
            sources = [emit_named(backend, kernel, config) for config in configs]
            if not sources:
                return None
            future = _start_builds(self.session, backend, sources)
            for config, source in zip(configs, sources, strict=True):
                found = future.outcomes()[source.key]
                if isinstance(found, PolyfuseError) or barred(self.session, backend, kernel, source):
                    continue
                made = self._guarded(backend, source, config, found)
                if _is_good(backend, future, source):
                    _log.info("kernel %s is built in another configuration", kernel.name)
                    return made
                spare = spare or made
        except Exception as error:
            self.session.plugins.note_trouble(backend.name, error, "building in other configurations")
        return spare if any_will_do else None


def _is_good(backend: Backend, future: BuildFuture, source: Source) -> bool:
    """Whether what was built is as its backend wants it."""
    location = future.locations()[source.key]
    if not isinstance(location, Located):
        return False
    claim = backend.review(location.folder, location.source_key)
    if not claim:
        _log.info("kernel %s is not as it should be: %s", source.name, claim)
    return bool(claim)


def _warn_of_replacement(failed: str, kernel: Kernel, error: PolyfuseError, other: str) -> None:
    warn_once(
        "compiler",
        f"backend {failed!r} could not provide kernel {kernel.name} ({error.cause}), which falls back to "
        f"{other}, here and wherever it fails; POLYFUSE_STRICT=1 raises the error with all of the compiler's "
        f"words{_build_output(error)}",
        key=f"replacement of {failed}",
    )


def _build_output(error: PolyfuseError) -> str:
    """The command of a build that failed, and the end of what it printed; empty for other errors."""
    if not isinstance(error, KernelBuildError) or not error.command:
        return ""
    tail = error.output.strip().splitlines()[-_TAIL:]
    return "".join(f"\n  {line}" for line in (f"command: {shlex.join(error.command)}", *tail))


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
        return PendingKernel(entry.name, item, futures[item.backend.name], launch, session)

    return {entry.name: pending(entry) for entry in program.kernels}
