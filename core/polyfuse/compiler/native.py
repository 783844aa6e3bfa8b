"""Native host programs of compiled graphs: who prints them, their build beside the kernels, and opening them.

Whatever stands in the way is an answer: the Python program runs, and the report says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from polyfuse.base.errors import UnsupportedError
from polyfuse.base.log import get_logger, warn_once
from polyfuse.compiler.kernels import PendingKernel
from polyfuse.compiler.native_host import NativeHost
from polyfuse.compiler.session import CompileSession
from polyfuse.plugin import No
from polyfuse.program import Program
from polyfuse.program.native.lowering import native_program
from polyfuse.runtime.native_program import HostStatus, Opener
from polyfuse.workers import BuildFuture

_log = get_logger("compiler")


def native_host(
    program: Program, kernels: Mapping[str, PendingKernel], session: CompileSession, status: HostStatus
) -> NativeHost | None:
    """Start building the native form of a program; None where it has none, and `status` says why."""
    if session.settings.check != "off":
        status.refused = "the option 'check' is on, and it launches kernels one by one"
        return None
    try:
        calls = {name: kernel.emitted.backend.host(kernel.emitted.source) for name, kernel in kernels.items()}
        printed = native_program(program, calls)
        for backend in session.backends("cpu"):
            source = backend.host_program(printed)
            if isinstance(source, No):
                _log.debug("backend %r prints no host program: %s", backend.name, source.reason)
                continue
            future = session.pool.submit(backend, [source], session.store)
            status.backend = backend.name
            return NativeHost(
                status,
                printed,
                partial(_built, future, source.key),
                lambda name: kernels[name].folder(),
                backend,
                source,
            )
        status.refused = "no backend prints host programs"
    except UnsupportedError as error:
        status.refused = error.cause
    except Exception as error:
        if session.settings.strict:
            raise
        status.refused = f"{type(error).__name__}: {error}"
        warn_once(
            "compiler", f"a native host program cannot be printed ({error}); the Python program runs instead"
        )
    return None


def _built(future: BuildFuture, key: str) -> Opener:
    opener: Opener = future.result()[key]  # type: ignore[assignment]
    return opener
