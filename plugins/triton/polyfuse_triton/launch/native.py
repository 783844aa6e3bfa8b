"""The native launcher: built once for each machine, loaded once in each process."""

from __future__ import annotations

import atexit
import ctypes
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from polyfuse.base.digest import digest
from polyfuse.base.errors import KernelLoadError
from polyfuse.base.files import built_once
from polyfuse.base.process import find_command, run_program
from polyfuse.plugin import Launchable
from polyfuse.runtime.launching import SeriesPlan, offer_alignment_check, offer_series
from polyfuse_cuda.driver import has_dependent_launch
from polyfuse_triton.build.artifact import Artifact
from polyfuse_triton.build.meta import KernelMeta
from polyfuse_triton.launch.expressions import postfix
from polyfuse_triton.launch.series import SeriesTable, join_series
from polyfuse_triton.launch.services import Services

_SOURCE = Path(__file__).with_name("launcher.cpp")
_PARTS = tuple(
    map(Path(__file__).with_name, ("launcher.h", "arguments.h", "matmuls.h", "series.h", "look.h"))
)
_LIBRARY = "launcher.so"
_FLAGS = ("-std=gnu++17", "-O2", "-g0", "-shared", "-fPIC", "-fvisibility=hidden", "-Wl,--build-id=none")
_COMPILERS = ("g++", "c++", "clang++")
_MADE: WeakKeyDictionary[Launchable, tuple[str, str]] = WeakKeyDictionary()
"""Of each kernel there is, its library and the letters of its arguments."""
_LETTERS: Mapping[str, str] = {"i32": "i", "i64": "l", "fp32": "f", "fp64": "d"}


