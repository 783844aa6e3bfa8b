"""`as_strided_scatter`: a copy of a tensor with other elements at given strides of its memory."""

from __future__ import annotations

from typing import Any

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.expr import const, index_value
from polyfuse.ir.types import DType
from polyfuse.lowering.context import LoweringContext
from polyfuse.lowering.indexing.conditions import all_of, at_least, less, masked
from polyfuse.lowering.registry import lowers
from polyfuse.lowering.shapes.layout import is_dense
from polyfuse.lowering.value import TensorValue, axes_of
from polyfuse.rewrite import make
from polyfuse.symbolic import IndexLike, is_nonnegative, storage_size


@lowers("aten.as_strided_scatter.default")
def as_strided_scatter(
    ctx: LoweringContext,
    node: Any,
    base: TensorValue,
    source: TensorValue,
    size: Any,
    stride: Any,
    storage_offset: Any = None,
) -> TensorValue:
    """Where strides do not overlap, the coordinates of an element are the digits of its offset in memory, and
    decide whether, and where, it is in the source.
    """
    result = ctx.template(node.meta["val"])
    if result.dtype is None or 0 in source.size:
        raise UnsupportedError("no kernel writes through strides into what has no elements")
    if not is_dense(result.size, result.stride, ctx.sizes) or result.offset != 0:
        raise UnsupportedError("no kernel writes through strides into a tensor with gaps")
    axes = axes_of(result.size)
    offset: IndexLike = 0
    if storage_offset is not None:  # which counts from the beginning of the memory in which `base` is a part
        offset = ctx.sizes.index(node.args[0].meta["val"].storage_offset()) - storage_offset
    for p, step in zip(axes, result.stride, strict=True):
        offset = offset + p * step
    tests = [at_least(offset, 0)]
    found: list[IndexLike] = [0] * source.rank
    wide = [d for d, n in enumerate(size) if n != 1]
    inner = sorted(wide, key=lambda d: -ctx.sizes.hint(stride[d]))
    for position, d in enumerate(inner):
        rest = inner[position + 1 :]
        within = storage_size([size[k] for k in rest], [stride[k] for k in rest])
        if not is_nonnegative(stride[d] - within) or stride[d] == 0:
            raise UnsupportedError("no kernel writes through strides that overlap")
        found[d], offset = offset // stride[d], offset % stride[d]
        tests.append(less(found[d], size[d]))
    if offset != 0:
        tests.append(make("eq", index_value(offset), const(0, DType.i64)))
    kind, here = result.kernel_type.compute, all_of(*tests)
    value = ctx.operand(source, found, kind, result.device)
    return ctx.lazy(result, masked(value, here, base.at(axes)))
