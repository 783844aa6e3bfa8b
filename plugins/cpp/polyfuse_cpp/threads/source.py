"""Libraries of our own, built once for each compiler and cache: the pool, loaded once in each process, the
checksum of memory, and the look at parameters.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Iterable
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from polyfuse.base.digest import digest
from polyfuse.base.errors import PolyfuseError
from polyfuse.base.files import built_once
from polyfuse.base.folders import made_in_cache, writable_root
from polyfuse.base.log import warn_once
from polyfuse.base.process import Background, ForkedLock, run_program
from polyfuse.base.settings import Settings
from polyfuse.runtime.frozen import Checksum, Look, MakeLook, ParameterState, Region
from polyfuse_cpp.toolchain import Toolchain

_POOL, _CHECKSUM, _LOOK = (
    Path(__file__).with_name(name) for name in ("pool.cpp", "checksum.cpp", "look.cpp")
)
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
_COUNTS = range(2, 9)
"""Numbers of threads of torch with which kernels use the pool: with sixteen it was not faster than OpenMP."""

_LOCK = ForkedLock()
_LOADED: list[ctypes.PyDLL] = []
"""The pool of this process, from whichever cache it came first: two would compete. Its threads never end."""


class PoolSource:
    """Builds the pool in the background, if it is not there, and loads it when it is wanted."""

    def __init__(self, toolchain: Toolchain, settings: Settings) -> None:
        self._toolchain = toolchain
        self._settings = settings
        self._built: Background[Path] | None = None

    def start(self) -> None:
        """Begin to build the library, in a thread, if kernels have as many threads as it is for."""
        if sys.platform != "linux" or torch.get_num_threads() not in _COUNTS:
            return
        with _LOCK:
            if self._built is not None or _LOADED:
                return
            self._built = _begun(_POOL, self._toolchain, self._settings)

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
            return _share()


class ChecksumSource:
    """`Checksum` of the memory of this process, which threads of the pool compute where kernels use those,
    else OpenMP's. Built in the background when it is wanted for the first time.
    """

    def __init__(self, toolchain: Toolchain, settings: Settings) -> None:
        self._toolchain = toolchain
        self._settings = settings
        self._built: Background[Path] | None = None
        self._found: Checksum | None = None
        self._lock = ForkedLock()

    def find(self, wait: bool) -> Checksum | None:
        """The function; None while it is being built, unless that is waited for, and where it cannot be
        built.
        """
        if self._found is not None:
            return self._found
        with self._lock:
            if self._built is None:
                self._built = _begun(_CHECKSUM, self._toolchain, self._settings)
        if not wait and not self._built.done():
            return None
        try:
            self._found = _checksum(ctypes.CDLL(str(self._built.result())))
        except (OSError, PolyfuseError) as error:
            cause = error.cause if isinstance(error, PolyfuseError) else str(error)
            warn_once(
                "cpp",
                f"changes of parameters are looked for with torch's products, for the checksum of memory"
                f" cannot be had ({cause}); that takes longer, so install g++ or name it in CXX",
            )
            return None
        return self._found


class LookSource:
    """`Look`s at parameters, by a library that is built in the background when it is wanted."""

    def __init__(self, toolchain: Toolchain, settings: Settings) -> None:
        self._toolchain = toolchain
        self._settings = settings
        self._built: Background[Path] | None = None
        self._lock = ForkedLock()

    def find(self) -> MakeLook | None:
        """What makes them; None while the library is being built, and where it cannot be."""
        with self._lock:
            if self._built is None:
                self._built = _begun(_LOOK, self._toolchain, self._settings)
        return self._look if self._built.done() and self._built.exception() is None else None

    def _look(self, seen: ParameterState) -> Look:
        assert self._built is not None
        return _look(_loaded(self._built.result()), seen)


class _StateStruct(ctypes.Structure):
    """`State` of look.cpp."""

    _fields_ = (
        ("count", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("positions", "objects", "addresses", "versions", "storages")),
        *((name, ctypes.c_void_p) for name in ("layouts", "version", "address", "view")),
    )


@lru_cache
def _loaded(path: Path) -> Any:
    function = ctypes.PyDLL(str(path)).polyfuse_unchanged
    function.argtypes = (ctypes.py_object, ctypes.c_void_p)
    return function


def _look(function: Any, seen: ParameterState) -> Look:
    columns = [
        _numbers(seen.positions),
        _numbers(map(id, seen.parameters)),
        _numbers(seen.addresses),
        _numbers(seen.versions),
        _numbers(seen.storages),
        _numbers(seen.layouts) if seen.layouts else None,
    ]
    addresses = [None if column is None else ctypes.addressof(column) for column in columns]
    given = _StateStruct(len(seen.positions), *addresses, id(_VERSION), seen.address, seen.view)
    at = ctypes.addressof(given)

    def look(args: list[Any], _alive: object = (given, columns)) -> bool:
        return bool(function(args, at))

    return look


_VERSION = "_version"


def _numbers(values: Iterable[int]) -> ctypes.Array[ctypes.c_int64]:
    listed = tuple(values)
    return (ctypes.c_int64 * len(listed))(*listed)


def _share() -> int:
    """Address of `polyfuse_share`, if the pool is loaded; else 0."""
    return (ctypes.cast(_LOADED[0].polyfuse_share, ctypes.c_void_p).value or 0) if _LOADED else 0


def _checksum(library: ctypes.CDLL) -> Checksum:
    function = library.polyfuse_checksum
    function.restype = ctypes.c_uint64
    function.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_void_p)

    @lru_cache(maxsize=256)
    def array(regions: tuple[Region, ...]) -> ctypes.Array[ctypes.c_int64]:
        return (ctypes.c_int64 * (2 * len(regions)))(*chain.from_iterable(regions))

    def checksum(*regions: Region) -> int:
        team = torch.get_num_threads()
        found: int = function(array(regions), len(regions), team, _share() if team in _COUNTS else 0)
        return found

    return checksum


def _begun(source: Path, toolchain: Toolchain, settings: Settings) -> Background[Path]:
    """A library that is being built in a thread of its own."""
    return Background(partial(_built, source, toolchain, settings), f"polyfuse-{source.stem}")


def _built(source: Path, toolchain: Toolchain, settings: Settings) -> Path:
    """Build a library, or find it built, in the cache or in a folder of this process."""
    return made_in_cache(writable_root(settings), partial(_library, source, toolchain))


def _library(source: Path, toolchain: Toolchain, root: Path) -> Path:
    flags = _FLAGS if source == _POOL else (*_FLAGS, "-fopenmp")
    key = digest(source.read_bytes(), " ".join(flags), toolchain.fingerprint, platform.machine())

    def build(made: Path) -> None:
        compiler = [toolchain.path, *toolchain.arguments]
        command = [*compiler, *flags, str(source), "-o", str(made)]
        run_program(command, timeout=120.0, name=f"the library of {source.name}")

    return built_once(root / "launchers" / key / f"{source.stem}.so", "cpp", build)
