"""Launchers: functions that Python calls like any of its own, a few instructions for each kernel.

Each has one `halide_buffer_t` for every buffer, made once. A call writes the tensors' addresses into them and
jumps to the kernel; strides and extents are part of the kernel's code.
"""

from __future__ import annotations

import ctypes
import json
import struct
from collections.abc import Callable, Mapping
from typing import Any

from polyfuse.base.errors import KernelLoadError
from polyfuse_halide.machine import Code, address_of, executable, writable

__all__ = ["make_launcher"]

_BUFFER, _HOST, _DIMENSIONS, _DIM = 56, 16, 40, 16
_RANK = 16
"""Dimensions that each buffer has room for."""
_LIMIT = 1 << 31

# lea and mov of [r12 + number] into the registers of the first six arguments, then rax
_LEA = ("498dbc24", "498db424", "498d9424", "498d8c24", "4d8d8424", "4d8d8c24", "498d8424")
_MOV = ("498bbc24", "498bb424", "498b9424", "498b8c24", "4d8b8424", "4d8b8c24", "498b8424")

_kept: list[Any] = []


class _Method(ctypes.Structure):
    """`PyMethodDef`."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


def make_launcher(symbol: str, function: int, meta: str, data_ptr: int | None) -> Callable[..., None]:
    """A callable for a kernel.

    Args:
        symbol: the kernel's name.
        function: its address.
        meta: what `kernel.KernelText.meta` says of its operands.
        data_ptr: address of a C function from a tensor object to its data pointer, or None.
    """
    facts = json.loads(meta)
    if facts["empty"]:
        return _nothing
    offsets = [text for _, _, text in facts["outputs"]]
    fixed = all(_is_number(text) for text in offsets) and data_ptr is not None
    if fixed:
        call = _native(symbol, function, facts, data_ptr or 0)
        return _checked(call, facts) if facts["limits"] else call
    return _by_address(symbol, function, facts)


def _nothing(*_operands: object) -> None:
    """A kernel without points."""


def _is_number(text: str) -> bool:
    return text.lstrip("-").isdigit()


def _checked(call: Callable[..., None], facts: Mapping[str, Any]) -> Callable[..., None]:
    """The same with a check that no buffer has more elements than Halide's indices reach."""
    names = {name: f"operands[{place}]" for place, name in facts["sizes"]}
    text = " or ".join(f"({limit}) >= {_LIMIT}" for limit in facts["limits"])
    header = ", ".join(f"{name}={place}" for name, place in names.items())
    scope: dict[str, Any] = {"max": max, "min": min}
    lines = [f"def too_large(operands{', ' if header else ''}{', '.join(names)}):", f"    return {text}"]
    exec("\n".join(lines), scope)
    too_large = scope["too_large"]
    places = tuple(place for place, _ in facts["sizes"])

    def launch(*operands: Any) -> None:
        if too_large(operands, *(operands[place] for place in places)):
            raise KernelLoadError(
                "a tensor has more elements than Halide's 32-bit indices reach", "use another backend"
            )
        call(*operands)

    return launch


def _buffers(count: int, rows: int, memory: Any, address: int) -> None:
    """Lay out that many buffers, `rows` numbers and the buffers' dimensions."""
    for k in range(count):
        dims = address + _BUFFER * count + 8 * rows + _DIM * _RANK * k
        struct.pack_into("<Q", memory, _BUFFER * k + _DIMENSIONS, dims)


def _room(count: int, rows: int) -> int:
    return count * (_BUFFER + _DIM * _RANK) + 8 * rows + 128


