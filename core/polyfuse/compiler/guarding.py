"""Kernels that are wrong: who checks them, what is remembered of them, and what takes their place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyfuse.base.digest import digest, stable_json
from polyfuse.base.errors import BackendError, PolyfuseError, UnsupportedError
from polyfuse.base.log import get_logger, warn_once
from polyfuse.base.settings import Settings, option_infos
from polyfuse.base.text import shorten
from polyfuse.checking.first import FirstLaunch
from polyfuse.compiler.copies import apart
from polyfuse.compiler.reports.naming import emit_named
from polyfuse.ir.kernel import Kernel
from polyfuse.plugin import Backend, Source

if TYPE_CHECKING:
    from polyfuse.checking.launch import CheckResult
    from polyfuse.checking.operands import Layout
    from polyfuse.compiler.session import CompileSession

__all__ = [
    "BuiltKernel",
    "barred",
    "called_alike",
    "guarded",
    "guarded_later",
    "interpreted",
    "is_barred",
    "replacements",
]

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
        scratch: bytes that each launch is given beside the operands.
    """

    kernel: Kernel
    name: str
    backend: Backend
    address: str
    config: str
    scratch: int


def guarded(
    built: BuiltKernel,
    launch: Callable[..., Any],
    session: CompileSession,
    takers: Callable[[], Iterable[Backend]],
    tried: tuple[str, ...] = (),
    *,
    tuned: bool = False,
) -> Callable[..., Any]:
    """The kernel, checked as the option `check` says, and replaced where a launch raises.

    Args:
        takers: backends that may generate the kernel, best first.
        tried: those that failed.
        tuned: whether the kernel won by being fast: its first launch is checked, whatever the option says.
    """
    if built.backend.name == "interpreter":
        return launch
    tried = (*tried, built.backend.name)
    replace = partial(_failed, built, session, takers, tried)
    if session.settings.check == "off" and not tuned:
        return FirstLaunch(built.kernel, launch, replace)
    from polyfuse.checking.checked import CheckedKernel, Subject  # what is not checked need not load it
    from polyfuse.ir.digest import ir_digest

    machine = built.backend.machine()
    key = session.records.key(built.address, machine, ir_digest(built.kernel))
    return CheckedKernel(
        Subject(built.kernel, built.name, built.backend.name, key, built.config),
        launch,
        session.records,
        session.settings.check == "all",
        built.backend.synchronize,
        partial(_differs, built, session, takers, tried),
        replace,
    )


def guarded_later(
    built: Callable[[], BuiltKernel], launch: Callable[..., Any], session: CompileSession
) -> Callable[..., Any]:
    """A kernel of a stored graph, replaced where its first launch raises; what it was generated from is read
    then.
    """

    def replace(error: Exception) -> Callable[..., Any]:
        found = built()
        takers = partial(session.backends, found.kernel.device)
        return _failed(found, session, takers, (found.backend.name,), error)

    return FirstLaunch(lambda: built().kernel, launch, replace)


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


def is_barred(session: CompileSession, backend: Backend, address: str) -> bool:
    """Whether what was built under an address must not be used on this machine."""
    records = session.records
    return records.any_barred and bool(records.barred(records.bar_key(address, backend.machine()), ""))


def replacements(
    kernel: Kernel, tried: Sequence[str], session: CompileSession, takers: Iterable[Backend]
) -> Iterator[tuple[BuiltKernel, Source, Callable[..., Any]]]:
    """What can take a kernel's place, built when it is reached, with its source.

    Args:
        tried: backends whose kernels failed: they are not asked again.
    """
    for backend in takers:
        found = None if backend.name in tried else _built(backend, kernel, session)
        if found is not None:
            yield found


def interpreted(kernel: Kernel) -> Callable[..., None]:
    """The kernel by the interpreter: slowly, and right."""
    return partial(_interpret, kernel, len(kernel.args))


def called_alike(
    kernel: Kernel, planned: int, source: Source, found: Callable[..., Any]
) -> Callable[..., Any]:
    """A kernel that takes the place of the planned one, called as that is.

    Memory may have been planned with two arguments of the kernel in one place, which this one refuses; and
    with so much scratch, which is passed on only if it is as much as this one asks for.
    """
    refused = [pair for pair in kernel.aliases if pair in source.refused_aliases]
    if refused:
        found = apart(kernel, refused, found)
    return partial(_without_last, found) if planned and source.scratch != planned else found


def _built(
    backend: Backend, kernel: Kernel, session: CompileSession
) -> tuple[BuiltKernel, Source, Callable[..., Any]] | None:
    try:
        source = emit_named(backend, kernel)
    except UnsupportedError as error:
        _log.info("backend %r refuses kernel %s: %s", backend.name, kernel.name, error)
        return None
    except Exception as error:
        session.plugins.note_trouble(backend.name, error, "generating code")
        return None
    if barred(session, backend, kernel, source):
        return None
    outcome = session.pool.submit(backend, [source], session.store).outcomes()[source.key]
    if isinstance(outcome, PolyfuseError):
        _log.info("%s", outcome)
        return None
    address = session.pool.address(backend, source)
    return BuiltKernel(kernel, source.name, backend, address, "", source.scratch), source, outcome


