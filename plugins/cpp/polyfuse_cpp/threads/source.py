"""The pool's library: built once for each compiler and cache, loaded once in each process."""

from __future__ import annotations

import ctypes
import platform
import sys
import threading
from concurrent.futures import Future
from pathlib import Path

import torch

from polyfuse.base.digest import digest
from polyfuse.base.errors import PolyfuseError
from polyfuse.base.files import built_once
from polyfuse.base.folders import process_folder, writable_root
from polyfuse.base.log import warn_once
from polyfuse.base.process import run_program
from polyfuse.base.settings import Settings
from polyfuse_cpp.toolchain import Toolchain

_SOURCE = Path(__file__).with_name("pool.cpp")
_FLAGS = (
    "-std=gnu++17",
    "-O2",
    "-g0",
    "-shared",
    "-fPIC",
    "-fvisibility=hidden",
    "-pthread",
    "-Wl,--build-id=none",
)
_LIBRARY = "pool.so"
_COUNTS = range(2, 5)
"""Numbers of threads of torch with which kernels use the pool: with eight it was not faster than OpenMP."""

_LOCK = threading.Lock()
_LOADED: list[ctypes.PyDLL] = []
"""The pool of this process, from whichever cache it came first: two would compete. Its threads never end."""


class PoolSource:
    """Builds the pool in the background, if it is not there, and loads it when it is wanted."""

    def __init__(self, toolchain: Toolchain, settings: Settings) -> None:
        self._toolchain = toolchain
        self._settings = settings
        self._built: Future[Path] | None = None

    def start(self) -> None:
        """Begin to build the library, in a thread, if kernels have as many threads as it is for."""
        if sys.platform != "linux" or torch.get_num_threads() not in _COUNTS:
            return
        with _LOCK:
            if self._built is not None or _LOADED:
                return
            self._built = Future()
        threading.Thread(target=self._build, args=(self._built,), name="polyfuse-pool").start()

    def share(self) -> int:
        """Address of `polyfuse_share`; 0 with other numbers of threads, and without the library."""
        self.start()
        if (self._built is None and not _LOADED) or torch.get_num_threads() not in _COUNTS:
            return 0
        with _LOCK:
            if not _LOADED:
                assert self._built is not None
                try:
                    _LOADED.append(ctypes.PyDLL(str(self._built.result())))
                except (OSError, PolyfuseError) as error:
                    cause = error.cause if isinstance(error, PolyfuseError) else str(error)
                    warn_once(
                        "cpp",
                        f"kernels use OpenMP's threads, for the pool of threads cannot be had ({cause}); on a"
                        " busy machine they will wait for each other, so install g++ or name it in CXX",
                    )
                    return 0
            return ctypes.cast(_LOADED[0].polyfuse_share, ctypes.c_void_p).value or 0

    def _build(self, result: Future[Path]) -> None:
        try:
            try:
                result.set_result(self._library(writable_root(self._settings)))
            except OSError:
                result.set_result(self._library(process_folder()))
        except Exception as error:
            result.set_exception(error)

    def _library(self, root: Path) -> Path:
        key = digest(_SOURCE.read_bytes(), " ".join(_FLAGS), self._toolchain.fingerprint, platform.machine())

        def build(made: Path) -> None:
            compiler = [self._toolchain.path, *self._toolchain.arguments]
            command = [*compiler, *_FLAGS, str(_SOURCE), "-o", str(made)]
            run_program(command, timeout=120.0, name="the pool of threads")

        return built_once(root / "launchers" / key / _LIBRARY, "cpp", build)
