"""What each operation of the IR means, on whole tensors: scalar operations, casts, reductions, scans, stores.

torch defines nearly everything. NumPy stands in for unsigned types wider than a byte, for which torch has
storage but hardly any arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import torch
from torch import Tensor

from polyfuse.base.errors import IRError
from polyfuse.ir.ops import CONTRACTIONS, GROUP_MODES, REDUCTIONS, SCALAR_OPS, combining_op, identity
from polyfuse.ir.types import DType, from_torch
from polyfuse.ir.verifier.rules import accumulates

_WIDE_UNSIGNED = (DType.u16, DType.u32, DType.u64)
_TWINS = {
    torch.uint16: torch.int16,
    torch.uint32: torch.int32,
    torch.uint64: torch.int64,
    torch.float8_e4m3fn: torch.uint8,
    torch.float8_e5m2: torch.uint8,
    torch.float8_e4m3fnuz: torch.uint8,
    torch.float8_e5m2fnuz: torch.uint8,
}


def scalar(op: str, operands: tuple[Tensor, ...], dtype: DType) -> Tensor:
    """A scalar operation at every point; `dtype` is the type of its operands (`where`: of its last)."""
    if dtype in _WIDE_UNSIGNED:
        return _on_numpy(_NUMPY_OPS[op], *operands)
    return torch.as_tensor(SCALAR_OPS[op].reference(*operands))


def cast(value: Tensor, dtype: DType) -> Tensor:
    """`value` converted as torch converts it."""
    return value.to(dtype.torch)


def bitcast(value: Tensor, dtype: DType) -> Tensor:
    """The bits of `value` as another type of the same width."""
    return value.contiguous().view(dtype.torch)


def constant(value: Any, dtype: DType, device: torch.device) -> Tensor:
    """One value, with no dimensions."""
    if dtype in _WIDE_UNSIGNED:
        return torch.from_numpy(numpy.asarray(value, dtype=dtype_of_numpy(dtype)).copy()).to(device)
    return torch.tensor(value, dtype=dtype.torch, device=device)


def dtype_of_numpy(dtype: DType) -> Any:
    """NumPy's name of an integer type."""
    return numpy.dtype(f"{dtype.value[0]}{dtype.itemsize}")


# --- unsigned arithmetic ------------------------------------------------------------------------------------


def _on_numpy(function: Callable[..., Any], *operands: Tensor) -> Tensor:
    device = operands[0].device
    with numpy.errstate(all="ignore"):
        result = numpy.asarray(function(*(t.cpu().numpy() for t in operands)))
    return torch.from_numpy(numpy.ascontiguousarray(result).reshape(result.shape)).to(device)


