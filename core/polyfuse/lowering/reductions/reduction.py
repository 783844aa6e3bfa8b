"""Reductions: sums, products, extremes and where they are, truth, softmax."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.expr import Expr, const, index_value, loads
from polyfuse.ir.nodes import Reduction
from polyfuse.ir.ops import REDUCTIONS, identity
from polyfuse.ir.types import DType
from polyfuse.lowering.context import LoweringContext
from polyfuse.lowering.elements.numbers import size_number
from polyfuse.lowering.elements.pointwise import truth
from polyfuse.lowering.indexing.inlined_reads import only_term
from polyfuse.lowering.registry import lowers
from polyfuse.lowering.shapes.layout import memory_order
from polyfuse.lowering.shapes.views import wrap
from polyfuse.lowering.value import TensorValue, axes_of
from polyfuse.rewrite import cast, make
from polyfuse.symbolic import Index, IndexLike, axis, axis_name, coefficient, product
from polyfuse.torch_compat import ops

Values = Callable[[Sequence[IndexLike]], tuple[Expr, ...]]
"""From an index in each dimension of the operand to what is reduced there."""


def reduced_dims(dims: Any, rank: int) -> tuple[int, ...]:
    """The dimensions an operator reduces: all of them for None and for an empty list."""
    if rank == 0 or dims is None or (isinstance(dims, (tuple, list)) and not dims):
        return tuple(range(rank))
    listed = dims if isinstance(dims, (tuple, list)) else (dims,)
    return tuple(sorted({wrap(d, rank) for d in listed}))


def reduce(
    ctx: LoweringContext,
    kind: str,
    size: Sequence[IndexLike],
    dims: Sequence[int],
    values: Values,
    results: Sequence[TensorValue | None],
) -> tuple[Expr, ...]:
    """Reduce `dims` of an iteration space `size`; each result that is not None becomes stored.

    A result is laid out like the operand with `dims` left out or of size one. Returned is, for each result,
    its element at the result's own ``i0, i1, ...``.
    """
    first = next(r for r in results if r is not None)
    own = axes_of(first.size)
    indices, raxes = _operand_indices(size, dims, own)
    if any(size[d] == 0 for d in dims):
        if not REDUCTIONS[kind].has_value_of_nothing:
            raise UnsupportedError(f"{kind} over no elements has no value")
        return (const(identity(kind, first.kernel_type), first.kernel_type),)
    operands = values(indices)
    if not raxes:
        return _of_one(kind, operands)
    if kind == "sum" and len(raxes) == 1:
        term = only_term(operands[0], raxes[0])
        if term is not None:
            return (term,)
    view = ctx.stored(first).view
    assert view is not None
    for result in results:
        if result is not None and result is not first:
            ctx.stored(result, view.stride)
    index: IndexLike = 0
    for a, stride in zip(own, view.stride, strict=True):
        index = index + a * stride
    order = memory_order(first.size, view.stride, ctx.sizes)
    axes = tuple(a for a in (own[d] for d in order) if isinstance(a, Index))
    outputs = tuple(r.view.buffer if r is not None and r.view is not None else "" for r in results)
    raxes = order_by_memory(ctx, operands, raxes)
    ctx.emit(
        Reduction(ctx.fresh("op"), axes, tuple(raxes), outputs, index, kind, operands, origins=ctx.origins)
    )
    return tuple(r.at(own) if r is not None else const(0, DType.i64) for r in results)


def _operand_indices(
    size: Sequence[IndexLike], dims: Sequence[int], own: Sequence[IndexLike]
) -> tuple[list[IndexLike], list[Index]]:
    """An index for each dimension of an operand, and those of them that are reduced over.

    Args:
        own: the result's indices; as many as `size` where reduced dimensions stay, of size one.
    """
    indices: list[IndexLike] = []
    raxes: list[Index] = []
    others = iter(own)
    for d, n in enumerate(size):
        if d not in dims:
            indices.append(own[d] if len(own) == len(size) else next(others))
            continue
        variable = axis(f"r{d}", n) if n != 1 else 0
        if isinstance(variable, Index):
            raxes.append(variable)
        indices.append(variable)
    return indices, raxes


def _of_one(kind: str, operands: tuple[Expr, ...]) -> tuple[Expr, ...]:
    if kind in ("argmin", "argmax"):
        return operands
    if kind == "welford":
        one = operands[0]
        return one, const(0.0, one.dtype), const(1.0, one.dtype)
    if kind == "sum" and operands[0].dtype.is_float:
        return (from_zero(operands[0]),)
    return operands


def from_zero(term: Expr) -> Expr:
    """The sum of one number. It begins with a zero that is positive, so it is never a negative zero."""
    return make("add", term, const(0.0, term.dtype))


def order_by_memory(ctx: LoweringContext, operands: Sequence[Expr], raxes: Sequence[Index]) -> list[Index]:
    """Loop order over reduced dimensions: that of the largest thing read, its densest dimension innermost."""
    if len(raxes) < 2:
        return list(raxes)
    names = [axis_name(a) for a in raxes]
    best: tuple[int, list[int]] | None = None
    for element in loads(*operands):
        factors = [coefficient(element.index, name) for name in names]
        if any(f is None for f in factors):
            continue
        steps = [abs(ctx.sizes.hint(f)) for f in factors if f is not None]
        extent = ctx.sizes.hint(ctx.buffers[element.buffer].numel)
        weight = extent * sum(1 for s in steps if s)
        if best is None or weight > best[0]:
            best = (weight, steps)
    if best is None:
        return list(raxes)
    steps = best[1]
    return [raxes[k] for k in sorted(range(len(raxes)), key=lambda k: -steps[k])]


def number(value: IndexLike | float, dtype: DType) -> Expr:
    """A size, or a number made of sizes, as a scalar of a type."""
    return cast(size_number(value), dtype) if isinstance(value, Index) else const(value, dtype)


def _simple(
    ctx: LoweringContext,
    fake: Any,
    kind: str,
    value: TensorValue,
    dims: Any,
    accumulate: DType,
    before: Callable[[Expr], Expr] | None = None,
    after: Callable[[Expr], Expr] | None = None,
) -> TensorValue:
    """One operand, one result: reduced in `accumulate`, then converted to the traced type."""
    result = ctx.template(fake)
    reduced = reduced_dims(dims, value.rank)

    def values(indices: Sequence[IndexLike]) -> tuple[Expr, ...]:
        element = value.at(indices)
        return (cast(before(element) if before else element, accumulate),)

    direct = after is None and accumulate is result.kernel_type
    target = result if direct else ctx.temporary(accumulate, result.device, result.size)
    (total,) = reduce(ctx, kind, value.size, reduced, values, (target,))
    if direct and result.view is not None:
        return result
    return ctx.lazy(result, after(total) if after else total)


def extent(value: TensorValue, dims: Sequence[int]) -> IndexLike:
    """Number of elements that one result is made of."""
    return product(value.size[d] for d in dims)


def sum_over(ctx: LoweringContext, fake: Any, value: TensorValue, dims: Sequence[int]) -> TensorValue:
    """The sum of a tensor over some dimensions, as the traced value `fake` has it."""
    return _simple(ctx, fake, "sum", value, dims, ctx.template(fake).kernel_type.compute)


@lowers("aten.sum.dim_IntList", "aten.sum.default", "aten.prod.dim_int", "aten.prod.default")
def sum_or_prod(
    ctx: LoweringContext, node: Any, value: TensorValue, dims: Any = None, *_: Any, **__: Any
) -> TensorValue:
    return _simple(ctx, node.meta["val"], ops.base_name(node.target), value, dims, _computed(ctx, node))


@lowers("aten.mean.dim", "aten.mean.default")
def mean(
    ctx: LoweringContext, node: Any, value: TensorValue, dims: Any = None, *_: Any, **__: Any
) -> TensorValue:
    kind = _computed(ctx, node)
    count = extent(value, reduced_dims(dims, value.rank))
    if count == 0:
        return ctx.lazy(node.meta["val"], const(math.nan, kind))
    return _simple(
        ctx,
        node.meta["val"],
        "sum",
        value,
        dims,
        kind,
        after=lambda total: make("div", total, number(count, kind)),
    )


def _computed(ctx: LoweringContext, node: Any) -> DType:
    return ctx.template(node.meta["val"]).kernel_type.compute


@lowers(
    *(f"aten.{name}.{overload}" for name in ("any", "all") for overload in ("default", "dim", "dims")),
    *(f"aten.{name}.default" for name in ("amax", "max", "amin", "min")),
)
def extreme(
    ctx: LoweringContext, node: Any, value: TensorValue, dims: Any = None, keepdim: bool = False
) -> TensorValue:
    kind = {"amax": "max", "amin": "min"}.get(name := ops.base_name(node.target), name)
    if value.dtype is DType.bool:
        kind = {"max": "any", "min": "all"}.get(kind, kind)
    if kind in ("any", "all"):
        return _simple(ctx, node.meta["val"], kind, value, dims, DType.bool, before=truth)
    return _simple(ctx, node.meta["val"], kind, value, dims, _computed(ctx, node))


@lowers("aten.argmax.default", "aten.argmin.default")
def arg_extreme(
    ctx: LoweringContext, node: Any, value: TensorValue, dim: int | None = None, keepdim: bool = False
) -> TensorValue:
    result = ctx.template(node.meta["val"])
    return _positions(ctx, ops.base_name(node.target), value, dim, None, result)[1]


@lowers("aten.max.dim", "aten.min.dim")
def extreme_and_position(
    ctx: LoweringContext, node: Any, value: TensorValue, dim: int, keepdim: bool = False
) -> tuple[TensorValue, TensorValue]:
    best, position = (ctx.template(f) for f in node.meta["val"])
    return _positions(ctx, f"arg{ops.base_name(node.target)}", value, dim, best, position)


def _positions(
    ctx: LoweringContext,
    kind: str,
    value: TensorValue,
    dim: int | None,
    extreme: TensorValue | None,
    position: TensorValue,
) -> tuple[TensorValue, TensorValue]:
    """The extreme along a dimension (or of everything) and where it is."""
    compute = DType.i32 if value.kernel_type is DType.bool else value.kernel_type.compute
    dims = reduced_dims(dim, value.rank)

    def values(indices: Sequence[IndexLike]) -> tuple[Expr, ...]:
        position: IndexLike = 0
        for d in dims:
            position = position * value.size[d] + indices[d]
        # values that half precision makes equal are found in eager mode's order
        held = ctx.operand(value, indices, compute, value.device, value.dtype)
        return held, index_value(position)

    best = extreme
    if extreme is not None and extreme.dtype is not compute:
        best = ctx.temporary(compute, extreme.device, extreme.size)
    parts = reduce(ctx, kind, value.size, dims, values, (best, position))
    if position.view is None:
        ctx.lazy(position, parts[1])
    if extreme is None:
        return position, position
    if extreme.view is None:
        ctx.lazy(extreme, parts[0])
    return extreme, position


def result_index(indices: Sequence[IndexLike], dims: Sequence[int], rank: int) -> list[IndexLike]:
    """The index of a reduced result that belongs to an index of the operand."""
    if rank == len(indices):
        return [0 if d in dims else p for d, p in enumerate(indices)]
    return [p for d, p in enumerate(indices) if d not in dims]


# Softmax and its like: three passes over a row, the last of them lazy.


@lowers("aten._softmax.default", "aten._log_softmax.default", passes=3)
def softmax(
    ctx: LoweringContext, node: Any, value: TensorValue, dim: int, half_to_float: bool
) -> TensorValue:
    kind = _computed(ctx, node)
    if value.dtype is None or not value.dtype.is_float:
        raise UnsupportedError(f"no kernel computes the softmax of {value.torch_dtype}")
    at = wrap(dim, value.rank)
    dims = (at,) if value.rank else ()
    row = tuple(1 if d in dims else n for d, n in enumerate(value.size))
    largest = ctx.temporary(kind, value.device, row)
    (top,) = reduce(ctx, "max", value.size, dims, lambda p: (cast(value.at(p), kind),), (largest,))
    largest.body = None if largest.view is not None else top

    def shifted(indices: Sequence[IndexLike]) -> Expr:
        return make("sub", cast(value.at(indices), kind), largest.at(result_index(indices, dims, value.rank)))

    sums = ctx.temporary(kind, value.device, row)
    (total,) = reduce(ctx, "sum", value.size, dims, lambda p: (make("exp", shifted(p)),), (sums,))
    axes = axes_of(value.size)
    if ops.base_name(node.target) == "_softmax":
        return ctx.lazy(node.meta["val"], make("div", make("exp", shifted(axes)), total))
    logarithm = make("log", total)
    info, order = ctx.target_info(value.device), memory_order(value.size, value.strides, ctx.sizes)
    outer = info.recomputed_points and order and order[-1] not in dims
    if value.rank and (outer or not info.licm):
        # one for each row, so that whoever reads the result computes none
        stored = ctx.temporary(logarithm.dtype, value.device, row)
        stored.body, stored.origins = logarithm, ctx.origins
        ctx.realize(stored, "one for each row")
        logarithm = stored.expand_to(axes)
    return ctx.lazy(node.meta["val"], make("sub", shifted(axes), logarithm))
