"""Kernels that are wrong or cannot be launched: which are checked, what is remembered of them, and what
replaces them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from polyfuse.base.digest import digest, stable_json
from polyfuse.base.errors import BackendError, PolyfuseError, UnsupportedError
from polyfuse.base.log import get_logger, warn_once
from polyfuse.base.settings import Settings, option_infos
from polyfuse.base.text import shorten
from polyfuse.checking.first import FirstLaunch
from polyfuse.compiler.reports.naming import emit_named

if TYPE_CHECKING:
    from polyfuse.checking.launch import CheckResult
    from polyfuse.checking.operands import Layout
    from polyfuse.checking.tally import Subject
    from polyfuse.compiler.session import CompileSession
    from polyfuse.ir.kernel import Alias, Kernel
    from polyfuse.plugin import Backend, Launchable, Source


_log = get_logger("checking")


@dataclass(frozen=True)
class BuiltKernel:
    """A kernel that was built.

    Attributes:
        kernel: what it was generated from.
        name: for people.
        backend: who generated it.
        address: of what was built, in the kernel store.
        config: in which configuration, as text.
    """

    kernel: Kernel
    name: str
    backend: Backend
    address: str
    config: str


@dataclass(frozen=True)
class Guard:
    """What is done about a kernel that is wrong, or whose launch raises.

    Attributes:
        built: the kernel.
        session: of the graph.
        backends: which may generate the kernel, best first.
        note: called with the backend that provides the kernel instead, and the reason.
        tried: names of backends whose kernels failed.
    """

    built: BuiltKernel
    session: CompileSession
    backends: Callable[[], Iterable[Backend]]
    note: Callable[[str, str], None]
    tried: tuple[str, ...] = ()

    def around(self, launch: Callable[..., Any], *, tuned: bool = False) -> Callable[..., Any]:
        """The kernel, checked as the option `check` says, and replaced where a launch raises.

        Args:
            tuned: whether the kernel won by being fast: its first launch is checked, whatever the option
                says.
        """
        built, session = self.built, self.session
        if built.backend.name == "interpreter":
            return launch
        if session.settings.check == "off" and not tuned:
            return FirstLaunch(built.kernel, launch, built.backend.synchronize, self.failed)
        from polyfuse.checking.checked import CheckedKernel  # what is not checked need not load it

        return CheckedKernel(
            self._subject(),
            launch,
            session.records,
            session.settings.check == "all",
            built.backend.synchronize,
            self.differs,
            self.failed,
            by_sizes=session.settings.check == "off",
        )

    def differs(self, found: CheckResult, operands: Sequence[Any], layout: Layout) -> Callable[..., Any]:
        """Bar a kernel, report it, and return what is called instead of it.

        Raises:
            BackendError: with the option `strict`, instead.
        """
        from polyfuse.checking.tally import report_difference

        built, session = self.built, self.session
        folder = Path(session.settings.dump_folder() or session.store.root / "repros")
        finding = report_difference(
            self._subject(), found, operands, layout, folder, _options(session.settings)
        )
        self._bar(found.problem, finding.repro)
        if session.settings.strict:
            raise BackendError(str(finding), "report it to the backend's author with the file")
        warn_once(
            "checking",
            f"{finding}; it is not used here any more",
            key=f"{built.address} {built.backend.name}",
        )
        return self._next(f"the kernel of {built.backend.name} differs from the interpreter")[0]

    def failed(self, error: Exception) -> Callable[..., Any]:
        """What is called in place of a kernel whose launch raised."""
        built, session = self.built, self.session
        if session.settings.strict:
            raise error
        name = built.backend.name
        _log.info("kernel %s by backend %r failed", built.name, name, exc_info=error)
        # for this process only: what stands in the way of a launch may be gone in another one
        self._bar(f"its launch raised {type(error).__name__}", keep=False)
        what = f"{type(error).__name__}: {shorten(str(error), 200)}"
        replacement, other = self._next(f"{name} failed to launch ({what})")
        warn_once(
            "compiler",
            f"kernel {built.name} of backend {name!r} could not be launched ({what}); {other} replaces it,"
            " here and wherever a launch of that backend fails; POLYFUSE_STRICT=1 raises the error",
            key=f"launches of {name}",
        )
        return replacement

    def _subject(self) -> Subject:
        from polyfuse.checking.tally import Subject
        from polyfuse.ir.digest import ir_digest

        built = self.built
        key = self.session.records.key(built.address, built.backend.machine(), ir_digest(built.kernel))
        return Subject(built.kernel, built.name, built.backend.name, key, built.config)

    def _next(self, reason: str) -> tuple[Callable[..., Any], str]:
        """What replaces a kernel, and its name for people."""
        built, session = self.built, self.session
        tried = (*self.tried, built.backend.name)
        for other, source, launch in replacements(built.kernel, tried, session, self.backends()):
            self.note(other.backend.name, reason)
            alike = called_alike(built.kernel, source, launch)
            guard = Guard(other, session, self.backends, self.note, tried)
            return guard.around(alike), f"backend {other.backend.name!r}"
        self.note("an interpreter", reason)
        return interpreted(built.kernel), "the interpreter"

    def _bar(self, why: str, repro: str = "", keep: bool = True) -> None:
        """Never use the kernel again on this machine; without `keep`, in this process."""
        built, records = self.built, self.session.records
        about = {
            "kernel": built.name,
            "backend": built.backend.name,
            "config": built.config,
            "subject": _subject(built.backend, built.kernel),
            "repro": repro,
        }
        records.bar(records.bar_key(built.address, built.backend.machine()), why, about, keep)


def barred(session: CompileSession, backend: Backend, kernel: Kernel, source: Source) -> str:
    """Why a kernel's source must not be used on this machine; empty if it may be.

    Where several configurations of one kernel are barred, it is the backend that has it wrong, and no other
    configuration is tried.
    """
    if not session.records.any_barred:
        return ""
    from polyfuse.checking.tally import forgets

    if forgets():
        return ""
    machine = backend.machine()
    key = session.records.bar_key(session.pool.address(backend, source), machine)
    return session.records.barred(key, _subject(backend, kernel))


def replacements(
    kernel: Kernel, tried: Sequence[str], session: CompileSession, takers: Iterable[Backend]
) -> Iterator[tuple[BuiltKernel, Source, Callable[..., Any]]]:
    """What can replace a kernel, built when it is reached, with its source.

    Args:
        tried: backends whose kernels failed: they are not asked again.
    """
    for backend in takers:
        found = None if backend.name in tried else _built(backend, kernel, session)
        if found is not None:
            yield found


def interpreted(kernel: Kernel) -> Callable[..., None]:
    """The kernel run by the interpreter: slow and correct."""
    return partial(_interpret, kernel)


def called_alike(kernel: Kernel, source: Source, found: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel that replaces the planned one, called as that is.

    Memory may have been planned with two arguments of the kernel at one address, which this one refuses.
    """
    refused = [pair for pair in kernel.aliases if pair in source.refused_aliases]
    return apart(kernel, refused, found) if refused else found


