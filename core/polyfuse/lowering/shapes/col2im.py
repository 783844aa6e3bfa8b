"""Blocks of an image put together again: the sum over all blocks that an element is in."""

from __future__ import annotations

from itertools import product as pairs
from typing import Any

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.expr import Expr, const
from polyfuse.lowering.context import LoweringContext
from polyfuse.lowering.indexing.conditions import all_of, at_least, less, masked
from polyfuse.lowering.registry import lowers
from polyfuse.lowering.shapes.windows import added
from polyfuse.lowering.value import TensorValue, axes_of
from polyfuse.symbolic import IndexLike

MOST_TERMS = 64
"""Blocks over one element that are written out."""


@lowers("aten.col2im.default", stores=(0,))
def col2im(
    ctx: LoweringContext,
    node: Any,
    value: TensorValue,
    output_size: Any,
    kernel: Any,
    dilation: Any,
    padding: Any,
    stride: Any,
) -> TensorValue:
    result = ctx.template(node.meta["val"])
    options = (*kernel, *dilation, *padding, *stride)
    if not all(isinstance(n, int) for n in options):
        raise UnsupportedError("no kernel sums blocks of a size that varies")
    axes = axes_of(result.size)
    sides = []
    blocks = []
    for d in (0, 1):
        size = result.size[result.rank - 2 + d]
        blocks.append((size + 2 * padding[d] - dilation[d] * (kernel[d] - 1) - 1) // stride[d] + 1)
        sides.append(_sources(axes[result.rank - 2 + d] + padding[d], kernel[d], dilation[d], stride[d]))
    if len(sides[0]) * len(sides[1]) > MOST_TERMS:
        raise UnsupportedError("no kernel sums heavily overlapping blocks")
    zero = const(0, result.kernel_type.compute)

    def term(i: IndexLike, y: IndexLike, j: IndexLike, x: IndexLike) -> Expr:
        tests = [less(i, kernel[0]), at_least(y, 0), less(y, blocks[0])]
        tests += [less(j, kernel[1]), at_least(x, 0), less(x, blocks[1])]
        row = (axes[result.rank - 3] * kernel[0] + i) * kernel[1] + j
        return masked(value.at([*axes[: result.rank - 3], row, y * blocks[1] + x]), all_of(*tests), zero)

    return ctx.lazy(result, added(term(*first, *second) for first, second in pairs(*sides)))


def _sources(at: IndexLike, kernel: int, dilation: int, stride: int) -> list[tuple[IndexLike, IndexLike]]:
    """(position in the block, block) of every block that may be over position `at` of the padded image."""
    if stride == 1:
        return [(i, at - i * dilation) for i in range(kernel)]
    if dilation != 1:
        raise UnsupportedError("no kernel sums blocks with gaps and steps")
    return [(at % stride + back * stride, at // stride - back) for back in range(-(-kernel // stride))]
