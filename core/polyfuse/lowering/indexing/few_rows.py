"""Rows added to a table of few rows: for each of these, a sum over all that is added, where it goes there.

On a wide device, additions to the same element wait for each other: a table of a few buckets or token types
gets thousands to each. All of what is added is read once for each row of the table instead, in a fixed order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from polyfuse.ir.expr import Expr, const, index_value
from polyfuse.ir.types import DType
from polyfuse.lowering.context import LoweringContext
from polyfuse.lowering.indexing.gather import position_at, wrapped
from polyfuse.lowering.reductions.reduction import reduce
from polyfuse.lowering.value import TensorValue, axes_of
from polyfuse.rewrite import cast, make, where
from polyfuse.symbolic import IndexLike, product

_ELEMENTS, _FOR_EACH = 8192, 32
"""Elements of a table up to which this is done, for each row of which so many must be added on average. On an
H100, an element that is read costs 0.7 ps, and an addition that waits for others 20 ns.
"""


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