def _differs(
    built: BuiltKernel,
    session: CompileSession,
    takers: Callable[[], Iterable[Backend]],
    tried: tuple[str, ...],
    found: CheckResult,
    operands: Sequence[Any],
    layout: Layout,
) -> Callable[..., Any]:
    """Bar a kernel, tell of it, and return what is called in its place."""
    from polyfuse.checking import tally

    repro = _repro(built, session, found, operands, layout)
    origins = built.kernel.origins
    finding = tally.Finding(
        built.name,
        built.backend.name,
        built.config,
        tuple(dict.fromkeys(o.op for o in origins)),
        next((o.source for o in origins if o.source), ""),
        found.problem,
        repro,
    )
    tally.found(finding)
    _bar(built, session, found.problem, repro)
    if session.settings.strict:
        raise BackendError(str(finding), "report it to the backend's author with the file")
    warn_once(
        "checking", f"{finding}; it is not used here any more", key=f"{built.address} {built.backend.name}"
    )
    return _next(built, session, takers, tried)[0]


def _failed(
    built: BuiltKernel,
    session: CompileSession,
    takers: Callable[[], Iterable[Backend]],
    tried: tuple[str, ...],
    error: Exception,
) -> Callable[..., Any]:
    """What is called in place of a kernel whose launch raised."""
    if session.settings.strict:
        raise error
    _log.info("kernel %s by backend %r failed", built.name, built.backend.name, exc_info=error)
    # for this process only: what stands in the way of a launch may be gone in another one
    _bar(built, session, f"its launch raised {type(error).__name__}", keep=False)
    replacement, name = _next(built, session, takers, tried)
    warn_once(
        "compiler",
        f"kernel {built.name} of backend {built.backend.name!r} could not be launched"
        f" ({type(error).__name__}: {shorten(str(error), 200)}); {name} takes its place, here and wherever a"
        " launch of that backend fails; POLYFUSE_STRICT=1 raises the error",
        key=f"launches of {built.backend.name}",
    )
    return replacement


def _next(
    built: BuiltKernel,
    session: CompileSession,
    takers: Callable[[], Iterable[Backend]],
    tried: tuple[str, ...],
) -> tuple[Callable[..., Any], str]:
    """What takes a kernel's place, and its name for people."""
    for other, source, launch in replacements(built.kernel, tried, session, takers()):
        alike = called_alike(built.kernel, built.scratch, source, launch)
        return guarded(other, alike, session, takers, tried), f"backend {other.backend.name!r}"
    return interpreted(built.kernel), "the interpreter"


def _bar(built: BuiltKernel, session: CompileSession, why: str, repro: str = "", keep: bool = True) -> None:
    """Never use a kernel again on this machine; without `keep`, in this process."""
    name = built.backend.name
    about = {
        "kernel": built.name,
        "backend": name,
        "config": built.config,
        "subject": _subject(built.backend, built.kernel),
        "repro": repro,
    }
    session.records.bar(session.records.bar_key(built.address, built.backend.machine()), why, about, keep)


def _subject(backend: Backend, kernel: Kernel) -> str:
    """A kernel in all its configurations by a backend as it is: another version of it may have it right."""
    from polyfuse.ir.digest import ir_digest

    facts = stable_json({**backend.describe(), **backend.machine()})
    return digest("subject", backend.name, facts, ir_digest(kernel))


def _repro(
    built: BuiltKernel, session: CompileSession, found: CheckResult, operands: Sequence[Any], layout: Layout
) -> str:
    """The name of a file with the launch; empty where none can be written."""
    from polyfuse.checking.repro import write_repro

    folder = session.settings.dump_folder() or session.store.root / "repros"
    path = Path(folder) / f"{built.name}-{built.backend.name}-{built.address[:12]}.pt"
    try:
        options = _options(session.settings)
        about = f"{built.name}: {found.problem}"
        args = (built.kernel, built.backend.name, built.config, options, about, operands, layout)
        return str(write_repro(path, *args))
    except Exception as error:
        _log.info("the launch of %s cannot be written to %s: %s", built.name, path, error)
        return ""


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


def _without_last(kernel: Callable[..., Any], *operands: Any) -> None:
    kernel(*operands[:-1])


def _interpret(kernel: Kernel, count: int, *operands: Any) -> None:
    # needed only where every backend failed, and slow to import
    from polyfuse.ir.interpreter.interpret import run_kernel

    run_kernel(kernel, operands[:count])
