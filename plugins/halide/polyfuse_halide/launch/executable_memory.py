"""Executable memory, and the few instructions that kernels need around them on x86-64.

Objects that Halide makes call a handful of functions: a parallel loop, memory, the C library. On a machine
without a compiler somebody has to supply the first two, and the functions through which Python calls a
kernel. They are so short that their instructions are written here.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import struct
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from polyfuse.base.errors import BackendUnavailableError, KernelLoadError

_PAGE = mmap.PAGESIZE
_READ_EXEC = 1 | 4
_ALIGN = 128
"""Alignment of temporary buffers, as Halide expects it."""

_retained: list[Any] = []
"""Memory and libraries that live as long as the process."""


def supported() -> bool:
    """Whether this machine runs the instructions written here."""
    return platform.machine() == "x86_64" and platform.system() == "Linux"


class Code:
    """Instructions being written; `here` is where the next one goes."""

    def __init__(self) -> None:
        self.bytes = bytearray()
        self._labels: dict[str, int] = {}
        self._jumps: list[tuple[int, str]] = []

    def raw(self, text: str) -> Code:
        """Bytes in hexadecimal."""
        self.bytes += bytes.fromhex(text)
        return self

    def i32(self, text: str, value: int) -> Code:
        """An instruction that ends with a signed number of 32 bits."""
        return self._after(text, struct.pack("<i", value))

    def i64(self, text: str, value: int) -> Code:
        """An instruction that ends with a number of 64 bits."""
        return self._after(text, struct.pack("<Q", value & ((1 << 64) - 1)))

    def _after(self, text: str, number: bytes) -> Code:
        self.raw(text)
        self.bytes += number
        return self

    def call(self, address: int) -> Code:
        """Call a function anywhere: mov rax, address; call rax."""
        return self.i64("48b8", address).raw("ffd0")

    def tail_call(self, address: int) -> Code:
        """Jump to a function anywhere: mov rax, address; jmp rax."""
        return self.i64("48b8", address).raw("ffe0")

    def label(self, name: str) -> Code:
        """Give the current position a name."""
        self._labels[name] = len(self.bytes)
        return self

    def jump(self, text: str, name: str) -> Code:
        """A jump or call relative to a label."""
        self.raw(text)
        self._jumps.append((len(self.bytes), name))
        self.bytes += bytes(4)
        return self

    def finished(self) -> bytes:
        """All instructions, jumps resolved."""
        for position, name in self._jumps:
            struct.pack_into("<i", self.bytes, position, self._labels[name] - position - 4)
        return bytes(self.bytes)


def executable(code: bytes) -> int:
    """The address of instructions that can be run from now on."""
    address, memory = writable(len(code))
    memory[: len(code)] = code
    seal(address, -(-len(code) // _PAGE) * _PAGE)
    return address


def seal(address: int, size: int) -> None:
    """Make whole pages executable, and no longer writable.

    Raises:
        KernelLoadError: the system does not allow that.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size), _READ_EXEC) != 0:
        raise KernelLoadError(
            f"the system lets no memory become executable (error {ctypes.get_errno()})",
            "allow it for this process, or use another backend",
        )