def _divide(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda a, b: function(a, numpy.where(b == 0, b.dtype.type(1), b))


def _shift(function: Callable[..., Any]) -> Callable[..., Any]:
    def shifted(a: Any, b: Any) -> Any:
        width = a.dtype.itemsize * 8
        inside = b < width
        return numpy.where(inside, function(a, numpy.where(inside, b, b.dtype.type(0))), a.dtype.type(0))

    return shifted


_NUMPY_OPS: dict[str, Callable[..., Any]] = {
    "add": numpy.add,
    "sub": numpy.subtract,
    "mul": numpy.multiply,
    "neg": numpy.negative,
    "floor_div": _divide(numpy.floor_divide),
    "trunc_div": _divide(numpy.floor_divide),
    "remainder": _divide(numpy.remainder),
    "fmod": _divide(numpy.remainder),
    "minimum": numpy.minimum,
    "maximum": numpy.maximum,
    "eq": numpy.equal,
    "ne": numpy.not_equal,
    "lt": numpy.less,
    "le": numpy.less_equal,
    "gt": numpy.greater,
    "ge": numpy.greater_equal,
    "bitwise_and": numpy.bitwise_and,
    "bitwise_or": numpy.bitwise_or,
    "bitwise_xor": numpy.bitwise_xor,
    "bitwise_not": numpy.bitwise_not,
    "shift_left": _shift(numpy.left_shift),
    "shift_right": _shift(numpy.right_shift),
    "where": numpy.where,
}


# --- reductions and scans -----------------------------------------------------------------------------------


def reduce(kind: str, operands: tuple[Tensor, ...], dtype: DType) -> tuple[Tensor, ...]:
    """A reduction over the last dimension, which is dropped. `dtype` is the type of the first operand.

    Raises:
        IRError: the kind is unknown, or has no meaning here.
    """
    value = operands[0]
    if kind in CONTRACTIONS:
        return (_dot(value, operands[1], dtype),)
    if kind not in REDUCTIONS:
        raise IRError(f"reduction {kind!r} is unknown", "its kinds are those of polyfuse.ir.ops.REDUCTIONS")
    if REDUCTIONS[kind].is_plain:
        return (_combined(kind, value, dtype),)
    if kind in ("argmin", "argmax"):
        return _arg_extreme("min" if kind == "argmin" else "max", value, operands[1], dtype)
    wide = value.double()
    if kind == "welford":
        count = torch.full(wide.shape[:-1], wide.shape[-1], dtype=torch.float64, device=wide.device)
        mean = wide.mean(-1) if wide.shape[-1] else torch.zeros_like(count)
        if value.dtype is torch.float64 and wide.shape[-1]:
            # no type is wider: what the sum lost in rounding, so that equal numbers do not vary
            offset = (wide - mean.unsqueeze(-1)).mean(-1)
            mean = torch.where(offset.isfinite(), mean + offset, mean)
        deviation = (wide - mean.unsqueeze(-1)).square().sum(-1)
        return tuple(t.to(value.dtype) for t in (mean, deviation, count))
    if kind == "online_softmax":
        largest = _combined("max", value, dtype)
        total = (value - largest.unsqueeze(-1)).double().exp().sum(-1)
        return largest, total.to(value.dtype)
    raise IRError(f"reduction {kind!r} has no meaning here", "define it in polyfuse.ir.interpreter.semantics")


def _dot(left: Tensor, right: Tensor, dtype: DType) -> Tensor:
    result = accumulates(dtype)
    wide = torch.float64 if result.is_float else torch.int64
    return (left.to(wide) * right.to(wide)).sum(-1).to(result.torch)


def _combined(kind: str, value: Tensor, dtype: DType) -> Tensor:
    if kind in ("any", "all"):
        truth = value != 0 if value.dtype is not torch.bool else value
        return truth.any(-1) if kind == "any" else truth.all(-1)
    if value.shape[-1] == 0:
        filled = constant(identity(kind, dtype), dtype, value.device)
        return filled.expand(value.shape[:-1]).clone()
    if dtype in _WIDE_UNSIGNED or kind not in ("sum", "prod", "min", "max"):
        step: Any = _NUMPY_OPS[REDUCTIONS[kind].combine]
        return _on_numpy(lambda a: step.reduce(a, axis=-1), value)
    if kind == "sum":
        # wider than the operand, so that a long sum serves as a reference
        return value.double().sum(-1).to(value.dtype) if dtype.is_float else value.sum(-1, dtype=value.dtype)
    if kind == "prod":
        return value.prod(-1, dtype=value.dtype)
    return value.amin(-1) if kind == "min" else value.amax(-1)


def _arg_extreme(kind: str, value: Tensor, position: Tensor, dtype: DType) -> tuple[Tensor, Tensor]:
    best = _combined(kind, value, dtype)
    if value.shape[-1] == 0:
        return best, torch.zeros_like(best, dtype=torch.int64)
    hit = scalar("eq", (value, best.unsqueeze(-1)), dtype)
    if dtype.is_float:
        hit = hit | (value.isnan() & best.isnan().unsqueeze(-1))
    last = torch.iinfo(torch.int64).max
    return best, torch.where(hit, position, torch.full_like(position, last)).amin(-1)


def scan(kind: str, operands: tuple[Tensor, ...], dtype: DType) -> tuple[Tensor, ...]:
    """An inclusive scan along the last dimension. `dtype` is the type of the first operand.

    Raises:
        IRError: the kind is unknown.
    """
    value = operands[0]
    if kind in ("min", "max"):
        found = value.cummax(-1) if kind == "max" else value.cummin(-1)
        return found.values, operands[1].gather(-1, found.indices)
    if kind == "logsumexp":
        return (value.logcumsumexp(-1),)
    if kind not in ("sum", "prod"):
        raise IRError(f"scan {kind!r} is unknown", "its kinds are those of polyfuse.ir.ops.SCANS")
    if dtype in _WIDE_UNSIGNED:
        step = numpy.add if kind == "sum" else numpy.multiply
        return (_on_numpy(lambda a: step.accumulate(a, axis=-1), value),)
    if dtype.is_float and kind == "sum":
        return (value.double().cumsum(-1).to(value.dtype),)
    return (value.cumsum(-1, dtype=value.dtype) if kind == "sum" else value.cumprod(-1, dtype=value.dtype),)


# --- memory -------------------------------------------------------------------------------------------------


def gather(storage: Tensor, index: Tensor) -> Tensor:
    """Elements of a flat storage, copied: what is stored later does not change what was loaded."""
    twin = _twin(storage)
    # an index without dimensions would give a view
    found = twin[index] if index.dim() else twin[index.reshape(1)].reshape(())
    return found if twin is storage else found.view(storage.dtype)


def where(condition: Tensor, value: Tensor, other: Tensor) -> Tensor:
    """`value` where the condition holds, for any type."""
    twin = _twin(value)
    if twin is value:
        return torch.where(condition, value, other)
    return torch.where(condition, twin, _twin(other)).view(value.dtype)


def begin_group(storage: Tensor, mode: str) -> None:
    """Fill a storage with what stores of a mode of `ops.GROUP_MODES` begin with; others change nothing."""
    dtype = from_torch(storage.dtype)
    if mode in GROUP_MODES and dtype is not None:
        storage.fill_(identity(GROUP_MODES[mode], dtype))


def scatter(storage: Tensor, index: Tensor, value: Tensor, mode: str) -> None:
    """Store a flat list of values at a flat list of positions, combined with what is there as `mode` says."""
    op = combining_op(mode)
    if not op:
        _twin(storage)[index] = _twin(value)
        return
    # combined in NumPy one after the other, which wraps integers and propagates NaN like the IR's modes do
    combine: Any = _NUMPY_OPS[op]
    narrow = storage.dtype.is_floating_point and storage.dtype.itemsize < 4
    total = (storage.float() if narrow else storage).cpu().numpy().copy()
    added = (value.float() if narrow else value).cpu().numpy()
    with numpy.errstate(all="ignore"):
        combine.at(total, index.cpu().numpy(), added)
    storage.copy_(torch.from_numpy(total))


def _twin(tensor: Tensor) -> Tensor:
    """The same bits as a type that torch can index and select."""
    twin = _TWINS.get(tensor.dtype)
    return tensor if twin is None else tensor.view(twin)
