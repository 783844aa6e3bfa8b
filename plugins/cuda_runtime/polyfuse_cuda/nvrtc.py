"""CUDA's compiler as a library, through ctypes."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from polyfuse.base.errors import KernelBuildError

_NAMES = ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so")


def version() -> str:
    """The library's version, empty where there is none."""
    library = _library()
    if library is None:
        return ""
    major, minor = ctypes.c_int(), ctypes.c_int()
    library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}"


@cache
def _library() -> Any:
    """The library on the linker's path, or that of NVIDIA's wheels."""
    for name in (*_NAMES, *_in_wheels()):
        try:
            # what it looks for by name is found when it is loaded already
            for part in Path(name).parent.glob("libnvrtc-builtins.so.*[0-9]") if "/" in name else ():
                if ".alt." not in part.name:
                    ctypes.CDLL(str(part))
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def _in_wheels() -> list[str]:
    spec = find_spec("nvidia")
    folders = list(spec.submodule_search_locations or []) if spec is not None else []
    return [str(p) for folder in folders for p in sorted(Path(folder).glob("*/lib/libnvrtc.so.*[0-9]"))]


def compiled(text: str, flags: Sequence[str], name: str) -> tuple[bytes, str]:
    """Machine code, and what the compiler said.

    Raises:
        KernelBuildError: the compiler is gone, or refuses the text.
    """
    library = _library()
    if library is None:
        raise KernelBuildError("NVRTC is gone", "install the CUDA toolkit", name=name)
    program = ctypes.c_void_p()
    library.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"kernel.cu", 0, None, None)
    try:
        arguments = [*flags, "--ptxas-options=-v"]
        packed = (ctypes.c_char_p * len(arguments))(*(flag.encode() for flag in arguments))
        status = library.nvrtcCompileProgram(program, len(arguments), packed)
        said = _text(library.nvrtcGetProgramLogSize, library.nvrtcGetProgramLog, program)
        if status:
            raise KernelBuildError(
                f"NVRTC could not compile kernel {name} (status {status})",
                "the output below says why",
                command=("nvrtc", *arguments),
                output=said.decode("utf-8", "replace"),
                name=name,
            )
        code = _text(library.nvrtcGetCUBINSize, library.nvrtcGetCUBIN, program)
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))
    return code, said.decode("utf-8", "replace")


def _text(size_of: Any, get: Any, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    size_of(program, ctypes.byref(size))
    memory = ctypes.create_string_buffer(size.value)
    get(program, memory)
    return memory.raw