def writable(size: int) -> tuple[int, memoryview]:
    """Whole pages of zeros that live as long as the process."""
    region = mmap.mmap(-1, -(-max(size, 1) // _PAGE) * _PAGE)
    _retained.append(region)
    return ctypes.addressof(ctypes.c_char.from_buffer(region)), memoryview(region)


def address_of(function: Any) -> int:
    """The address of a function of a library."""
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0)


@lru_cache(maxsize=1)
def runtime_symbols() -> dict[str, int]:
    """Addresses of what Halide's runtime would supply: the parallel loop on the threads that torch uses, and
    temporary memory.

    Raises:
        BackendUnavailableError: this is not Linux on x86-64.
    """
    if not supported():
        raise BackendUnavailableError(
            f"Halide kernels are launched on Linux on x86-64 only, and this is {platform.machine()}",
            "use another backend",
        )
    libc = ctypes.CDLL(None)
    code = Code()
    starts: dict[str, int] = {}

    def begin(name: str) -> None:
        while len(code.bytes) % 16:
            code.raw("90")
        starts[name] = len(code.bytes)

    begin("halide_malloc")  # (context, size)
    code.i32("bf", _ALIGN).tail_call(address_of(libc.aligned_alloc))
    begin("halide_free")  # (context, pointer)
    code.raw("4889f7").tail_call(address_of(libc.free))
    begin("halide_do_par_for")
    _parallel(code)
    address = executable(code.finished())
    return {name: address + start for name, start in starts.items()}


def _parallel(code: Code) -> None:
    """int halide_do_par_for(context rdi, task rsi, int min edx, int size ecx, closure r8).

    The threads of one OpenMP team take the next number each, until none is left.
    """
    team, limit = _openmp()
    code.raw("83f901").jump("0f8f", "many")  # cmp ecx, 1; jg
    code.jump("0f8c", "none")  # jl
    code.raw("4889f0 89d6 4c89c2 ffe0")  # one: mov rax, rsi; mov esi, edx; mov rdx, r8; jmp rax
    code.label("none").raw("31c0 c3")
    code.label("many")
    if team is None or limit is None:
        _one_by_one(code)
        return
    code.raw("4883ec38")  # sub rsp, 56
    code.raw("48893424 48897c2408 4c89442410")  # [rsp] = task, [8] = context, [16] = closure
    code.raw("89542418 894c241c")  # [24] = min, [28] = size
    code.raw("48c744242000000000")  # [32] = next = 0, [36] = result = 0
    code.call(limit)  # eax = omp_get_max_threads()
    code.raw("8b54241c 39c2 0f4fd0")  # edx = min(size, eax)
    code.jump("488d3d", "worker")  # lea rdi, worker
    code.raw("4889e6 31c9")  # rsi = rsp; ecx = 0
    code.call(team)
    code.raw("8b442424 4883c438 c3")  # eax = result; add rsp, 56; ret
    while len(code.bytes) % 16:
        code.raw("90")
    code.label("worker").raw("53 4889fb")  # push rbx; rbx = rdi
    code.label("next").raw("b801000000 f00fc14320")  # eax = 1; lock xadd [rbx+32], eax
    code.raw("3b431c").jump("0f8d", "done")  # cmp eax, [rbx+28]; jge
    code.raw("488b7b08 8b7318 01c6 488b5310 ff13")  # task(context, min + eax, closure)
    code.raw("85c0").jump("0f84", "next")  # test eax, eax; jz
    code.raw("894324").jump("e9", "next")  # result = eax
    code.label("done").raw("5b c3")


def _one_by_one(code: Code) -> None:
    """The same without threads."""
    code.raw("53 55 4154 4155 4156")  # push rbx, rbp, r12, r13, r14
    code.raw("4889fb 4889f5 4189d4 4189cd 4d89c6")  # rbx = rdi; rbp = rsi; r12d = edx; r13d = ecx; r14 = r8
    code.label("again").raw("4889df 4489e6 4c89f2 ffd5")  # rdi = rbx; esi = r12d; rdx = r14; call rbp
    code.raw("85c0").jump("0f85", "end")
    code.raw("41ffc4 41ffcd").jump("0f85", "again")  # inc r12d; dec r13d; jnz
    code.label("end").raw("415e 415d 415c 5d 5b c3")


def _openmp() -> tuple[int | None, int | None]:
    """Addresses of `GOMP_parallel` and `omp_get_max_threads` in the library that torch has loaded."""
    for name in ("libgomp.so.1", *_loaded("libgomp")):
        try:
            library = ctypes.CDLL(name)
            found = address_of(library.GOMP_parallel), address_of(library.omp_get_max_threads)
        except (OSError, AttributeError):
            continue
        _retained.append(library)
        return found
    return None, None


def _loaded(name: str) -> Sequence[str]:
    """Paths of loaded libraries whose file name begins with `name`."""
    found: dict[str, None] = {}
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        path = line.split()[-1]
        if Path(path).name.startswith(name):
            found[path] = None
    return tuple(found)
