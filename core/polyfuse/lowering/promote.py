"""Type promotion over values, as torch does it over tensors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.types import DType, from_torch
from polyfuse.lowering.value import TensorValue
from polyfuse.symbolic import Index


def result_type(operands: Iterable[Any]) -> torch.dtype:
    """The dtype operands are promoted to: tensors with dimensions first, then single-number tensors, then
    Python numbers, each only able to raise the category."""
    ranked: list[torch.dtype | None] = [None, None, None]
    for operand in operands:
        if isinstance(operand, TensorValue):
            level, dtype = (0 if operand.size else 1), operand.torch_dtype
        elif isinstance(operand, bool):
            level, dtype = 2, torch.bool
        elif isinstance(operand, (int, Index)):
            level, dtype = 2, torch.int64
        elif isinstance(operand, float):
            level, dtype = 2, torch.get_default_dtype()
        elif operand is None:
            continue
        else:
            raise UnsupportedError(f"an operand of type {type(operand).__name__} has no dtype")
        known = ranked[level]
        ranked[level] = dtype if known is None else torch.promote_types(known, dtype)
    result: torch.dtype | None = None
    for known in ranked:
        if known is not None and (result is None or _category(known) > _category(result)):
            result = known
    if result is None:
        raise UnsupportedError("an operator without operands has no dtype")
    return result


def _category(dtype: torch.dtype) -> int:
    if dtype is torch.bool:
        return 0
    if dtype.is_complex:
        return 3
    return 2 if dtype.is_floating_point else 1


def compute_type(dtype: torch.dtype) -> DType:
    """The IR type that values of a torch dtype are computed in."""
    known = from_torch(dtype)
    if known is None:
        raise UnsupportedError(f"{dtype} is not a type that kernels compute in")
    return known.compute
