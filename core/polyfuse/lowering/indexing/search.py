"""Searching sorted numbers: a binary search of fixed depth at every element, so that it fuses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.expr import Expr, const
from polyfuse.ir.types import DType
from polyfuse.lowering.context import LoweringContext
from polyfuse.lowering.elements.pointwise import promoted
from polyfuse.lowering.indexing.gather import fetch
from polyfuse.lowering.registry import lowers
from polyfuse.lowering.value import TensorValue, axes_of
from polyfuse.rewrite import cast, make, where
from polyfuse.symbolic import IndexLike


@lowers("aten.bucketize.Tensor", "aten.bucketize.Scalar", stores=(1,))
def bucketize(
    ctx: LoweringContext,
    node: Any,
    value: Any,
    boundaries: TensorValue,
    *,
    out_int32: bool = False,
    right: bool = False,
) -> TensorValue:
    if boundaries.rank != 1:
        raise UnsupportedError("eager mode refuses boundaries of several dimensions")
    return _position(ctx, node, boundaries, value, right)


@lowers("aten.searchsorted.Tensor", "aten.searchsorted.Scalar", stores=(0,))
def searchsorted(
    ctx: LoweringContext,
    node: Any,
    sequence: TensorValue,
    value: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: TensorValue | None = None,
) -> TensorValue:
    if sorter is not None:
        raise UnsupportedError("no kernel searches sequences sorted through an index")
    return _position(ctx, node, sequence, value, right or side == "right")


def _position(ctx: LoweringContext, node: Any, sequence: TensorValue, value: Any, right: bool) -> TensorValue:
    """How many numbers of a row of `sequence` stand before `value`; equal ones do if `right`."""
    result = ctx.template(node.meta["val"])
    count = sequence.size[-1] if sequence.rank else 1
    if not isinstance(count, int) or sequence.rank == 0:
        raise UnsupportedError("no kernel searches sequences of a length that varies")
    axes = axes_of(result.size)
    lead: Sequence[IndexLike] = axes[: sequence.rank - 1] if sequence.rank > 1 else ()
    kind = promoted((sequence, value))
    wanted = ctx.operand(value, axes, kind, result.device)
    position: Expr = const(0, DType.i64)
    if count:
        last = const(count - 1, DType.i64)
        step = 1 << (count.bit_length() - 1)
        while step:
            further = make("add", position, const(step, DType.i64))
            at = make("minimum", make("sub", further, const(1, DType.i64)), last)
            found = cast(fetch(ctx, sequence, [*lead, at]), kind)
            # written so that NaN stands after everything
            passed = make("bitwise_not", make("gt" if right else "ge", found, wanted))
            exists = make("le", further, const(count, DType.i64))
            position = where(make("bitwise_and", exists, passed), further, position)
            step >>= 1
    return ctx.lazy(result, position)
