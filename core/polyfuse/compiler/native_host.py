"""Native host programs of compiled graphs: who prints them, their build beside the kernels, and opening them.

Whatever stands in the way is an answer: the Python program runs, and the report says why.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyfuse.base.errors import PolyfuseError, UnsupportedError
from polyfuse.base.log import get_logger, warn_once
from polyfuse.compiler.kernels import PendingKernel
from polyfuse.compiler.session import CompileSession
from polyfuse.plugin import No
from polyfuse.program import Program
from polyfuse.program.native.lowering import native_program
from polyfuse.runtime.libraries import SharedLibrary
from polyfuse.runtime.native_program import HostStatus, Opener
from polyfuse.workers import BuildFuture

if TYPE_CHECKING:
    from polyfuse.plugin import Backend, HostCall, HostProgram, Source
    from polyfuse.runtime.native_program import HostStatus, NativeCall, Opener


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


@dataclass
class NativeHost:
    """A native host program on its way.

    Attributes:
        status: what became of it.
        program: what was printed.
        opener: waits for what was built, and returns what opens it.
        folder: where a kernel lies, by its name in the program; None where something else replaced it.
        backend, source: by whom it was printed, and its text; None where it was built before.
    """

    status: HostStatus
    program: HostProgram
    opener: Callable[[], Opener]
    folder: Callable[[str], Path | None]
    backend: Backend | None = None
    source: Source | None = None

    def open(
        self,
        launchables: Mapping[str, Callable[..., Any]],
        objects: Mapping[str, Any],
        aligned: Any,
        replaced: Collection[str],
    ) -> NativeCall | None:
        """The program, to be called with a list of inputs; None where the Python program has to do.

        Args:
            launchables: the kernels, by their names in the program.
            objects: the graph's object table.
            aligned: which inputs kernels take to be aligned.
            replaced: names of kernels instead of which something else is called.
        """
        # what is needed to open one, a graph without one need not load
        from polyfuse.program.native.tables import host_tables

        try:
            pairs = zip(self.program.kernel_names, self.program.kernels, strict=True)
            found = [self._located(name, call, replaced) for name, call in pairs]
            addresses = [library.address(call.symbol) for library, call in found]
            opener = self.opener()
            tables = host_tables(self.program, addresses, launchables, objects, aligned)
            return opener(replace(tables, libraries=tuple(library for library, _ in found)))
        except Exception as error:
            self.status.refused = str(error) if isinstance(error, PolyfuseError) else repr(error)
            if not isinstance(error, UnsupportedError):
                warn_once(
                    "compiler",
                    f"a native host program cannot be used ({error}); the Python program runs instead",
                )
            return None

    def _located(
        self, name: str, call: HostCall, replaced: Collection[str]
    ) -> tuple[SharedLibrary, HostCall]:
        """The library of a kernel that is called directly."""
        folder = None if name in replaced else self.folder(name)
        if folder is None:
            raise UnsupportedError(f"another kernel replaced {name}")
        return SharedLibrary(folder / call.library, "kernel library"), call
