"""Running sums, products and extremes along a dimension."""

from __future__ import annotations

from typing import Any

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.expr import Expr, index_value
from polyfuse.ir.nodes import Scan
from polyfuse.ir.types import DType
from polyfuse.lowering.calls.extern import call
from polyfuse.lowering.context import LoweringContext
from polyfuse.lowering.reductions.reduction import from_zero
from polyfuse.lowering.registry import lowers
from polyfuse.lowering.shapes.layout import memory_order
from polyfuse.lowering.shapes.views import wrap
from polyfuse.lowering.value import TensorValue, axes_of
from polyfuse.plugin.target_info import near_divisor
from polyfuse.rewrite import cast
from polyfuse.symbolic import Index, IndexLike, axis, product
from polyfuse.torch_compat import ops

_KINDS = {"cumsum": "sum", "cumprod": "prod", "logcumsumexp": "logsumexp"}


def _is_sum(kind: str, dtype: DType) -> bool:
    """Whether eager mode adds the first step to something, so that no step is a negative zero."""
    return kind in ("sum", "logsumexp") and dtype.is_float


def _scan(
    ctx: LoweringContext,
    kind: str,
    value: TensorValue,
    dim: int,
    results: list[TensorValue],
    with_position: bool,
) -> None:
    """Scan `value` along `dim` into new buffers for `results`."""
    assert value.dtype is not None and results[0].dtype is not None
    view = ctx.stored(results[0]).view
    assert view is not None
    for other in results[1:]:
        ctx.stored(other, view.stride)
    own = axes_of(value.size)
    along = axis(f"r{dim}", value.size[dim])
    indices: list[IndexLike] = [along if d == dim else a for d, a in enumerate(own)]
    index: IndexLike = 0
    for a, stride in zip(indices, view.stride, strict=True):
        index = index + a * stride
    order = [d for d in memory_order(value.size, view.stride, ctx.sizes) if d != dim]
    axes = tuple(a for a in (own[d] for d in order) if isinstance(a, Index))
    term = cast(value.at(indices), results[0].dtype.compute)
    values: tuple[Expr, ...] = (from_zero(term) if _is_sum(kind, term.dtype) else term,)
    if with_position:
        values = (*values, index_value(along))
    outputs = tuple(r.view.buffer for r in results if r.view is not None)
    ctx.emit(Scan(ctx.fresh("op"), axes, (along,), outputs, index, kind, values, origins=ctx.origins))


def _is_too_long(ctx: LoweringContext, value: TensorValue, dim: int, result: Any) -> bool:
    """Whether one group of threads of a wide device would walk through a row by itself: it is long, there are
    few, its parts do not look back, and it has no equal parts that several could take.
    """
    target_info, length = ctx.target_info(value.device), value.size[dim]
    if target_info.scans_look_back and result.stride(dim) == 1:
        return False
    rows = ctx.sizes.hint(product(n for d, n in enumerate(value.size) if d != dim))
    wanted = target_info.splits(rows, ctx.sizes.hint(length))
    return wanted > 1 and not (isinstance(length, int) and near_divisor(length, wanted))


def _is_of_few_rows(ctx: LoweringContext, value: TensorValue, dim: int) -> bool:
    """Whether there are too few long rows for one loop to convert what another one made of each: totals in
    double precision would be stored.
    """
    target_info = ctx.target_info(value.device)
    rows = ctx.sizes.hint(product(n for d, n in enumerate(value.size) if d != dim))
    return rows < target_info.few_rows and ctx.sizes.hint(value.size[dim]) > target_info.long_row


@lowers("aten.cumsum.default", "aten.cumprod.default", "aten.logcumsumexp.default")
def running(ctx: LoweringContext, node: Any, value: TensorValue, dim: int, dtype: Any = None) -> TensorValue:
    result = ctx.template(node.meta["val"])
    kind, compute = _KINDS[ops.base_name(node.target)], result.kernel_type.compute
    if kind == "logsumexp" and not compute.is_float:
        raise UnsupportedError("running sums of exponentials are floating-point")
    dim = wrap(dim, value.rank)
    if value.rank == 0 or value.size[dim] == 1:
        only = cast(value.at(axes_of(value.size)), compute)
        return ctx.lazy(result, from_zero(only) if _is_sum(kind, compute) else only)
    doubled = result.dtype is DType.f32 and kind != "logsumexp" and ctx.target_info(result.device).double_sums
    few = doubled and _is_of_few_rows(ctx, value, dim)
    if doubled and not few:
        # as eager mode; products of a few numbers can leave the range of f32 and come back
        compute = DType.f64
    if (few and kind == "prod") or (kind != "logsumexp" and _is_too_long(ctx, value, dim, node.meta["val"])):
        named = {} if dtype is None else {"dtype": dtype}
        library: TensorValue = call(ctx, node.meta["val"], ops.op_name(node.target), (value, dim), named)
        return library
    if result.dtype is compute:
        _scan(ctx, kind, value, dim, [result], False)
        return result
    total = ctx.temporary(compute, result.device, result.size)
    _scan(ctx, kind, value, dim, [total], False)
    return ctx.lazy(result, total.at(axes_of(result.size)))


@lowers("aten.cummax.default", "aten.cummin.default")
def running_extreme(
    ctx: LoweringContext, node: Any, value: TensorValue, dim: int
) -> tuple[TensorValue, TensorValue]:
    extreme, position = (ctx.template(f) for f in node.meta["val"])
    own, dtype = axes_of(value.size), value.kernel_type
    dim = wrap(dim, value.rank)
    if value.rank == 0 or value.size[dim] == 1:
        return ctx.lazy(extreme, value.at(own)), ctx.lazy(position, index_value(0))
    kind = ops.base_name(node.target).removeprefix("cum")
    compute = DType.i32 if dtype is DType.bool else dtype.compute
    best = extreme if extreme.dtype is compute else ctx.temporary(compute, extreme.device, extreme.size)
    _scan(ctx, kind, value, dim, [best, position], True)
    if best is not extreme:
        ctx.lazy(extreme, cast(best.at(own), dtype.compute))
    return extreme, position
