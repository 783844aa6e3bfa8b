"""What generated programs import: memory as arrays, and the operations that NumPy has under no name."""

from __future__ import annotations

import ctypes
import math
from functools import reduce as fold
from typing import Any

import numpy as np


def flat(operand: Any, dtype: Any, count: int) -> Any:
    """The memory of an operand, a tensor or an address, as an array of `count` elements."""
    address = operand if isinstance(operand, int) else operand.data_ptr()
    if count == 0 or not address:
        return np.empty(0, dtype)
    size = count * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_char * size).from_address(address), dtype)


def line(size: int, dim: int, rank: int) -> Any:
    """The values of one axis, along its own dimension."""
    shape = [1] * rank
    shape[dim] = size
    return np.arange(size, dtype=np.int64).reshape(shape)


def load(memory: Any, index: Any) -> Any:
    """Elements of a buffer."""
    return memory[index]


def load_masked(memory: Any, index: Any, mask: Any, other: Any) -> Any:
    """Elements where the mask holds, and `other` elsewhere, where the index may be anything."""
    index, mask, other = np.broadcast_arrays(index, mask, other)
    found = other.astype(memory.dtype, copy=True)
    found[mask] = memory[index[mask]]
    return found


_COMBINE = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}


def store(memory: Any, index: Any, value: Any, mode: str, shape: tuple[int, ...], mask: Any = True) -> None:
    """Write, or combine with what is there, at every point where the mask holds."""
    index, value, mask = (np.broadcast_to(x, shape) for x in (index, value, mask))
    if mode in ("set", "check"):
        memory[index[mask]] = value[mask]
    elif memory.dtype == np.bool_ and mode in ("add", "mul"):
        (np.logical_or if mode == "add" else np.logical_and).at(memory, index[mask], value[mask])
    else:
        _COMBINE[mode].at(memory, index[mask], value[mask])


def rows(value: Any, shape: tuple[int, ...], loops: int) -> Any:
    """A value in full length, its loop axes joined to one last dimension."""
    outer = shape[: len(shape) - loops]
    return np.broadcast_to(value, shape).reshape(*outer, math.prod(shape[len(outer) :]))


def reduce(kind: str, value: Any, shape: tuple[int, ...], loops: int) -> tuple[Any, ...]:
    """The results of a reduction over the loop axes, which become dimensions of length one."""
    row = rows(value, shape, loops)
    wide = np.float64 if row.dtype.kind == "f" else row.dtype
    outer = (*shape[: len(shape) - loops], *(1,) * loops)
    found = [
        np.asarray(x).astype(row.dtype if kind not in ("any", "all") else np.bool_)
        for x in _fold(kind, row, wide)
    ]
    return tuple(x.reshape(outer) for x in found)


def _fold(kind: str, row: Any, wide: Any) -> tuple[Any, ...]:
    if kind in ("sum", "prod"):
        return (getattr(np, kind)(row, axis=-1, dtype=wide),)
    if kind in ("min", "max", "any", "all"):
        return (getattr(np, kind)(row, axis=-1),)
    if kind == "xor_sum":
        return (np.bitwise_xor.reduce(row, axis=-1),)
    if kind == "welford":
        mean = row.mean(axis=-1, dtype=wide)
        return mean, np.square(row - mean[..., None]).sum(axis=-1), np.full(mean.shape, row.shape[-1])
    if kind != "online_softmax":
        raise ValueError(f"the reduction {kind} is unknown")
    largest = row.max(axis=-1)
    return largest, np.exp((row - largest[..., None]).astype(wide)).sum(axis=-1)


def scan(kind: str, value: Any, shape: tuple[int, ...]) -> Any:
    """An inclusive scan along the last axis."""
    row = np.broadcast_to(value, shape)
    wide = np.float64 if row.dtype.kind == "f" else row.dtype
    return (np.cumsum if kind == "sum" else np.cumprod)(row, axis=-1, dtype=wide).astype(row.dtype)


def least(*values: Any) -> Any:
    """`min` of index expressions."""
    return fold(np.minimum, values)


def greatest(*values: Any) -> Any:
    """`max` of index expressions."""
    return fold(np.maximum, values)


def _each(function: Any) -> Any:
    def run(x: Any) -> Any:
        x = np.asarray(x)
        return np.array([function(v) for v in x.ravel().tolist()], x.dtype).reshape(x.shape)

    return run


erf, erfc = _each(math.erf), _each(math.erfc)


def rsqrt(x: Any) -> Any:
    """1 / sqrt(x)."""
    return reciprocal(np.sqrt(x))


def reciprocal(x: Any) -> Any:
    """1 / x."""
    return np.divide(x.dtype.type(1), x)


def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x))."""
    one = x.dtype.type(1)
    return one / (one + np.exp(-x))


def sign(x: Any) -> Any:
    """The sign; 0 for NaN, as torch has it."""
    return np.where(np.isnan(x), x.dtype.type(0), np.sign(x)) if x.dtype.kind == "f" else np.sign(x)


def fma(a: Any, b: Any, c: Any) -> Any:
    """a * b + c."""
    return a * b + c


def _by(divisor: Any) -> Any:
    """A divisor that no division of integers traps at."""
    return np.where(divisor == 0, divisor.dtype.type(1), divisor) if divisor.dtype.kind in "iu" else divisor


def trunc_div(a: Any, b: Any) -> Any:
    """Division rounded towards zero."""
    if a.dtype.kind == "f":
        return np.trunc(np.divide(a, b))
    quotient, rest = np.floor_divide(a, _by(b)), np.remainder(a, _by(b))
    return quotient + ((rest != 0) & ((a < 0) != (b < 0))).astype(a.dtype)


def floor_div(a: Any, b: Any) -> Any:
    """Division rounded down."""
    found = np.floor_divide(a, _by(b))
    return np.where(b == 0, np.divide(a, b), found) if a.dtype.kind == "f" else found


def remainder(a: Any, b: Any) -> Any:
    """What is left by a division rounded down."""
    if a.dtype.kind != "f":
        return np.remainder(a, _by(b))
    rest = np.fmod(a, b)
    return np.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


def fmod(a: Any, b: Any) -> Any:
    """What is left by a division rounded towards zero."""
    return np.fmod(a, _by(b))
