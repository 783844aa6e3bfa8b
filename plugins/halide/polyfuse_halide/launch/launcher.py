"""Launchers: functions that Python calls like any of its own, a few instructions for each kernel.

Each has one `halide_buffer_t` for every buffer, made once. A call writes the tensors' addresses into them and
jumps to the kernel. Strides and extents that are known are part of the kernel's code; others are written into
the buffers when sizes change.
"""

from __future__ import annotations

import ctypes
import json
import math
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from polyfuse.base.errors import KernelLoadError
from polyfuse_halide.codegen.index_checks import type_of
from polyfuse_halide.launch.executable_memory import Code, address_of, executable, writable

_BUFFER, _DEVICE, _HOST, _TYPE, _RANK, _DIMENSIONS, _DIM = 56, 0, 16, 32, 36, 40, 16
"""Bytes of a `halide_buffer_t`, the offsets of five of its fields, and bytes of one dimension."""
_LIMIT = 1 << 31

# lea and mov of [r12 + number] into the registers of the first six arguments, then rax
_LEA = ("498dbc24", "498db424", "498d9424", "498d8c24", "4d8d8424", "4d8d8c24", "498d8424")
_MOV = ("498bbc24", "498bb424", "498b9424", "498b8c24", "4d8b8424", "4d8b8c24", "498b8424")

_retained: list[Any] = []


class _Method(ctypes.Structure):
    """`PyMethodDef`."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


@dataclass(frozen=True)
class DeviceCall:
    """What a launcher for a device needs besides.

    Attributes:
        index: of the device.
        stream: address of where its current stream goes.
        stream_function: address of a C function that writes it there, given the index; 0: somebody else does.
        spare: an address on the device for tensors without elements.
        status: address of a number that a launch makes other than zero where it fails.
    """

    index: int
    stream: int
    stream_function: int
    spare: int
    status: int


def make_launcher(
    symbol: str, function: int, meta: str, data_ptr: int | None, device: DeviceCall | None = None
) -> Callable[..., None]:
    """A callable for a kernel.

    Args:
        symbol: the kernel's name.
        function: its address.
        meta: what `kernel.KernelText.meta` says of its operands.
        data_ptr: address of a C function from a tensor object to its data pointer, or None.
        device: for a kernel that runs on a device; it raises `RuntimeError` where the launch fails.
    """
    facts = json.loads(meta)
    if facts["empty"]:
        return nothing
    frame = _Frame(facts)
    call = _native(symbol, function, frame, data_ptr or 0, device)
    found = _sized(call, frame) if frame.changes else call
    return found if data_ptr is not None else _by_address(found)


def nothing(*_operands: object) -> None:
    """A kernel without points."""


class _Frame:
    """The memory of one launcher: buffers, then offsets and sizes, then the outputs' dimensions.

    What depends on sizes is written when they change; all else is written here, once.
    """

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self.count: int = facts["count"]
        self.inputs: list[int] = facts["inputs"]
        self.sizes: list[tuple[int, str]] = facts["sizes"]
        self.outputs: list[int] = [output["operand"] for output in facts["outputs"]]
        self.operands = [*self.inputs, *self.outputs]
        self.offsets = _BUFFER * len(self.operands)
        self.numbers = self.offsets + 8 * len(self.outputs)
        start = self.numbers + 8 * len(self.sizes)
        checks = facts.get("checks", {})
        # only checks look at inputs' dimensions
        given = [[(extent, "1")] for extent in checks.get("extents", ())] or [[] for _ in self.inputs]
        dims = [*given, *(output["dims"] for output in facts["outputs"])]
        ranks = [len(parts) for parts in dims]
        self.dims = struct.Struct(f"<{4 * sum(ranks)}i")
        self.dims_at = start
        self.steps = struct.Struct(f"<{len(self.outputs)}q")
        self.address, self.memory = writable(start + self.dims.size + 64)
        for k in range(len(self.operands)):
            offset = start + _DIM * sum(ranks[:k])
            struct.pack_into("<Q", self.memory, _BUFFER * k + _DIMENSIONS, self.address + offset)
            struct.pack_into("<i", self.memory, _BUFFER * k + _RANK, ranks[k])
            if checks:
                struct.pack_into("<BBH", self.memory, _BUFFER * k + _TYPE, *type_of(checks["types"][k]))
        texts = [f"0, {e}, {s}, 0, " for parts in dims for e, s in parts]
        steps = [f"{o['width']} * ({o['offset']}), " for o in facts["outputs"]]
        limits = [f"({limit}) >= {_LIMIT}" for limit in facts["limits"]]
        names = ", ".join(name for _, name in self.sizes)
        self.changes = bool(self.sizes)
        scope: dict[str, Any] = {"max": max, "min": min, "math": math}
        lines = [f"def layout({names}):"]
        if limits:
            lines += [f"    if {' or '.join(limits)}:", "        return None"]
        lines.append(f"    return ({''.join(texts)}), ({''.join(steps)})")
        exec("\n".join(lines), scope)
        self._layout: Callable[..., tuple[tuple[int, ...], tuple[int, ...]] | None] = scope["layout"]
        if not self.changes:
            self.fit(())

    def fit(self, sizes: tuple[int, ...]) -> None:
        """Write what depends on sizes."""
        found = self._layout(*sizes)
        if found is None:
            raise KernelLoadError(
                "a tensor has more elements than Halide's 32-bit indices reach", "use another backend"
            )
        self.dims.pack_into(self.memory, self.dims_at, *found[0])
        self.steps.pack_into(self.memory, self.offsets, *found[1])


def _sized(call: Callable[..., None], frame: _Frame) -> Callable[..., None]:
    """A launcher that writes strides and extents whenever sizes are others than at the last call."""
    positions = tuple(position for position, _ in frame.sizes)
    lock = threading.Lock()
    last: tuple[int, ...] | None = None

    def launch(*operands: Any) -> None:
        nonlocal last
        sizes = tuple([operands[position] for position in positions])
        # another thread may want other sizes between this and the call
        with lock:
            if sizes != last:
                last = None
                frame.fit(sizes)
                last = sizes
            call(*operands)

    return launch


def _by_address(call: Callable[..., None]) -> Callable[..., None]:
    """A launcher that asks tensors for their addresses itself."""

    def launch(*operands: Any) -> None:
        call(*[o if isinstance(o, int) else o.data_ptr() for o in operands])

    return launch


def _native(
    symbol: str, function: int, frame: _Frame, data_ptr: int, device: DeviceCall | None
) -> Callable[..., None]:
    """A function of Python's fastest calling convention."""
    first, total = len(frame.inputs), len(frame.operands)
    words = [("buffer", k) for k in range(first)]
    words += [("size", k) for k in range(len(frame.sizes))]
    words += [("buffer", k) for k in range(first, total)]
    stack = 8 * (max(0, len(words) - 6) + max(0, len(words) - 6) % 2)
    message = ctypes.c_char_p(f"{symbol} takes {frame.count} arguments".encode())
    _retained.append(message)
    code = Code()
    code.raw("53 55 4154 4889f3")  # push rbx, rbp, r12; rbx = arguments
    code.i32("4881ec", stack)
    code.i32("4881fa", frame.count).jump("0f85", "wrong")  # cmp rdx, count; jne
    code.i64("49bc", frame.address)  # r12 = buffers
    _write_operands(code, frame, _HOST if device is None else _DEVICE)
    _write_words(code, frame, words, device)
    _write_call(code, function, device)
    code.label("leave").i32("4881c4", stack).raw("415c 5d 5b c3")
    code.label("wrong")
    _write_error(code, "PyExc_TypeError", message)
    if device is not None:
        code.label("failed")
        _write_error(code, "PyExc_RuntimeError", message)
    _write_address(code, data_ptr, writable(128)[0] if device is None else device.spare)
    address = executable(code.finished())
    method = _Method(symbol.encode(), address, 0x80, None)
    _retained.append(method)
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype = ctypes.py_object
    make.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    made: Callable[..., None] = make(ctypes.addressof(method), None, None)
    return made


