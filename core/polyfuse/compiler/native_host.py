"""A native host program on its way: opening it once its kernels are built, or saying why Python has to do."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyfuse.base.errors import PolyfuseError, UnsupportedError
from polyfuse.base.log import warn_once
from polyfuse.runtime.libraries import SharedLibrary

if TYPE_CHECKING:
    from polyfuse.plugin import Backend, HostCall, HostProgram, Source
    from polyfuse.runtime.native_program import HostStatus, NativeCall, Opener


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
