"""Writes at positions given by data: a `Scatter` into the operand, or into a copy where that is still
needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.expr import Expr, const, index_value, loads
from polyfuse.ir.nodes import Scatter
from polyfuse.ir.ops import identity
from polyfuse.ir.types import DType
from polyfuse.lowering.calls.overwriting import free_storage
from polyfuse.lowering.context import LoweringContext
from polyfuse.lowering.elements.pointwise import truth
from polyfuse.lowering.indexing.conditions import all_of
from polyfuse.lowering.indexing.gather import (
    AnyIndex,
    address,
    advanced_positions,
    check_index,
    check_indices,
    in_range,
    position_at,
    wrapped,
)
from polyfuse.lowering.reductions.reduction import reduce
from polyfuse.lowering.registry import lowers
from polyfuse.lowering.shapes.views import wrap
from polyfuse.lowering.value import TensorValue, axes_of
from polyfuse.rewrite import cast, make, where
from polyfuse.symbolic import Index, IndexLike, is_equal, product
from polyfuse.torch_compat import ops

_COMBINE = {
    "sum": "add",
    "add": "add",
    "prod": "mul",
    "multiply": "mul",
    "amax": "max",
    "amin": "min",
    "mean": "add",
}

_ELEMENTS, _FOR_EACH = 8192, 32
"""Elements of a table up to which this is done, for each row of which so many must be added on average. On an
H100, an element that is read costs 0.7 ps, and an addition that waits for others 20 ns.
"""


def copy_for_writing(
    ctx: LoweringContext, like: TensorValue, body: Expr, dtype: DType, reason: str
) -> TensorValue:
    """A stored value of its own with the elements `body`, to be scattered into."""
    if dtype is like.dtype:
        target = TensorValue(like.dtype, like.torch_dtype, like.device, like.size, like.stride, like.offset)
    else:
        target = ctx.temporary(dtype, like.device, like.size)
    target.body = cast(body, dtype.compute)
    target.origins = ctx.origins
    ctx.realize(target, reason)
    return target


def scatter_into(
    ctx: LoweringContext,
    target: TensorValue,
    axes: Sequence[IndexLike],
    positions: Sequence[AnyIndex],
    value: Expr,
    mode: str,
) -> None:
    """``target[positions] mode= value`` for all `axes`; positions that do not exist are passed over."""
    view = target.view
    assert view is not None
    tests = [t for p, n in zip(positions, target.size, strict=True) if (t := in_range(p, n)) is not None]
    mask = all_of(*tests) if tests else None
    index, indirect = address(positions, target.size, view.stride, view.offset)
    loops = tuple(a for a in axes if isinstance(a, Index))
    element = ctx.buffers[view.buffer].dtype
    assert element is not None
    ctx.emit(
        Scatter(
            ctx.fresh("op"),
            loops,
            (),
            view.buffer,
            index,
            indirect,
            cast(value, element),
            mode,
            mask,
            origins=ctx.origins,
        )
    )


def stores_nowhere(name: str, args: Sequence[Any]) -> bool:
    """Whether an operator puts elements at positions of a tensor that has none, which eager mode refuses."""
    if not name.startswith(("aten.scatter", "aten.index_put")) or 0 not in args[0].size:
        return False
    positions = args[1] if name.startswith("aten.index_put") else (args[2],)
    return any(p is not None and 0 not in p.size for p in positions)


def accumulation_type(dtype: DType, mode: str) -> DType:
    """The type that scattered values are combined in: that of the operand, but single precision for half."""
    if mode == "set":
        return dtype
    if dtype is DType.bool:
        raise UnsupportedError(f"no kernel combines truth values by {mode}")
    return dtype.compute


_LARGE = 8
"""A target so many times as large as what is put into it outlives what that is computed from."""


def store_rows(ctx: LoweringContext, rows: Any, target: TensorValue) -> None:
    """Store a computed value that goes into a much larger target, before that exists.

    Fused, all that the value is computed from would stay alive beside the target. The scheduler may still
    fuse the two.
    """
    if not isinstance(rows, TensorValue) or rows.body is None or rows.view is not None:
        return
    count, extent = product(rows.size), product(target.size)
    if not isinstance(count, int) or not isinstance(extent, int) or extent < _LARGE * count:
        return
    sources = {load.buffer for load in loads(rows.body)}
    if len(sources) > 1:
        ctx.realize(rows, "goes into a much larger tensor")


@dataclass(frozen=True)
class _Target:
    """What is scattered into, and what the operator returns once that is done."""

    result: TensorValue
    target: TensorValue
    kind: DType


def _target(ctx: LoweringContext, node: Any, base: TensorValue, mode: str) -> _Target:
    """The operand itself where its content is not needed any more, otherwise a copy. Taken before the other
    operands are read: those that are computed from this one are stored first."""
    result = ctx.template(node.meta["val"])
    kind = accumulation_type(result.kernel_type, mode)
    if _depends_on_the_run(ctx, result.device, kind, mode):
        raise UnsupportedError(
            "the order of stores to one index varies on this device, which the option deterministic excludes"
        )
    view = free_storage(ctx, node, base, result, kind)
    if view is None:
        body = base.at(axes_of(result.size))
        return _Target(result, copy_for_writing(ctx, result, body, kind, "scattered into"), kind)
    ctx.before_write(view.buffer)
    target = TensorValue(kind, kind.torch, result.device, result.size, view.stride)
    target.set_view(view)
    return _Target(result, target, kind)


def _depends_on_the_run(ctx: LoweringContext, device: str, kind: DType, mode: str) -> bool:
    """Whether results have to be the same in every run, but would not be on so wide a device, where the order
    of stores to one position is any."""
    if ctx.settings.deterministic != "on" or not ctx.target_info(device).blocks:
        return False
    return mode == "set" or (kind.is_float and mode in ("add", "mul"))


def _converted(ctx: LoweringContext, into: _Target) -> TensorValue:
    """What the operator returns, once the target is written."""
    result, target = into.result, into.target
    if target.dtype is result.dtype:
        assert target.view is not None
        result.set_view(target.view)
        return result
    return ctx.lazy(result, target.at(axes_of(result.size)))


# index_put


@lowers("aten.index_put.default", "aten._unsafe_index_put.default", "aten._index_put_impl.default", stores=())
def index_put(
    ctx: LoweringContext,
    node: Any,
    base: TensorValue,
    indices: Sequence[TensorValue | None],
    values: TensorValue,
    accumulate: bool = False,
    unsafe: bool = False,
) -> TensorValue:
    device = base.device
    if any(i is not None and i.dtype is DType.bool for i in indices):
        return _masked_put(ctx, node, base, indices, values, accumulate)
    given = [i for i in indices if i is not None]
    mode = "add" if accumulate else "set"
    if not unsafe:
        check_indices(ctx, node, indices, base, writes=True)
    store_rows(ctx, values, base)
    shape = _put_shape(base.size, indices, given)
    if values.dtype is not base.dtype or _never_broadcasts(values.size, shape):
        raise UnsupportedError("eager mode refuses values of another type or shape")
    summed = sums_of_few_rows(ctx, node, base, indices, values, shape) if accumulate else None
    if summed is not None:
        return summed
    into = _target(ctx, node, base, mode)
    axes = axes_of(shape)
    positions = advanced_positions(ctx, base.size, indices, axes, device)
    value = ctx.operand(values, axes, into.kind.compute, device)
    scatter_into(ctx, into.target, axes, positions, value, mode)
    return _converted(ctx, into)


def _never_broadcasts(size: Sequence[IndexLike], shape: Sequence[IndexLike]) -> bool:
    """Whether a size that is known differs from that of the indices, and is not 1."""
    pairs = zip(reversed(size), reversed(shape), strict=False)
    known = ((n, m) for n, m in pairs if isinstance(n, int) and isinstance(m, int))
    return len(size) > len(shape) or any(n not in (1, m) for n, m in known)


def _put_shape(
    size: Sequence[IndexLike], indices: Sequence[TensorValue | None], given: Sequence[TensorValue]
) -> tuple[IndexLike, ...]:
    """The shape of ``x[indices]``."""
    rank = max(i.rank for i in given)
    broadcast: list[IndexLike] = [1] * rank
    for index in given:
        for d, n in enumerate(index.size):
            if n != 1:
                broadcast[rank - index.rank + d] = n
    where_ = [d for d, i in enumerate(indices) if i is not None]
    rest = [n for d, n in enumerate(size) if d >= len(indices) or indices[d] is None]
    start = where_[0] if where_[-1] - where_[0] + 1 == len(where_) else 0
    return (*rest[:start], *broadcast, *rest[start:])


def _masked_put(
    ctx: LoweringContext,
    node: Any,
    base: TensorValue,
    indices: Sequence[TensorValue | None],
    values: TensorValue,
    accumulate: bool,
) -> TensorValue:
    """One number put where a mask is true is a choice between two values."""
    lead = [d for d, i in enumerate(indices) if i is not None]
    mask = indices[lead[0]]
    if len(lead) != 1 or mask is None or not is_equal(product(values.size), 1) or base.dtype is None:
        raise UnsupportedError("a mask selects a number of elements that only data tell")
    axes = axes_of(base.size)
    start = lead[0]
    test = truth(ctx.operand(mask, axes[start : start + mask.rank], DType.bool, base.device))
    kind = base.dtype.compute
    number = cast(ctx.local(values, base.device).at([0] * values.rank), kind)
    old = base.at(axes)
    return ctx.lazy(node.meta["val"], where(test, make("add", old, number) if accumulate else number, old))


# scatter along one dimension


def _along(
    ctx: LoweringContext, base: TensorValue, dim: int, indices: TensorValue
) -> tuple[tuple[IndexLike, ...], list[AnyIndex]]:
    """The iteration space of a scatter along `dim`, and where in `base` each point goes."""
    axes = axes_of(indices.size)
    if base.rank == 0:
        return axes, []
    positions: list[AnyIndex] = list(axes)
    if not positions:
        positions = [0] * base.rank
    positions[wrap(dim, base.rank)] = position_at(ctx, indices, axes, base.device)
    return axes, positions


@lowers(
    *(f"aten.scatter.{name}" for name in ("src", "value", "reduce", "value_reduce")),
    "aten.scatter_add.default",
)
def scatter(
    ctx: LoweringContext,
    node: Any,
    base: TensorValue,
    dim: int,
    indices: TensorValue,
    source: Any,
    *,
    reduce: str = "",
) -> TensorValue:
    if ops.base_name(node.target) == "scatter_add":
        reduce = "add"
    return scatter_reduce(ctx, node, base, dim, indices, source, reduce)


def _source(ctx: LoweringContext, source: Any, axes: Sequence[IndexLike], kind: DType, device: str) -> Expr:
    """The source's element at a point: it may be larger than the index, and never broadcasts."""
    if not isinstance(source, TensorValue):
        return ctx.operand(source, axes, kind, device)
    local = ctx.local(source, device)
    return cast(local.at(axes if local.rank == len(axes) else [0] * local.rank), kind)


