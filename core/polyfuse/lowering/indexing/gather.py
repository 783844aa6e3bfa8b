"""Reads at positions given by data: gather, advanced indexing, embedding."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.expr import Expr, bitcast, const, index_value, load, loads
from polyfuse.ir.types import DType
from polyfuse.lowering.context import LoweringContext
from polyfuse.lowering.indexing.conditions import all_of, less, masked
from polyfuse.lowering.indexing.error_texts import error_text_for
from polyfuse.lowering.indexing.index_checks import may_be_outside
from polyfuse.lowering.indexing.inlined_reads import read_at
from polyfuse.lowering.registry import lowers
from polyfuse.lowering.shapes.views import wrap
from polyfuse.lowering.value import TensorValue, axes_of
from polyfuse.rewrite import cast, make, where
from polyfuse.symbolic import IndexLike, axis, is_equal, is_less, is_nonnegative, product
from polyfuse.symbolic.index import as_atom

AnyIndex = IndexLike | Expr
"""A position in one dimension: an index, or a value computed from data (i64)."""


def known_index(position: AnyIndex) -> IndexLike | None:
    """The index that a position is, where it does not depend on data."""
    if not isinstance(position, Expr):
        return position
    return _counted(position)


@lru_cache(maxsize=1024)
def _counted(position: Expr) -> IndexLike | None:
    """The index that a value is if it is made of positions alone, such as a window's start and a position
    in it."""
    if position.op == "const":
        return int(position.value)
    if position.op == "index":
        return position.index
    if position.op not in ("add", "sub", "mul") or position.dtype is not DType.i64:
        return None
    one = _counted(position.args[0])
    other = _counted(position.args[1]) if one is not None else None
    if one is None or other is None:
        return None
    if position.op == "mul":
        return one * other if isinstance(one, int) or isinstance(other, int) else None
    return one + other if position.op == "add" else one - other


def _value(position: AnyIndex) -> Expr:
    return position if isinstance(position, Expr) else index_value(position)


def wrapped(position: AnyIndex, size: IndexLike) -> AnyIndex:
    """Negative positions counted from the end."""
    known = known_index(position)
    if known is not None:
        if is_nonnegative(known):
            return known
        if is_nonnegative(-1 - known):
            return known + size
    value = _value(position)
    negative = make("lt", value, const(0, DType.i64))
    return where(negative, make("add", value, index_value(size)), value)


def in_range(position: AnyIndex, size: IndexLike) -> Expr | None:
    """Whether a position exists; None where it certainly does."""
    known = known_index(position)
    if known is not None and is_nonnegative(known) and is_less(known, size):
        return None
    value = _value(position)
    return make("bitwise_and", make("ge", value, const(0, DType.i64)), make("lt", value, index_value(size)))


def clamped(position: AnyIndex, size: IndexLike) -> AnyIndex:
    """The nearest position that exists. Eager mode raises for others; here memory beyond the tensor is not
    touched."""
    if in_range(position, size) is None:
        return position
    return make("minimum", make("maximum", _value(position), const(0, DType.i64)), index_value(size - 1))


def address(
    positions: Sequence[AnyIndex], size: Sequence[IndexLike], stride: Sequence[IndexLike], offset: IndexLike
) -> tuple[IndexLike, tuple[Expr, ...]]:
    """The address of a position, and the values that it names ``@0``, ``@1``, ..."""
    index = offset
    indirect: list[Expr] = []
    for position, n, step in zip(positions, size, stride, strict=True):
        known = known_index(position)
        if known is None:
            assert isinstance(position, Expr)
            known = axis(f"@{len(indirect)}", n)
            indirect.append(position)
        index = index + known * step
    return index, tuple(indirect)


def fetch(
    ctx: LoweringContext, source: TensorValue, positions: Sequence[AnyIndex], count: IndexLike | None = None
) -> Expr:
    """The element of a value at positions that may depend on data, all of them in range.

    The value is stored, unless it is an expression that `count` readers had better compute where they are. If
    only data tell whether it has elements, nothing is read where it has none, so that no position is beyond
    it.
    """
    dtype = source.kernel_type
    if any(n == 0 for n in source.size):
        raise UnsupportedError("eager mode refuses indices into a tensor without elements")
    pairs = zip(positions, source.size, strict=True)
    some = all_of(*[less(0, n) for position, n in pairs if not _is_axis_of(position, n)])
    nothing = const(0, dtype.compute)
    if count is not None:
        known = [position if (at := known_index(position)) is None else at for position in positions]
        computed = read_at(ctx, source, known, count)
        if computed is not None:
            return masked(computed, some, nothing)
    view = ctx.realize(source, "read at indices given by data")
    index, indirect = address(positions, source.size, view.stride, view.offset)
    element = load(view.buffer, index, source.raw or dtype, indirect)
    if source.raw is not None:
        element = bitcast(element, dtype)
    return masked(cast(element, dtype.compute), some, nothing)


def _is_axis_of(position: AnyIndex, size: IndexLike) -> bool:
    """Whether a position runs over a dimension, so that it is nowhere if that is empty."""
    atom = None if isinstance(position, Expr) else as_atom(position)
    return atom is not None and atom.kind == "axis" and atom.args[0] == size


def position_at(ctx: LoweringContext, indices: TensorValue, axes: Sequence[IndexLike], device: str) -> Expr:
    """The i64 position that an index tensor holds at `axes`."""
    if indices.dtype is None or not indices.dtype.is_integer:
        raise UnsupportedError(
            f"a mask of type {indices.torch_dtype} selects a number of elements that only data tell"
        )
    return ctx.operand(indices, axes, DType.i64, device)


_SHORT_ROW = 32
"""Elements up to which reading the indices in a kernel of their own would cost more than a hundredth of
reading the rows."""


def check_index(
    ctx: LoweringContext,
    node: Any,
    indices: TensorValue,
    selected: TensorValue,
    dim: int,
    *,
    writes: bool = False,
    rows: Sequence[IndexLike] = (),
) -> None:
    """Let all of an index tensor be checked, which selects along the dimension `dim`: in the terms in which
    what `writes` or reads there limits it, so that a kernel that does both computes them once.

    `rows` are the sizes of what each index selects, where that follows the index tensor's own: short rows are
    checked in the loops over their elements, so that the indices are read once; for long ones, that costs
    nothing, and indices that are computed from nothing stored are not read at all."""
    if not ctx.checks.enabled or selected.dtype is None or 0 in indices.size:
        return
    error = error_text_for(node, selected.rank, dim)
    if error is None:
        return
    if indices.body is not None:
        ctx.store_if_better(indices, 2)
    position = position_at(ctx, indices, axes_of(indices.size), selected.device)
    short = product(rows)
    beside = bool(loads(position)) and isinstance(short, int) and 1 < short <= _SHORT_ROW
    axes = axes_of((*indices.size, *(rows if beside else ())))
    size = selected.size[dim] if selected.rank else 1
    if not may_be_outside(position, -size if error.wraps else 0, size):
        return
    counted = _value(wrapped(position, size) if error.wraps else position)
    wrong: Expr | None
    if writes or not is_less(0, size):  # nothing is nearest to an index where nothing exists
        inside = in_range(counted, size)
        wrong = None if inside is None else make("bitwise_not", inside)
    else:
        nearest = clamped(counted, size)
        wrong = make("ne", nearest, counted) if isinstance(nearest, Expr) else None
    if wrong is not None and not (wrong.op == "const" and not wrong.value):
        ctx.checks.add(ctx, wrong, position, axes, indices.rank, size, error, selected.device)


@lowers("aten.embedding.default", stores=(0,))
def embedding(
    ctx: LoweringContext, node: Any, weight: TensorValue, indices: TensorValue, *_: Any
) -> TensorValue:
    result = ctx.template(node.meta["val"])
    axes = axes_of(result.size)
    row = position_at(ctx, indices, axes[: indices.rank], result.device)
    check_index(ctx, node, indices, weight, 0, rows=weight.size[1:])
    return ctx.lazy(result, fetch(ctx, weight, [clamped(row, weight.size[0]), axes[indices.rank]]))


@lowers("aten.index_select.default", stores=(0,))
def index_select(
    ctx: LoweringContext, node: Any, value: TensorValue, dim: int, indices: TensorValue
) -> TensorValue:
    result = ctx.template(node.meta["val"])
    axes = axes_of(result.size)
    dim = wrap(dim, value.rank)
    if value.rank == 0 and not is_equal(product(indices.size), 1):
        raise UnsupportedError("eager mode refuses to select from one element but once")
    check_index(ctx, node, indices, value, dim, rows=value.size[1:] if dim == 0 and indices.rank else ())
    if value.rank == 0:
        return ctx.lazy(result, value.at(()))
    row = position_at(ctx, indices, axes[dim : dim + 1] if indices.rank else (), result.device)
    positions: list[AnyIndex] = list(axes)
    positions[dim] = clamped(row, value.size[dim])
    return ctx.lazy(result, fetch(ctx, value, positions))


@lowers("aten.gather.default")
def gather(
    ctx: LoweringContext,
    node: Any,
    value: TensorValue,
    dim: int,
    indices: TensorValue,
    sparse_grad: bool = False,
) -> TensorValue:
    result = ctx.template(node.meta["val"])
    axes = axes_of(result.size)
    dim = wrap(dim, value.rank)
    check_index(ctx, node, indices, value, dim)
    if value.rank == 0:
        return ctx.lazy(result, value.at(()))
    positions: list[AnyIndex] = list(axes)
    # an index of no dimensions counts as one of one
    positions[dim] = clamped(
        position_at(ctx, indices, axes[len(axes) - indices.rank :], result.device), value.size[dim]
    )
    return ctx.lazy(result, fetch(ctx, value, positions[: value.rank], product(result.size)))


def advanced_positions(
    ctx: LoweringContext,
    size: Sequence[IndexLike],
    indices: Sequence[TensorValue | None],
    axes: Sequence[IndexLike],
    device: str,
) -> list[AnyIndex]:
    """Where the element at `axes` of ``x[indices]`` lies in `x`, negative positions wrapped, none checked.

    The dimensions of the broadcast index stand where the indexed dimensions stood if those are neighbours,
    else in front.
    """
    given = [d for d, i in enumerate(indices) if i is not None]
    rank = max(i.rank for i in indices if i is not None)
    start = given[0] if given[-1] - given[0] + 1 == len(given) else 0
    broadcast = axes[start : start + rank]
    rest = iter([*axes[:start], *axes[start + rank :]])
    positions: list[AnyIndex] = []
    for d, n in enumerate(size):
        index = indices[d] if d < len(indices) else None
        if index is None:
            positions.append(next(rest))
        else:
            positions.append(wrapped(position_at(ctx, index, broadcast, device), n))
    return positions


def check_indices(
    ctx: LoweringContext,
    node: Any,
    indices: Sequence[TensorValue | None],
    selected: TensorValue,
    writes: bool = False,
) -> None:
    """Let all of several index tensors be checked, one for each dimension."""
    given = [i for i in indices if i is not None]
    alike = (
        indices[0] is not None and len(given) == len(indices) and all(i.size == given[0].size for i in given)
    )
    rows = selected.size[len(indices) :] if alike else ()
    for dim, index in enumerate(indices):
        if index is not None and index.dtype is not None and index.dtype.is_integer:
            check_index(ctx, node, index, selected, dim, writes=writes, rows=rows)


@lowers("aten.index.Tensor")
def index_tensor(
    ctx: LoweringContext, node: Any, value: TensorValue, indices: Sequence[TensorValue | None]
) -> TensorValue:
    result = ctx.template(node.meta["val"])
    check_indices(ctx, node, indices, value)
    axes = axes_of(result.size)
    positions = advanced_positions(ctx, value.size, indices, axes, result.device)
    checked = [
        p if not isinstance(p, Expr) else clamped(p, n) for p, n in zip(positions, value.size, strict=True)
    ]
    return ctx.lazy(result, fetch(ctx, value, checked, product(result.size)))
