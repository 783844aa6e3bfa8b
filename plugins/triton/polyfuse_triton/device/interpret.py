"""What Triton's interpreter lacks, so that kernels can be checked without a GPU.

Importing this module supplies the functions of libdevice, computed by torch, and corrects the interpreter:
numbers are rounded when they are narrowed to bf16 or 8 bits, and reductions and scans with functions of our
own run on whole arrays, pairwise as a GPU does it, rather than element by element in Python.

It is imported only where `TRITON_INTERPRET` is set.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import torch
import triton.language as tl
from triton.runtime import interpreter

from polyfuse_triton.loops.ops import LIBDEVICE

# --- libdevice ----------------------------------------------------------------------------------------------


def _through_torch(function: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """A function of torch as one of the interpreter's."""

    def call(*operands: Any) -> Any:
        shape = numpy.broadcast_shapes(*(o.handle.data.shape for o in operands))
        arrays = [numpy.broadcast_to(o.handle.data, shape) for o in operands]
        found = function(*(torch.from_numpy(numpy.array(a)) for a in arrays)).numpy()
        first = operands[0]
        block = next((o.type.shape for o in operands if o.type.is_block()), None)
        kind = first.dtype if block is None else tl.block_type(first.dtype, list(shape))
        return tl.tensor(interpreter.TensorHandle(found, first.dtype), kind)

    return call


_FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {name: getattr(torch, name) for name in LIBDEVICE}
_FUNCTIONS["rint"] = torch.round
_FUNCTIONS["cospi"] = lambda a: torch.cos(a.double() * torch.pi).to(a.dtype)
_FUNCTIONS["sqrt"] = torch.sqrt
_FUNCTIONS["mul_rn"] = torch.mul
# torch's own is not exact on vectors
_FUNCTIONS["fmod"] = lambda a, b: torch.from_numpy(numpy.fmod(a.numpy(), b.numpy()))

globals().update({name: _through_torch(function) for name, function in _FUNCTIONS.items()})


# --- corrections --------------------------------------------------------------------------------------------


_NARROW = {
    tl.bfloat16: (torch.bfloat16, torch.uint16),
    tl.float8e4nv: (torch.float8_e4m3fn, torch.uint8),
    tl.float8e5: (torch.float8_e5m2, torch.uint8),
}
_WIDE = {tl.float32: torch.float32, tl.float64: torch.float64, tl.float16: torch.float16}


def _rounding(plain: Callable[..., Any]) -> Callable[..., Any]:
    """A conversion between floating-point types that rounds to nearest, where the interpreter cuts off, and
    keeps the smallest numbers, where it loses them.
    """

    def convert(self: Any, source: Any, target: Any, *mode: Any) -> Any:
        kind, given = target.scalar, source.dtype.scalar
        data = torch.from_numpy(numpy.array(source.data))
        if kind in _NARROW and given in (tl.float32, tl.float64):
            narrow, bits = _NARROW[kind]
            found = data.to(torch.float32).to(narrow).view(bits)
        elif given in _NARROW and kind in _WIDE:
            found = data.view(_NARROW[given][0]).to(_WIDE[kind])
        else:
            return plain(self, source, target, *mode)
        return interpreter.TensorHandle(found.numpy().reshape(source.data.shape), kind)

    return convert


def _arrays(values: Sequence[Any]) -> list[Any]:
    return [value.handle.data for value in values]


def _combined(combine: Any, kinds: Sequence[Any], left: Sequence[Any], right: Sequence[Any]) -> list[Any]:
    """The combine function on whole arrays."""
    given = [_tensor(a, kind) for side in (left, right) for a, kind in zip(side, kinds, strict=True)]
    found = combine.fn(*given)
    found = found if isinstance(found, tuple) else (found,)
    return [f.handle.data for f in found]


def _tensor(data: Any, kind: Any) -> Any:
    block = tl.block_type(kind, list(data.shape)) if data.shape else kind
    return tl.tensor(interpreter.TensorHandle(data, kind), block)