@lowers("aten.scatter_reduce.two")
def scatter_reduce(
    ctx: LoweringContext,
    node: Any,
    base: TensorValue,
    dim: int,
    indices: TensorValue,
    source: Any,
    reduce: str,
    *,
    include_self: bool = True,
) -> TensorValue:
    if 0 in indices.size:  # which may have any number of dimensions then
        return ctx.lazy(node.meta["val"], base.at(axes_of(base.size)))
    mode = _COMBINE[reduce] if reduce else "set"
    check_index(ctx, node, indices, base, wrap(dim, base.rank), writes=True)
    store_rows(ctx, source, base)
    into = _target(ctx, node, base, mode)
    result, target, kind = into.result, into.target, into.kind
    axes, positions = _along(ctx, base, dim, indices)
    # all that may be refused comes before the operand is written to
    value = _source(ctx, source, axes, kind.compute, base.device)
    if not include_self:
        scatter_into(ctx, target, axes, positions, neutral(mode, kind.compute), "set")
    scatter_into(ctx, target, axes, positions, value, mode)
    if reduce != "mean":
        return _converted(ctx, into)
    one = const(1, kind.compute)
    counts = copy_for_writing(
        ctx, result, const(int(include_self), kind.compute), kind, "counts what is scattered"
    )
    scatter_into(ctx, counts, axes, positions, one, "add")
    own = axes_of(result.size)
    count = make("maximum", counts.at(own), one)
    op = "div" if kind.compute.is_float else "floor_div"
    return ctx.lazy(result, make(op, target.at(own), count))


