"""What kernels say that look at what they touch: they are built with Halide's own checks.

A check that fails calls a function and ends the kernel. It may do so in any thread, so these functions are
instructions that note what they were called with; Python reads that after the call.
"""

from __future__ import annotations

import ctypes
import re
import struct
import threading
from collections.abc import Callable, Mapping
from functools import lru_cache

from polyfuse.base.errors import KernelLaunchError
from polyfuse_halide.launch.executable_memory import Code, executable, writable

_CODES = {"i": 0, "u": 1, "f": 2}
_HALVES = ("bf16", "f16")
_EIGHT = ("f8e4m3", "f8e5m2", "f8e4m3fnuz", "f8e5m2fnuz")
_NOTED = 6
"""Numbers that are noted: which function, and what it was called with after the context."""
_REQUIRED = "halide_error_requirement_failed"
"""What the checks of this backend call: a position, and words about it."""
_PARTS = ("halide_int64_to_string", "halide_string_to_string")
"""What is called with the position and with the words before that."""
_CALLED = rb"halide_error\w*|halide_\w+_to_string"


def type_of(dtype: str) -> tuple[int, int, int]:
    """Halide's code, bits and lanes of a type in memory; floats of 16 and 8 bits are bits there."""
    if dtype == "bool":
        return 1, 1, 1
    if dtype in _HALVES:
        return 1, 16, 1
    if dtype in _EIGHT:
        return 1, 8, 1
    return _CODES[dtype[0]], int(dtype[1:]), 1


class Faults:
    """The functions that failing checks call, and what the first one was called with."""

    def __init__(self) -> None:
        self._address, self._memory = writable(8 * (_NOTED + 2))
        self._names: list[str] = []
        self._functions: dict[str, int] = {}
        self._lock = threading.Lock()

    def symbols(self, data: bytes) -> Mapping[str, int]:
        """Addresses of the functions that an object calls where a check fails."""
        with self._lock:
            for name in sorted({found.decode() for found in re.findall(_CALLED, data)}):
                if name not in self._functions:
                    self._functions[name] = executable(self._function(name))
            return dict(self._functions)

    def _function(self, name: str) -> bytes:
        """Instructions of int halide_error_...(context, rsi, rdx, rcx, r8, r9), of which the first one to
        come is noted, or of char *halide_..._to_string(rdi, rsi, rdx), the parts of a message.
        """
        code = Code().i64("49ba", self._address)  # r10 = cells
        if name.endswith("_to_string"):
            if name in _PARTS:
                code.i32("498992", 8 * (_NOTED + _PARTS.index(name)))  # [r10 + offset] = rdx
            return code.raw("4889f8 c3").finished()
        self._names.append(name)
        code.i64("49bb", len(self._names))  # r11 = number
        code.raw("31c0 f04d0fb11a").jump("0f85", "late")  # eax = 0; lock cmpxchg [r10], r11; jne
        code.raw("49897208 49895210 49894a18 4d894220 4d894a28")  # [r10 + 8] = rsi, rdx, rcx, r8, r9
        code.label("late").raw("b8ffffffff c3")
        return code.finished()

    def watched(self, call: Callable[..., None], kernel: str) -> Callable[..., None]:
        """A launcher that raises where a check of its kernel failed."""

        def launch(*operands: object) -> None:
            with self._lock:
                struct.pack_into("<q", self._memory, 0, 0)
                call(*operands)
                reason = self._reason()
            if reason:
                raise KernelLaunchError(
                    f"kernel {kernel} stopped: {reason}",
                    "look at the positions and sizes that it is given; without halide.checks nothing checks",
                )

        return launch

    def _reason(self) -> str:
        number, *words = struct.unpack_from(f"<{_NOTED}q", self._memory, 0)
        if not number:
            return ""
        name = self._names[number - 1]
        if name == _REQUIRED:
            value, address = struct.unpack_from("<2q", self._memory, 8 * _NOTED)
            return f"{value} {_text(address).strip()}"
        if name == "halide_error_access_out_of_bounds":
            dim, low, high = (ctypes.c_int32(word).value for word in words[1:4])
            return (
                f"{_text(words[0])} is touched from {low} to {high} of dimension {dim}, where it is shorter"
            )
        if name in _NAMED:
            return f"{_text(words[0])} is not as it was compiled for ({name.removeprefix('halide_error_')})"
        return name.removeprefix("halide_").replace("_", " ")


_NAMED = frozenset(
    f"halide_error_{what}"
    for what in (
        "bad_type",
        "bad_dimensions",
        "buffer_extents_negative",
        "buffer_extents_too_large",
        "buffer_allocation_too_large",
        "constraint_violated",
        "host_is_null",
    )
)
"""Functions whose first argument is the name of a buffer or of what is constrained."""


def _text(address: int) -> str:
    return (ctypes.string_at(address) or b"").decode("utf-8", "replace") if address else ""


@lru_cache(maxsize=1)
def faults() -> Faults:
    """Those of this process."""
    return Faults()
