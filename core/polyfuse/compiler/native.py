"""Native host programs of compiled graphs: who prints them, their build beside the kernels, and opening them.

Whatever stands in the way is an answer: the Python program runs, and the report says why.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from polyfuse.base.errors import PolyfuseError, UnsupportedError
from polyfuse.base.log import get_logger, warn_once
from polyfuse.compiler.kernels import PendingKernel
from polyfuse.compiler.session import CompileSession
from polyfuse.plugin import HostProgram, No, Source
from polyfuse.program import Program
from polyfuse.program.native import native_program
from polyfuse.program.native_tables import host_tables
from polyfuse.runtime.native_program import HostStatus, NativeCall, Opener
from polyfuse.workers import BuildFuture

__all__ = ["NativeHost", "native_host"]

_log = get_logger("compiler")


@dataclass
class NativeHost:
    """A native host program on its way.

    Attributes:
        status: what became of it.
        program: what was printed; None where it was refused.
        source: its text.
    """

    status: HostStatus
    program: HostProgram | None = None
    source: Source | None = None
    future: BuildFuture | None = None
    kernels: Mapping[str, PendingKernel] | None = None

    def open(
        self, launchables: Mapping[str, Callable[..., Any]], objects: Mapping[str, Any], aligned: Any
    ) -> NativeCall | None:
        """The program, to be called with a list of inputs; None where the Python program has to do.

        Args:
            launchables: the kernels, by their names in the program.
            objects: the graph's object table.
            aligned: which inputs kernels take to be aligned.
        """
        if self.program is None or self.source is None or self.future is None or self.kernels is None:
            return None
        try:
            addresses = [self._kernel(name) for name in self.program.kernel_names]
            opener: Opener = self.future.result()[self.source.key]  # type: ignore[assignment]
            return opener(host_tables(self.program, addresses, launchables, objects, aligned))
        except Exception as error:
            self.status.refused = str(error) if isinstance(error, PolyfuseError) else repr(error)
            if not isinstance(error, UnsupportedError):
                warn_once(
                    "compiler", f"a native host program cannot be used ({error}); Python takes its place"
                )
            return None

    def _kernel(self, name: str) -> int:
        """The address of a kernel that is called directly."""
        assert self.program is not None and self.kernels is not None
        folder = self.kernels[name].folder()
        if folder is None:
            raise UnsupportedError(f"another kernel took the place of {name}")
        call = self.program.kernels[self.program.kernel_names.index(name)]
        library = ctypes.CDLL(str(folder / call.library))
        address = ctypes.cast(getattr(library, call.symbol), ctypes.c_void_p).value
        assert address is not None
        return address


def native_host(
    program: Program, kernels: Mapping[str, PendingKernel], session: CompileSession
) -> NativeHost | None:
    """Start building the native form of a program; None where nobody asked for it."""
    if not session.settings.native_host:
        return None
    status = HostStatus()
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
            return NativeHost(status, printed, source, future, kernels)
        status.refused = "no backend prints host programs"
    except UnsupportedError as error:
        status.refused = error.cause
    except Exception as error:
        if session.settings.strict:
            raise
        status.refused = f"{type(error).__name__}: {error}"
        warn_once("compiler", f"a native host program cannot be printed ({error}); Python takes its place")
    return NativeHost(status)