def neutral(mode: str, dtype: DType) -> Expr:
    """The value that combining leaves everything else unchanged."""
    return const(identity({"add": "sum", "mul": "prod"}.get(mode, mode), dtype), dtype)


def sums_of_few_rows(
    ctx: LoweringContext,
    node: Any,
    base: TensorValue,
    indices: Sequence[TensorValue | None],
    values: TensorValue,
    shape: Sequence[IndexLike],
) -> TensorValue | None:
    """`base` with `values`, broadcast to `shape`, added at rows given by the only index; None where additions
    to memory are the better way.

    On a wide device, additions to the same element wait for each other: a table of a few buckets or token
    types gets thousands to each. All of what is added is read once for each row of the table instead.
    """
    index = indices[0]
    if index is None or any(i is not None for i in indices[1:]) or not ctx.target_info(base.device).blocks:
        return None
    result = ctx.template(node.meta["val"])
    kind = result.kernel_type.compute
    table = product(base.size)
    if kind is DType.bool or not isinstance(table, int) or not 0 < table <= _ELEMENTS:
        return None
    if ctx.sizes.hint(product(index.size)) < _FOR_EACH * ctx.sizes.hint(base.size[0]):
        return None
    ctx.realize(values, "is read for each row of a table")

    def operands(at: Sequence[IndexLike]) -> tuple[Expr, ...]:
        row, axes = at[0], at[1:]
        target = wrapped(position_at(ctx, index, axes[: index.rank], base.device), base.size[0])
        assert isinstance(target, Expr)
        value = ctx.operand(values, axes, kind, base.device)
        return (where(make("eq", target, index_value(row)), value, const(0, kind)),)

    total = ctx.temporary(kind, base.device, base.size)
    dims = range(1, 1 + index.rank)
    (summed,) = reduce(ctx, "sum", (base.size[0], *shape), tuple(dims), operands, (total,))
    return ctx.lazy(result, make("add", cast(base.at(axes_of(base.size)), kind), summed))
