"""Writes to existing storage: what functionalisation leaves at the end of a graph."""

from __future__ import annotations

from typing import Any

from polyfuse.base.errors import UnsupportedError
from polyfuse.lowering.context import LoweringContext
from polyfuse.lowering.registry import lowers
from polyfuse.lowering.value import TensorValue, axes_of
from polyfuse.rewrite import cast


@lowers("aten.copy_.default")
def copy_(
    ctx: LoweringContext, node: Any, target: TensorValue, source: Any, non_blocking: bool = False
) -> TensorValue:
    """Write `source` over `target`, after everything that still needs the old content has it."""
    if target.dtype is None or target.view is None or target.raw is not None:
        raise UnsupportedError(f"{target.torch_dtype} is overwritten by eager")
    if isinstance(source, TensorValue) and source.device != target.device:
        raise UnsupportedError(f"a copy from {source.device} to {target.device} is made by eager")
    if any(s == 0 and n != 1 for n, s in zip(target.size, target.view.stride, strict=True)):
        raise UnsupportedError("elements that share memory are overwritten by eager")
    if isinstance(source, TensorValue) and source.view == target.view and source.raw is None:
        return target  # it was computed in its place
    ctx.before_write(target.view.buffer)
    value = TensorValue(
        target.dtype, target.torch_dtype, target.device, target.size, target.stride, target.offset
    )
    body = ctx.operand(source, axes_of(target.size), target.dtype.compute, target.device)
    value.body = cast(body, target.dtype.compute)
    value.origins = ctx.origins
    ctx.write(value, target.view)
    return target