def _write_operands(code: Code, frame: _Frame, field: int) -> None:
    """Put addresses of tensors into the field of their buffers, and sizes into the frame."""
    first = len(frame.inputs)
    for k, position in enumerate(frame.operands):
        code.i32("488bbb", 8 * position).jump("e8", "address")  # rdi = argument; call
        if k >= first:
            code.i32("49038424", frame.offsets + 8 * (k - first))  # rax += offset
        code.i32("49898424", _BUFFER * k + field)
    for k, (position, _) in enumerate(frame.sizes):
        code.i32("488bbb", 8 * position).call(address_of(ctypes.pythonapi.PyLong_AsLongLong))
        code.i32("49898424", frame.numbers + 8 * k)


def _write_words(
    code: Code, frame: _Frame, words: Sequence[tuple[str, int]], device: DeviceCall | None
) -> None:
    """Put the kernel's arguments into registers and on the stack, once the stream is known."""
    if device is not None and device.stream_function:
        code.i32("bf", device.index).i64("48be", device.stream).call(device.stream_function)
    for k, (kind, number) in reversed(list(enumerate(words))):
        table = _LEA if kind == "buffer" else _MOV
        code.i32(table[min(k, 6)], _BUFFER * number if kind == "buffer" else frame.numbers + 8 * number)
        if k >= 6:
            code.i32("48898424", 8 * (k - 6))  # [rsp + ...] = rax


def _write_call(code: Code, function: int, device: DeviceCall | None) -> None:
    """Call the kernel; what is returned is None."""
    if device is not None:
        # what another thread has not looked at yet is no answer to this launch
        code.i64("48b8", device.status).raw("c700 00000000")  # mov dword [rax], 0
    code.call(function)
    if device is not None:
        code.i64("48b8", device.status).raw("833800").jump("0f85", "failed")  # cmp dword [rax], 0; jne
    code.i64("48bf", id(None)).call(address_of(ctypes.pythonapi.Py_IncRef))
    code.i64("48b8", id(None))


def _write_error(code: Code, kind: str, message: ctypes.c_char_p) -> None:
    """Raise an exception of Python's, and leave."""
    code.i64("48b8", _exported(kind)).raw("488b38")  # rdi = the exception
    code.i64("48be", ctypes.cast(message, ctypes.c_void_p).value or 0)
    code.call(address_of(ctypes.pythonapi.PyErr_SetString)).raw("31c0").jump("e9", "leave")


def _write_address(code: Code, data_ptr: int, spare: int) -> None:
    """A function: rax = the address that rdi stands for, which is a tensor's data, or an integer."""
    code.label("address").raw("4883ec08 488b4708")
    code.i64("48b9", id(int)).raw("4839c8").jump("0f84", "number")
    code.call(data_ptr).jump("e9", "found")
    code.label("number").call(address_of(ctypes.pythonapi.PyLong_AsVoidPtr))
    code.label("found").raw("4883c408 4885c0").jump("0f85", "given")
    code.i64("48b8", spare)  # nothing to point at: kernels may look at a first element without using it
    code.label("given").raw("c3")


def _exported(name: str) -> int:
    """The address of a variable of Python's."""
    return ctypes.addressof(ctypes.c_void_p.in_dll(ctypes.pythonapi, name))