def _built(
    backend: Backend, kernel: Kernel, session: CompileSession
) -> tuple[BuiltKernel, Source, Callable[..., Any]] | None:
    try:
        source = emit_named(backend, kernel)
    except UnsupportedError as error:
        _log.info("backend %r refuses kernel %s: %s", backend.name, kernel.name, error)
        return None
    except Exception as error:
        session.plugins.note_trouble(backend.name, error, "running its method `emit`")
        return None
    if barred(session, backend, kernel, source):
        return None
    outcome = session.pool.submit(backend, [source], session.store).outcomes()[source.key]
    if isinstance(outcome, PolyfuseError):
        _log.info("%s", outcome)
        return None
    address = session.pool.address(backend, source)
    return BuiltKernel(kernel, source.name, backend, address, ""), source, outcome


def _subject(backend: Backend, kernel: Kernel) -> str:
    """A kernel in all its configurations by a backend as it is: another version of it may have it right."""
    from polyfuse.ir.digest import ir_digest

    facts = stable_json({**backend.describe(), **backend.machine()})
    return digest("subject", backend.name, facts, ir_digest(kernel))


def _options(settings: Settings) -> dict[str, Any]:
    """The options that change generated code and are not as usual."""
    infos = option_infos()
    return {
        item.name: list(value) if isinstance(value, tuple) else value
        for item in fields(settings)
        if infos[item.name].affects_code
        and item.name not in ("plugin_options", "backends", "disable")
        and (value := getattr(settings, item.name)) != item.default
    }


def _interpret(kernel: Kernel, *operands: Any) -> None:
    # needed only where every backend failed, and slow to import
    from polyfuse.ir.interpreter.interpret import run_kernel

    run_kernel(kernel, operands)


def apart(kernel: Kernel, pairs: Iterable[Alias], launch: Launchable) -> Launchable:
    """The launches of a kernel with the two arguments of each pair apart: the input is copied where it is
    given at the address of the output.
    """
    index = {arg.name: k for k, arg in enumerate(kernel.args)}
    indices = sorted((index[pair.output], index[pair.input]) for pair in pairs)
    return partial(_apart, launch, tuple(indices))


def _apart(launch: Launchable, pairs: tuple[tuple[int, int], ...], *operands: Any) -> None:
    given = list(operands)
    for output, source in pairs:
        written, read = operands[output], operands[source]
        if isinstance(written, torch.Tensor) and isinstance(read, torch.Tensor):
            if written.data_ptr() == read.data_ptr():
                given[source] = read.clone()
    launch(*given)