def _reduce(self: Any, operands: Sequence[Any]) -> list[Any]:
    """Pairwise reduction along an axis of a length that is a power of two."""
    kinds = [o.dtype for o in operands]
    data = _arrays(operands)
    if self.axis is None:
        data = [d.reshape(-1) for d in data]
    axis = 0 if self.axis is None else self.axis
    while data[0].shape[axis] > 1:
        half = data[0].shape[axis] // 2
        left = [numpy.take(d, range(half), axis) for d in data]
        right = [numpy.take(d, range(half, 2 * half), axis) for d in data]
        data = _combined(self.combine_fn, kinds, left, right)
    if not self.keep_dims:
        data = [d.reshape(d.shape[:axis] + d.shape[axis + 1 :]) for d in data]
    return [self.to_tensor(d if d.shape else d.item(), kind) for d, kind in zip(data, kinds, strict=True)]


def _scan(self: Any, operands: Sequence[Any]) -> list[Any]:
    """Inclusive scan by doubling distances."""
    kinds = [o.dtype for o in operands]
    data = _arrays(operands)
    length, step = data[0].shape[self.axis], 1
    shape = [1] * data[0].ndim
    shape[self.axis] = length
    position = numpy.arange(length).reshape(shape)
    while step < length:
        before = [numpy.roll(d, step, self.axis) for d in data]
        joined = _combined(self.combine_fn, kinds, before, data)
        data = [numpy.where(position >= step, new, old) for new, old in zip(joined, data, strict=True)]
        step *= 2
    return [self.to_tensor(d, kind) for d, kind in zip(data, kinds, strict=True)]


def _adding_bf16(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Atomic updates that know bf16 too, one element after the other."""

    def update(self: Any, kind: Any, pointer: Any, value: Any, mask: Any, *order: Any) -> Any:
        if pointer.get_element_ty() != tl.bfloat16:
            return plain(self, kind, pointer, value, mask, *order)
        addresses = pointer.data.reshape(-1)
        added = torch.from_numpy(numpy.array(value.data)).view(torch.bfloat16).reshape(-1)
        found = numpy.zeros(addresses.shape, numpy.uint16)
        for k in numpy.flatnonzero(numpy.broadcast_to(mask.data, pointer.data.shape)):
            word = ctypes.c_uint16.from_address(int(addresses[k]))
            found[k] = word.value
            old = torch.tensor([word.value], dtype=torch.uint16).view(torch.bfloat16)
            word.value = int((old + added[k : k + 1]).view(torch.uint16).item())
        return interpreter.TensorHandle(found.reshape(pointer.data.shape), tl.bfloat16)

    return update


def _multiplying(self: Any, a: Any, b: Any, c: Any, *how: Any) -> Any:
    """Matmuls, narrow numbers as what they stand for, added up in the type of the result."""
    left, right = (_numbers(operand, c.data.dtype) for operand in (a, b))
    return interpreter.TensorHandle(numpy.matmul(left, right) + c.data, c.dtype.scalar)


def _numbers(operand: Any, kind: Any) -> Any:
    narrow = _NARROW.get(operand.dtype.scalar)
    if narrow is None:
        return operand.data.astype(kind)
    return torch.from_numpy(numpy.array(operand.data)).view(narrow[0]).float().numpy().astype(kind)


def _keeping_truth(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Scalars as tensors; what was compared is a truth value, whatever type it is said to have."""

    def splat(self: Any, kind: Any, value: Any) -> Any:
        if value.data.dtype == numpy.bool_:
            value = interpreter.TensorHandle(value.data, tl.int1)
        return plain(self, kind, value)

    return splat


interpreter.InterpreterBuilder.create_splat = _keeping_truth(interpreter.InterpreterBuilder.create_splat)
interpreter.InterpreterBuilder.create_dot = _multiplying
interpreter.InterpreterBuilder.create_atomic_rmw = _adding_bf16(
    interpreter.InterpreterBuilder.create_atomic_rmw
)
interpreter.ReduceOps.generic_reduce = _reduce
interpreter.ScanOps.generic_scan = _scan
interpreter.InterpreterBuilder.create_fp_ext = _rounding(interpreter.InterpreterBuilder.create_fp_ext)
interpreter.InterpreterBuilder.create_fp_trunc = _rounding(interpreter.InterpreterBuilder.create_fp_trunc)
interpreter.InterpreterBuilder.create_fp_to_fp = _rounding(interpreter.InterpreterBuilder.create_fp_to_fp)