class _Services(ctypes.Structure):
    _fields_ = (
        ("driver", ctypes.c_char_p),
        ("tensor_data", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
        ("python_stream", ctypes.py_object),
        ("current_device", ctypes.py_object),
        ("allocate", ctypes.py_object),
        ("load_error", ctypes.py_object),
        ("launch_error", ctypes.py_object),
        ("memory_error", ctypes.py_object),
        ("free_memory", ctypes.py_object),
        ("profiler", ctypes.py_object),
        ("profiler_key", ctypes.py_object),
        ("annotate", ctypes.py_object),
        ("reserve", ctypes.c_void_p),
        ("discard", ctypes.c_void_p),
        ("matmuls", ctypes.c_char_p),
    )


class _Variant(ctypes.Structure):
    _fields_ = (
        ("arch", ctypes.c_int),
        ("shared", ctypes.c_int),
        ("threads", ctypes.c_int),
        ("scratch", ctypes.c_int),
        ("scratch_align", ctypes.c_int),
        ("starts_early", ctypes.c_int),
        ("code", ctypes.c_char_p),
        ("size", ctypes.c_int64),
    )


class _Spec(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("symbol", ctypes.c_char_p),
        ("codes", ctypes.c_char_p),
        ("arguments", ctypes.c_char_p),
        ("guard", ctypes.c_char_p),
        ("programs", ctypes.POINTER(ctypes.c_int64)),
        ("lengths", ctypes.c_int * 5),
        ("ctas", ctypes.c_int),
        ("cooperative", ctypes.c_int),
        ("variants", ctypes.c_int),
        ("variant", ctypes.POINTER(_Variant)),
    )


def library_path(root: Path) -> Path:
    """Where the library lies under a cache's root, whether or not it was built."""
    texts = (path.read_bytes() for path in (_SOURCE, *_PARTS))
    key = digest(*texts, " ".join(_FLAGS), platform.machine())
    return root / "launchers" / key / _LIBRARY


def build_library(path: Path) -> None:
    """Compile the library, unless it is there undamaged.

    Raises `BackendUnavailableError` without a compiler, and `KernelBuildError` if it fails.
    """

    def build(made: Path) -> None:
        compiler = find_command("C++ compiler", _COMPILERS, variable="CXX")
        command = [*compiler, *_FLAGS, str(_SOURCE), "-o", str(made)]
        run_program(command, timeout=120.0, name="the launcher of GPU kernels")

    built_once(path, "triton", build)


class NativeLauncher:
    """Makes callables of built kernels, by the native library."""

    def __init__(self, path: Path, services: Services) -> None:
        try:
            self._library = ctypes.PyDLL(str(path))
        except OSError as error:
            raise KernelLoadError(f"the launcher {path} cannot be loaded ({error})", "delete it") from error
        flag, key = services.profiler or (None, None)
        offered = _Services(
            services.driver.encode(),
            services.tensor_data,
            services.stream_function,
            services.stream,
            services.current_device,
            services.allocate,
            services.load_error,
            services.launch_error,
            services.memory_error,
            services.free_memory,
            flag if flag is not None else {},
            key if key is not None else "",
            services.annotate,
            *services.memory,
            services.matmuls.encode() or None,
        )
        setup = self._library.pf_setup
        setup.restype = ctypes.c_char_p
        setup.argtypes = [ctypes.POINTER(_Services)]
        missing = setup(ctypes.byref(offered))
        if missing:
            raise KernelLoadError(
                f"the driver cannot be used ({missing.decode()})", "install the driver of the GPU"
            )
        self._dependent_launch = has_dependent_launch(services.driver)
        self._make = self._library.pf_kernel
        self._make.restype = ctypes.py_object
        self._make.argtypes = [ctypes.POINTER(_Spec)]
        self._prepare = self._library.pf_prepare
        self._prepare.restype = ctypes.py_object
        self._prepare.argtypes = [ctypes.py_object]
        self._path = str(path)
        self._join: Any = getattr(self._library, "pf_join", None)  # packages of before bring one without it
        if self._join is not None and services.tensor_data:
            self._join.restype = ctypes.py_object
            self._join.argtypes = [ctypes.POINTER(SeriesTable)]
            offer_series(self._path, self.join)
        rows = ["memory", "tensor", "view", "free", "launch"]
        if hasattr(self._library, "pf_matmuls"):  # packages of before bring one without it
            rows += ["part", *(["matmul"] if self._library.pf_matmuls() else ())]
        self._rows = frozenset(rows)
        self._look: Any = getattr(self._library, "pf_look", None)
        if self._look is not None and services.tensor_data:
            self._look.restype = ctypes.py_object
            self._look.argtypes = [ctypes.POINTER(ctypes.c_int), ctypes.c_int, ctypes.c_int]
            offer_alignment_check(self.alignment_check)
        atexit.register(self._library.pf_end)

    def kernel(self, artifact: Artifact, folder: Path) -> Launchable:
        """A callable that launches the kernel on the current device and stream."""
        meta = artifact.meta
        names = [arg.name for arg in meta.args]
        programs = [postfix(extent, names) for extent in meta.grid]
        programs.append(postfix(meta.guard, names) if meta.guard else [])
        programs.append(postfix(meta.zeroed, names) if meta.zeroed else [])
        words = [word for program in programs for word in program]
        codes = {v.file: (folder / v.file).read_bytes() for v in artifact.variants}
        variants = [
            _Variant(
                v.arch,
                v.shared_bytes,
                v.num_warps * 32,
                v.scratch_bytes,
                v.scratch_align,
                int(v.starts_early and self._dependent_launch),
                b"",
                0,
            )
            for v in artifact.variants
        ]
        for made, variant in zip(variants, artifact.variants, strict=True):
            made.code, made.size = codes[variant.file], len(codes[variant.file])
        spec = _Spec(
            artifact.name.encode(),
            artifact.symbol.encode(),
            letters(meta).encode(),
            ",".join(names).encode(),
            meta.guard.encode(),
            (ctypes.c_int64 * len(words))(*words),
            (ctypes.c_int * 5)(*(len(program) for program in programs)),
            meta.blocks,
            int(meta.cooperative),
            len(variants),
            (_Variant * len(variants))(*variants),
        )
        made_kernel: Launchable = self._make(ctypes.byref(spec))
        _MADE[made_kernel] = (self._path, letters(meta))
        return made_kernel

    def join(self, plan: SeriesPlan) -> Callable[[list[Any]], tuple[Any, ...]] | None:
        """A function that carries out a series of launches; None where not all is this library's."""
        made = {name: _MADE.get(kernel, ("", "")) for name, kernel in plan.kernels.items()}
        if any(path != self._path or not set(codes) <= set("pPiIlL") for path, codes in made.values()):
            return None
        if not self._rows.issuperset(row[0] for row in plan.rows):
            return None
        try:
            return join_series(self._join, plan, {name: codes for name, (_, codes) in made.items()})
        except KernelLoadError:
            return None

    def alignment_check(self, positions: Sequence[int], alignment: int) -> Callable[[list[Any]], bool]:
        """A function of inputs that says whether the tensors at some positions are at multiples of bytes."""
        made: Callable[[list[Any]], bool] = self._look(
            (ctypes.c_int * len(positions))(*positions), len(positions), alignment
        )
        return made

    def prepare(self, kernel: Launchable) -> None:
        """Load the kernel's code into the current device, so that a damaged file shows now."""
        self._prepare(kernel.__self__)  # type: ignore[attr-defined]


def letters(meta: KernelMeta) -> str:
    """How each argument is passed: `p` pointer, `i` and `l` integer of 32 and 64 bits, `f` and `d` float
    of 32 and 64; in capitals where it must be a multiple of 16.

    Raises:
        KernelLoadError: no launcher passes an argument's type.
    """
    found: list[str] = []
    for arg in meta.args:
        letter = "p" if arg.kind == "ptr" else _LETTERS.get(arg.type, "")
        if not letter:
            raise KernelLoadError(f"argument {arg.name} has the type {arg.type}, which no launcher passes")
        found.append(letter.upper() if arg.divisible16 and letter in "pil" else letter)
    return "".join(found)
