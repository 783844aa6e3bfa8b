"""Kernels whose frame is written by hand: built in the background, and found in the cache."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property, partial
from pathlib import Path
from typing import TypeAlias

from polyfuse.base.digest import digest
from polyfuse.base.errors import PolyfuseError, UnsupportedError
from polyfuse.base.files import built_folder
from polyfuse.base.folders import made_in_cache, writable_root
from polyfuse.base.process import Background
from polyfuse.base.settings import Settings
from polyfuse.plugin import Launchable, Source
from polyfuse_cpp.backend import CppBackend

_Loaded: TypeAlias = tuple[Launchable, Path, str]
"""A kernel, the folder that it was built into, and its key there."""


class BuiltKernel(ABC):
    """A kernel whose build begins when this is made. A subclass writes its `source`.

    Args:
        name: for people.
        settings: which say how it is compiled.
    """

    storable = True
    """What it is made of says all that it is."""
    plugin = "cpp"

    def __init__(self, name: str, settings: Settings) -> None:
        self.__name__ = name
        self.settings = settings
        self._built = Background(self._build, f"polyfuse-{name}")

    @abstractmethod
    def source(self, backend: CppBackend) -> Source:
        """Its text for a backend's instruction set."""

    def launchable(self) -> Launchable:
        """Wait for its build.

        Raises:
            OSError, PolyfuseError: it cannot be built.
        """
        return self._built.result()[0]

    def located(self) -> tuple[str, Path, str]:
        """Wait for its build; see `polyfuse.plugin.PackableKernel`."""
        _, folder, key = self._built.result()
        return self.plugin, folder, key

    def check_built(self, what: str) -> None:
        """Wait for its build, where there is nothing to fall back to later.

        Args:
            what: the kernel, as a message begins.

        Raises:
            UnsupportedError: it cannot be built.
        """
        try:
            self.located()
        except (OSError, PolyfuseError) as error:
            raise UnsupportedError(f"{what} cannot be built ({error})") from error

    @cached_property
    def key(self) -> str:
        """A digest of its text, its compiler, and the CPU that it is for."""
        backend = CppBackend(self.settings)
        return _address(backend, self.source(backend))

    def _build(self) -> _Loaded:
        backend = CppBackend(self.settings)
        return made_in_cache(writable_root(self.settings), partial(_load, backend, self.source(backend)))


def _address(backend: CppBackend, source: Source) -> str:
    facts = (f"{name} {value}" for name, value in sorted(backend.describe().items()))
    return digest(source.key, *facts)


def _load(backend: CppBackend, source: Source, root: Path) -> _Loaded:
    """The kernel from the cache, built if it is not there."""
    folder = root / "templates" / _address(backend, source)
    built_folder(folder, lambda made: backend.build([source], made))
    return backend.load(folder)[source.key], folder, source.key
