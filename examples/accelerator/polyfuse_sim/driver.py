"""The built runtime. A C++ compiler makes it at the first import; it is stored for each version of torch."""

import ctypes
import os
from hashlib import sha256
from pathlib import Path

import torch
from platformdirs import user_cache_path

from polyfuse.plugin import run_program

SOURCE = Path(__file__).parent / "runtime.cpp"
TORCH = Path(torch.__file__).parent


def compile_library(source: Path, target: Path, *flags: str) -> None:
    """A shared library, complete as soon as it has its name."""
    made = target.with_suffix(f".{os.getpid()}")
    run_program(["g++", "-std=c++20", "-shared", "-fPIC", str(source), *flags, "-o", str(made)])
    made.rename(target)


def _library() -> Path:
    key = sha256(SOURCE.read_bytes() + str(torch.__version__).encode()).hexdigest()[:16]
    target = user_cache_path("polyfuse-sim") / f"{key}.so"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
        search = (f"-I{TORCH / 'include'}", f"-L{TORCH / 'lib'}", f"-Wl,-rpath,{TORCH / 'lib'}")
        compile_library(
            SOURCE, target, abi, "-DAT_PER_OPERATOR_HEADERS", "-w", *search, "-lc10", "-ltorch_cpu"
        )
    return target


LIBRARY = ctypes.CDLL(str(_library()), mode=ctypes.RTLD_GLOBAL)
LIBRARY.sim_error.restype = ctypes.c_char_p
LIBRARY.sim_capture_end.restype = ctypes.c_void_p
LIBRARY.sim_launch.argtypes = [ctypes.c_void_p, ctypes.c_int64, *3 * [ctypes.POINTER(ctypes.c_int64)]]
LIBRARY.sim_capture_begin.argtypes = [ctypes.c_int64]
LIBRARY.sim_replay.argtypes = LIBRARY.sim_forget.argtypes = [ctypes.c_void_p]
LIBRARY.sim_memory.argtypes = [ctypes.c_int64, ctypes.POINTER(ctypes.c_int64)]


def check(status: int) -> None:
    """Raise what a function of the runtime failed with."""
    if status:
        raise RuntimeError(LIBRARY.sim_error().decode())


def memory(index: int) -> tuple[int, int, int]:
    """Bytes of a device: in tensors, in tensors at most, and taken from the host."""
    found = (ctypes.c_int64 * 3)()
    LIBRARY.sim_memory(index, found)
    return tuple(found)