def _native(symbol: str, function: int, facts: Mapping[str, Any], data_ptr: int) -> Callable[..., None]:
    """A function of Python's fastest calling convention."""
    inputs, sizes, outputs = facts["inputs"], facts["sizes"], facts["outputs"]
    operands = [(place, 0) for place in inputs]
    operands += [(place, width * int(offset)) for place, width, offset in outputs]
    count, numbers = len(operands), _BUFFER * len(operands)
    memory, content = writable(_room(count, len(sizes)))
    _buffers(count, len(sizes), content, memory)
    spare, _ = writable(128)
    python = ctypes.pythonapi
    words = [("b", k) for k in range(len(inputs))]
    words += [("s", k) for k in range(len(sizes))]
    words += [("b", k) for k in range(len(inputs), count)]
    stack = 8 * (max(0, len(words) - 6) + max(0, len(words) - 6) % 2)
    message = ctypes.c_char_p(f"{symbol} takes {facts['count']} arguments".encode())
    _kept.append(message)
    code = Code()
    code.raw("53 55 4154 4889f3")  # push rbx, rbp, r12; rbx = arguments
    code.i32("4881ec", stack)
    code.i32("4881fa", facts["count"]).jump("0f85", "wrong")  # cmp rdx, count; jne
    code.i64("49bc", memory)  # r12 = buffers
    for k, (place, offset) in enumerate(operands):
        code.i32("488bbb", 8 * place).jump("e8", "address")  # rdi = argument; call
        if offset:
            code.i32("4805", offset)
        code.i32("49898424", _BUFFER * k + _HOST)
    for k, (place, _) in enumerate(sizes):
        code.i32("488bbb", 8 * place).call(address_of(python.PyLong_AsLongLong))
        code.i32("49898424", numbers + 8 * k)
    for k, (kind, number) in reversed(list(enumerate(words))):
        table = _LEA if kind == "b" else _MOV
        code.i32(table[min(k, 6)], _BUFFER * number if kind == "b" else numbers + 8 * number)
        if k >= 6:
            code.i32("48898424", 8 * (k - 6))  # [rsp + ...] = rax
    code.call(function)
    code.i64("48bf", id(None)).call(address_of(python.Py_IncRef))
    code.i64("48b8", id(None))
    code.label("leave").i32("4881c4", stack).raw("415c 5d 5b c3")
    code.label("wrong")
    code.i64("48b8", _exported("PyExc_TypeError")).raw("488b38")  # rdi = PyExc_TypeError
    code.i64("48be", ctypes.cast(message, ctypes.c_void_p).value or 0)
    code.call(address_of(python.PyErr_SetString)).raw("31c0").jump("e9", "leave")
    # rax = the address that rdi stands for: a tensor's data, or a whole number
    code.label("address").raw("4883ec08 488b4708")
    code.i64("48b9", id(int)).raw("4839c8").jump("0f84", "number")
    code.call(data_ptr).jump("e9", "found")
    code.label("number").call(address_of(python.PyLong_AsVoidPtr))
    code.label("found").raw("4883c408 4885c0").jump("0f85", "given")
    code.i64("48b8", spare)  # nothing to point at: kernels may look at a first element without using it
    code.label("given").raw("c3")
    address = executable(code.finished())
    method = _Method(symbol.encode(), address, 0x80, None)
    _kept.append(method)
    make = python.PyCFunction_NewEx
    make.restype = ctypes.py_object
    make.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    made: Callable[..., None] = make(ctypes.addressof(method), None, None)
    return made


def _exported(name: str) -> int:
    """The address of a variable of Python's."""
    return ctypes.addressof(ctypes.c_void_p.in_dll(ctypes.pythonapi, name))


def _by_address(symbol: str, function: int, facts: Mapping[str, Any]) -> Callable[..., None]:
    """A launcher in Python, for what the short one does not cover: offsets that depend on sizes."""
    inputs, sizes, outputs = facts["inputs"], facts["sizes"], facts["outputs"]
    count = len(inputs) + len(outputs)
    kinds = [ctypes.c_void_p] * len(inputs) + [ctypes.c_int] * len(sizes) + [ctypes.c_void_p] * len(outputs)
    call = ctypes.PYFUNCTYPE(ctypes.c_int, *kinds)(function)
    spare, _ = writable(128)
    scope = {"max": max, "min": min}
    codes = [compile(text, symbol, "eval") for _, _, text in outputs]

    def launch(*operands: Any) -> None:
        if len(operands) != facts["count"]:
            raise TypeError(f"{symbol} takes {facts['count']} arguments")
        known = {**scope, **{name: int(operands[place]) for place, name in sizes}}
        # buffers of its own for each call: another thread may be inside the kernel
        memory = ctypes.create_string_buffer(_room(count, 0))
        address = ctypes.addressof(memory)
        _buffers(count, 0, memory, address)
        places = [(place, 0) for place in inputs]
        places += [(o[0], o[1] * int(eval(c, {}, known))) for o, c in zip(outputs, codes)]
        for k, (place, offset) in enumerate(places):
            operand = operands[place]
            start = operand if isinstance(operand, int) else operand.data_ptr()
            struct.pack_into("<Q", memory, _BUFFER * k + _HOST, (start or spare) + offset)
        pointers = [address + _BUFFER * k for k in range(count)]
        numbers = [int(operands[place]) for place, _ in sizes]
        call(*pointers[: len(inputs)], *numbers, *pointers[len(inputs) :])

    return launch
