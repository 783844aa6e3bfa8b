"""From a built folder to callables: the native launcher, and the plain one where none can be built."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Protocol

from polyfuse.base.errors import PolyfuseError
from polyfuse.base.folders import made_in_cache, writable_root
from polyfuse.base.log import warn_once
from polyfuse.base.process import Background, ForkedLock
from polyfuse.base.settings import Settings
from polyfuse.plugin import Launchable
from polyfuse_triton.build.artifact import Artifact, read_unit


class Launcher(Protocol):
    """What makes callables of built kernels."""

    def kernel(self, artifact: Artifact, folder: Path) -> Launchable:
        """A callable that launches the kernel on the current device and stream."""
        ...

    def prepare(self, kernel: Launchable) -> None:
        """Load the kernel's code into the current device, so that a damaged file shows now."""
        ...


class LauncherSource:
    """The launcher of one session: its library is built in the background from the start, if it is not there,
    and loaded when the first kernel is. One that lies elsewhere already may be given.
    """

    def __init__(self, settings: Settings, library: Path | None = None) -> None:
        self._root = writable_root(settings)
        self._lock = ForkedLock()
        self._launcher: Launcher | None = None
        self._built: Background[Path] | Future[Path] | None = None
        if library is not None:
            self._built = Future()
            self._built.set_result(library)

    def start(self) -> None:
        """Begin to build the library, in a thread."""
        with self._lock:
            if self._built is not None or self._launcher is not None:
                return
            self._built = Background(partial(_build, self._root), "polyfuse-launcher")

    def library(self) -> Path | None:
        """Where the native library lies, or None where it could not be built."""
        self.start()
        assert self._built is not None
        return self._built.result() if self._built.exception() is None else None

    def get(self) -> Launcher:
        """The launcher; raises `KernelLoadError` where the driver cannot be used."""
        self.start()
        with self._lock:
            if self._launcher is None:
                assert self._built is not None
                self._launcher = _load(self._built)
            return self._launcher

    def load(self, folder: Path) -> Mapping[str, Launchable]:
        """The kernels of a built folder by key, ready on the current device."""
        launcher = self.get()
        found: dict[str, Launchable] = {}
        for key, artifact in read_unit(folder).items():
            found[key] = launcher.kernel(artifact, folder)
            launcher.prepare(found[key])
        return found


def _build(root: Path) -> Path:
    from polyfuse_triton.launch.native import build_library, library_path

    def build(folder: Path) -> Path:
        path = library_path(folder)
        build_library(path)
        return path

    return made_in_cache(root, build)


def _load(built: Background[Path] | Future[Path]) -> Launcher:
    from polyfuse_triton.launch.native import NativeLauncher
    from polyfuse_triton.launch.plain import PlainLauncher
    from polyfuse_triton.launch.services import torch_services

    try:
        path = built.result()
    except Exception as error:
        cause = error.cause if isinstance(error, PolyfuseError) else str(error)
        warn_once(
            "triton",
            f"kernels are launched by a slow launcher, because the native one could not be built ({cause}); "
            "install g++, or name a C++ compiler in CXX",
        )
        return PlainLauncher(torch_services())
    return NativeLauncher(path, torch_services())
