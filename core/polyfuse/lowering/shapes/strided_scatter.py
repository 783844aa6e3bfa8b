"""Copies of a tensor with other elements in a part of it, or in the tensor itself where the old content is
not needed any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.expr import Expr, const, index_value
from polyfuse.ir.nodes import View
from polyfuse.ir.types import DType
from polyfuse.lowering.calls.overwriting import free_storage
from polyfuse.lowering.calls.parts import are_one, selected, slice_of
from polyfuse.lowering.context import LoweringContext
from polyfuse.lowering.indexing.conditions import all_of, at_least, less, masked
from polyfuse.lowering.registry import lowers
from polyfuse.lowering.shapes.layout import is_dense
from polyfuse.lowering.shapes.views import slice_start, wrap
from polyfuse.lowering.value import TensorValue, axes_of
from polyfuse.rewrite import cast, make
from polyfuse.symbolic import IndexLike, is_equal, is_less, is_nonnegative, storage_size


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


@lowers("aten.slice_scatter.default")
def slice_scatter(
    ctx: LoweringContext,
    node: Any,
    base: TensorValue,
    source: TensorValue,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: Any = 1,
) -> TensorValue:
    """`source` at ``start + step * i`` along a dimension. Its size says where that ends."""
    dim = wrap(dim, base.rank)
    begin, count = slice_start(base.size[dim], start), source.size[dim]
    if begin is None:
        raise UnsupportedError("whether a slice counts from the end is known at run time alone")
    size, length = base.size[dim], count
    if isinstance(size, int) and all(n is None or isinstance(n, int) for n in (start, end, step)):
        length = len(range(size)[start:end:step])
    _require_shape(source, (*base.size[:dim], length, *base.size[dim + 1 :]))
    part = None if base.view is None else slice_of(base.view, dim, begin, step, count)
    written = _in_part(ctx, node, base, source, part)
    if written is not None:
        return written
    axes = axes_of(base.size)
    away = axes[dim] - begin
    tests = [at_least(away, 0), less(away, count * step)]
    if step != 1:
        tests.append(make("eq", index_value(away % step), const(0, DType.i64)))
    found = [away // step if d == dim else a for d, a in enumerate(axes)]
    return _chosen(ctx, node, base, source, found, all_of(*tests))


@lowers("aten.select_scatter.default")
def select_scatter(
    ctx: LoweringContext, node: Any, base: TensorValue, source: TensorValue, dim: int, index: Any
) -> TensorValue:
    """`source` at one index of a dimension."""
    dim = wrap(dim, base.rank)
    begin = slice_start(base.size[dim], index)
    if begin is None:
        raise UnsupportedError("whether an index counts from the end is known at run time alone")
    if not is_less(begin, base.size[dim]) and isinstance(begin, int) and isinstance(base.size[dim], int):
        raise UnsupportedError("eager mode refuses an index that is out of range")
    _require_shape(source, (*base.size[:dim], *base.size[dim + 1 :]))
    part = None if base.view is None else selected(base.view, dim, begin)
    written = _in_part(ctx, node, base, source, part)
    if written is not None:
        return written
    axes = axes_of(base.size)
    away = axes[dim] - begin
    return _chosen(
        ctx, node, base, source, [*axes[:dim], *axes[dim + 1 :]], all_of(at_least(away, 0), less(away, 1))
    )


def _require_shape(source: TensorValue, shape: Sequence[IndexLike]) -> None:
    if len(source.size) != len(shape) or not all(map(is_equal, source.size, shape)):
        raise UnsupportedError("eager mode refuses to put a tensor of another shape there")


def _chosen(
    ctx: LoweringContext,
    node: Any,
    base: TensorValue,
    source: TensorValue,
    indices: Sequence[IndexLike],
    here: Expr,
) -> TensorValue:
    """The element of `source` at `indices` where `here` holds, and that of `base` elsewhere."""
    result = ctx.template(node.meta["val"])
    kind = result.kernel_type.compute
    own = [0 if n == 1 else index for n, index in zip(source.size, indices, strict=True)]
    value = cast(ctx.local(source, result.device).at(own), kind)
    return ctx.lazy(result, masked(value, here, cast(base.at(axes_of(base.size)), kind)))


def _in_part(
    ctx: LoweringContext, node: Any, base: TensorValue, source: TensorValue, part: View | None
) -> TensorValue | None:
    """The result where `base` is stored, with `source` in a part of it; None if the old content is needed, or
    the result is better computed by who reads it."""
    if part is None or base.view is None or base.dtype is None or 0 in source.size:
        return None
    result = ctx.template(node.meta["val"])
    if source.dtype is base.dtype and source.raw is None and base.raw is None:
        if are_one(source.view, part):  # it was computed there
            result.set_view(base.view)
            return result
    if ctx.buffers[base.view.buffer].kind == "temp" and not ctx.readers[node].stored:
        return None
    target = free_storage(ctx, node, base, result, base.dtype)
    if target is None:
        return None
    ctx.before_write(target.buffer)
    value = ctx.temporary(base.dtype, base.device, part.size)
    axes = axes_of(part.size)
    element = ctx.local(source, base.device).at(
        [0 if n == 1 else a for n, a in zip(source.size, axes, strict=True)]
    )
    value.body, value.origins = cast(element, base.dtype.compute), ctx.origins
    ctx.write(value, part)
    result.set_view(target)
    return result
