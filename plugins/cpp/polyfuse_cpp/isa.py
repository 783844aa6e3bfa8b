"""Instruction sets: which one this machine has, its lane counts and its compiler flags.

Flags are always explicit (never ``-march=native``), so that a kernel's key says what machine it runs on.
"""

from __future__ import annotations

import ctypes
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from polyfuse.base.errors import InvalidOptionError


@dataclass(frozen=True, slots=True)
class Isa:
    """One instruction set: `lanes` of a 4-byte element and bytes of a register (both 1 lane and 16 for
    scalar)."""

    name: str
    lanes: int
    register_bytes: int
    machines: tuple[str, ...]
    cpu_flags: tuple[str, ...]
    compile_flags: tuple[str, ...]


_TILED_LANES = 16
"""Lanes of the instruction set whose code uses registers of whole tiles."""

_TILE_STEPS, _FEWEST_STEPS, _ONE_PASS = 32, 16, 1024
"""Steps of the depth that a matrix register holds at most, fewer than which do not pay, and the depth up to
which all is added up in one pass."""

_X86 = ("x86_64", "AMD64")
_ARM = ("aarch64", "arm64")
_DOT_FLAGS = "-march=armv8.6-a"  # products of bytes and of bf16 among others
_AVX2_FLAGS = ("-mavx2", "-mfma", "-mf16c", "-mbmi", "-mbmi2", "-mlzcnt", "-mpopcnt")
ISAS: dict[str, Isa] = {
    isa.name: isa
    for isa in (
        Isa(
            "avx512",
            16,
            64,
            _X86,
            ("avx512f", "avx512dq", "avx512bw", "avx512vl", "avx2", "fma", "f16c", "bmi1", "bmi2", "abm"),
            (*_AVX2_FLAGS, "-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl"),
        ),
        Isa("avx2", 8, 32, _X86, ("avx2", "fma", "f16c", "bmi1", "bmi2", "abm"), _AVX2_FLAGS),
        Isa("sse", 4, 16, _X86, (), ()),
        Isa(
            "sve256",
            8,
            32,
            _ARM,
            ("sve", "sve256", "svebf16", "svei8mm"),
            (f"{_DOT_FLAGS}+sve", "-msve-vector-bits=256"),
        ),
        Isa("neon-dot", 4, 16, _ARM, ("asimddp", "bf16", "i8mm"), (_DOT_FLAGS,)),
        Isa("neon", 4, 16, _ARM, (), ()),
        Isa("scalar", 1, 16, (), (), ()),
    )
}
"""From the widest to the narrowest, by name; a machine uses the first one that it has."""


def detect_isa(machine: str | None = None, cpu_flags: frozenset[str] | None = None) -> Isa:
    """The widest instruction set of this machine (or of the one described)."""
    if machine is None and cpu_flags is None:
        return ISAS[detect_isa_name()]
    return _widest(machine or platform.machine(), cpu_flags if cpu_flags is not None else _cpu_flags())


def choose_isa(name: str = "") -> Isa:
    """The instruction set called *name*, or this machine's where *name* is empty or ``"auto"``.

    Raises:
        InvalidOptionError: there is none of that name.
    """
    if name in ("", "auto"):
        return detect_isa()
    if name not in ISAS:
        raise InvalidOptionError(f"unknown instruction set {name!r}", f"choose from auto, {', '.join(ISAS)}")
    return ISAS[name]


@cache
def detect_isa_name() -> str:
    """Name of the widest instruction set of this machine; the machine is read once per process."""
    return _widest(platform.machine(), _cpu_flags()).name


@cache
def gathers() -> int:
    """Where this machine's own gathers of AVX-512 are quicker than loads one by one: 0 nowhere (Intel's CPUs
    that leak through them, where microcode holds them up), 1 where an index is used once or a few times
    (AMD's, where taking the lanes out of a vector is what loads one by one lose), 2 everywhere.
    """
    if "gds" in _cpu_facts("bugs"):
        return 0
    return 1 if "AuthenticAMD" in _cpu_facts("vendor_id") else 2


@cache
def dot_instructions() -> tuple[str, ...]:
    """What this machine multiplies and adds in one step beyond its instruction set, as the vector layer's
    macros name it: bf16 in pairs, bytes in fours, bf16 in whole tiles.
    """
    flags = _cpu_flags()
    known = {"avx512_bf16": "PF_DOT_BF16", "avx512_vnni": "PF_DOT_BYTES"}
    found = [macro for flag, macro in known.items() if flag in flags]
    if flags.issuperset(("amx_tile", "amx_bf16", "avx512_bf16")) and _matrix_tiles_allowed():
        found.append("PF_AMX")
    return tuple(found)


def has_matrix_registers(isa: Isa) -> bool:
    """Whether the machine has registers of whole tiles of bf16, and code for *isa* uses them."""
    return isa.lanes == _TILED_LANES and "PF_AMX" in dot_instructions()


def has_pair_products(isa: Isa) -> bool:
    """Whether one instruction of the machine multiplies and adds vectors of pairs of bf16, and code for *isa*
    uses it.
    """
    return isa.lanes == _TILED_LANES and "PF_DOT_BF16" in dot_instructions()


def steps_of(depth: int) -> int:
    """Steps of a depth that one matrix register holds: the most that divide it, so that nothing has to be
    padded; else all that there is room for.
    """
    if depth > _ONE_PASS:
        return _TILE_STEPS
    found = (steps for steps in range(_TILE_STEPS, _FEWEST_STEPS - 1, -2) if depth % steps == 0)
    return next(found, _TILE_STEPS)


def _matrix_tiles_allowed() -> bool:
    """Whether the system lets this process use the CPU's matrix registers (Linux wants to be asked)."""
    if platform.system() != "Linux":
        return False
    arch_prctl, request, tile_data = 158, 0x1023, 18
    return bool(ctypes.CDLL(None).syscall(arch_prctl, request, tile_data) == 0)


def _widest(machine: str, flags: frozenset[str]) -> Isa:
    for isa in ISAS.values():
        if machine in isa.machines and flags.issuperset(isa.cpu_flags):
            return isa
    return ISAS["scalar"]


def _cpu_flags() -> frozenset[str]:
    """CPU feature names as Linux spells them; elsewhere, what torch says of its own dispatch."""
    found = _cpu_facts("flags") or _cpu_facts("Features")
    if "sve" in found:
        return found | {f"sve{_sve_bits()}"}
    if found:
        return found
    import torch

    capability = torch.backends.cpu.get_cpu_capability().lower()
    return frozenset(ISAS[capability].cpu_flags) if capability in ISAS else frozenset()


def _sve_bits() -> int:
    """Length of this process's SVE vectors, which Linux names in bytes."""
    get_length, bytes_of = 51, 0xFFFF
    return 8 * (int(ctypes.CDLL(None).prctl(get_length)) & bytes_of)


def _cpu_facts(key: str) -> frozenset[str]:
    """Words that Linux has under a key about the first CPU."""
    for line in _cpu_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return frozenset(value.split())
    return frozenset()


@cache
def _cpu_text() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return text.partition("\n\n")[0]
