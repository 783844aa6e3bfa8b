"""Object files brought into this process: sections laid out, symbols resolved, relocations applied.

Halide writes relocatable ELF objects. Linking them here needs no linker on the machine, and starts no
process where kernels come from the cache.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from polyfuse.base.errors import KernelLoadError
from polyfuse_halide.launch.executable_memory import address_of, runtime_symbols, seal, writable

_ALLOCATED, _EXECUTABLE, _NO_BITS, _RELOCATIONS = 2, 4, 8, 4
_PAGE = 4096
_R_64, _R_PC32, _R_PLT32, _R_GOTPCREL, _R_PC64 = 1, 2, 4, 9, 24
_R_GOTPCRELX, _R_REX_GOTPCRELX = 41, 42


@dataclass
class _Section:
    """One section that takes part in the process's memory."""

    flags: int
    align: int
    content: bytes
    size: int
    offset: int = 0


@dataclass(frozen=True)
class _Symbol:
    name: str
    section: int
    value: int


class _Object:
    """The parts of one object file that matter here."""

    def __init__(self, data: bytes) -> None:
        if data[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<HH", data, 16) != (1, 62):
            raise KernelLoadError(
                "a built kernel is no x86-64 object", "delete it from the cache and compile again"
            )
        (offset,) = struct.unpack_from("<Q", data, 40)
        size, count, names = struct.unpack_from("<HHH", data, 58)
        heads = [struct.unpack_from("<IIQQQQIIQQ", data, offset + size * k) for k in range(count)]
        del names
        self.sections: dict[int, _Section] = {}
        self.symbols: list[_Symbol] = []
        self.relocations: list[tuple[int, int, int, int, int]] = []
        for number, (_, kind, flags, _, start, length, _, _, align, _) in enumerate(heads):
            if flags & _ALLOCATED and length:
                content = b"" if kind == _NO_BITS else data[start : start + length]
                self.sections[number] = _Section(flags, max(align, 1), content, length)
        for _, kind, _, _, start, length, link_to, info, _, _ in heads:
            if kind == 2:
                text = heads[link_to]
                strings = data[text[4] : text[4] + text[5]]
                for entry in range(start, start + length, 24):
                    name, _, _, section, value, _ = struct.unpack_from("<IBBHQQ", data, entry)
                    self.symbols.append(
                        _Symbol(strings[name : strings.index(b"\0", name)].decode(), section, value)
                    )
            elif kind == _RELOCATIONS and info in self.sections:
                for entry in range(start, start + length, 24):
                    where, what, addend = struct.unpack_from("<QQq", data, entry)
                    self.relocations.append((info, where, what >> 32, what & 0xFFFFFFFF, addend))


def link(
    objects: Sequence[bytes], wanted: Sequence[str], given: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Load objects and return the addresses of some of their symbols; `given` are functions that they may
    call besides those of the process.

    Raises:
        KernelLoadError: a symbol is missing.
    """
    parsed = [_Object(data) for data in objects]
    everything = [s for o in parsed for s in o.sections.values()]
    size = _assign_offsets([s for s in everything if s.flags & _EXECUTABLE], 0)
    outside = list(dict.fromkeys(s.name for o in parsed for s in o.symbols if s.section == 0 and s.name))
    # a jump to each function outside, and its address, which relative instructions can reach
    stubs = -(-size // 16) * 16
    code_end = -(-(stubs + 16 * len(outside)) // _PAGE) * _PAGE
    table = _assign_offsets([s for s in everything if not s.flags & _EXECUTABLE], code_end)
    table = -(-table // 16) * 16
    defined: dict[str, int] = {}
    total = table + 8 * (len(outside) + sum(len(o.symbols) for o in parsed)) + 8
    base, memory = writable(total)
    for section in everything:
        memory[section.offset : section.offset + len(section.content)] = section.content
    for item in parsed:
        for symbol in item.symbols:
            if symbol.name and symbol.section in item.sections:
                defined[symbol.name] = base + item.sections[symbol.section].offset + symbol.value
    more = given or {}
    addresses = {name: defined.get(name) or more.get(name) or resolve(name) for name in outside}
    jumps = {name: base + stubs + 16 * k for k, name in enumerate(outside)}
    for k, name in enumerate(outside):
        struct.pack_into("<6sQ", memory, stubs + 16 * k, b"\xff\x25\0\0\0\0", addresses[name])
    slots: dict[int, int] = {}

    def slot(address: int) -> int:
        if address not in slots:
            slots[address] = table + 8 * len(slots)
            struct.pack_into("<Q", memory, slots[address], address)
        return base + slots[address]

    for item in parsed:
        _relocate(item, base, memory, addresses, jumps, slot)
    seal(base, code_end)
    missing = [name for name in wanted if name not in defined]
    if missing:
        raise KernelLoadError(
            f"a built folder lacks the kernel {missing[0]}", "delete it from the cache and compile again"
        )
    return {name: defined[name] for name in wanted}


def _assign_offsets(sections: Sequence[_Section], start: int) -> int:
    for section in sections:
        start = -(-start // section.align) * section.align
        section.offset = start
        start += section.size
    return start


def _relocate(
    item: _Object,
    base: int,
    memory: memoryview,
    outside: dict[str, int],
    jumps: dict[str, int],
    slot: Callable[[int], int],
) -> None:
    for section, where, number, kind, addend in item.relocations:
        symbol = item.symbols[number]
        offset = item.sections[section].offset + where
        here = base + offset
        if symbol.section in item.sections:
            target = base + item.sections[symbol.section].offset + symbol.value
            near = target
        else:
            target, near = outside[symbol.name], jumps[symbol.name]
        if kind == _R_64:
            struct.pack_into("<q", memory, offset, target + addend)
        elif kind in (_R_PC32, _R_PLT32):
            struct.pack_into("<i", memory, offset, near + addend - here)
        elif kind in (_R_GOTPCREL, _R_GOTPCRELX, _R_REX_GOTPCRELX):
            struct.pack_into("<i", memory, offset, slot(target) + addend - here)
        elif kind == _R_PC64:
            struct.pack_into("<q", memory, offset, target + addend - here)
        else:
            raise KernelLoadError(
                f"a built kernel has a relocation of kind {kind}, which is unknown",
                "report it with its kernel",
            )


@lru_cache(maxsize=256)
def resolve(name: str) -> int:
    """The address of a function that kernels call.

    Raises:
        KernelLoadError: there is none of that name.
    """
    found = runtime_symbols().get(name)
    if found:
        return found
    for library in (None, "libm.so.6"):
        try:
            return address_of(getattr(ctypes.CDLL(library), name))
        except (AttributeError, OSError):
            continue
    raise KernelLoadError(
        f"a built kernel calls {name}, which is nowhere to be found", "report it with its kernel"
    )
