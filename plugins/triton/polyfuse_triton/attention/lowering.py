"""Attention with few queries over many keys, in place of the library's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.expr import Expr, apply, const
from polyfuse.ir.nodes import ExternCall, View
from polyfuse.ir.types import DType
from polyfuse.plugin import Lowering, LoweringContext, TensorValue
from polyfuse.symbolic import IndexLike
from polyfuse_triton.attention.kernel import few_queries_source
from polyfuse_triton.attention.problem import FewQueries, Tiles
from polyfuse_triton.attention.tiles import is_faster, tiles_of
from polyfuse_triton.target import first_target
from polyfuse_triton.template import triton_template

__all__ = ["LOWERINGS", "with_bias", "without_bias"]

_TYPES = (DType.bf16, DType.f16)
_BIAS_TYPES = (*_TYPES, DType.f32)


def with_bias(
    ctx: LoweringContext,
    node: Any,
    query: TensorValue,
    key: TensorValue,
    value: TensorValue,
    bias: TensorValue | None,
    sums: Any,
    dropout: Any = 0.0,
    causal: Any = False,
    *debug: Any,
    scale: Any = None,
) -> tuple[TensorValue | None, ...]:
    """The operators that take what is added to scores as an argument."""
    if sums or any(debug):
        raise UnsupportedError("only the library gives sums of exponentials")
    return _attended(ctx, node, (query, key, value, bias), dropout, causal, scale)


def without_bias(
    ctx: LoweringContext,
    node: Any,
    query: TensorValue,
    key: TensorValue,
    value: TensorValue,
    dropout: Any = 0.0,
    causal: Any = False,
    *debug: Any,
    attn_mask: TensorValue | None = None,
    scale: Any = None,
) -> tuple[TensorValue | None, ...]:
    """The operators that take it by name, or not at all."""
    if any(debug):
        raise UnsupportedError("only the library gives what it drew")
    return _attended(ctx, node, (query, key, value, attn_mask), dropout, causal, scale)


LOWERINGS: Mapping[str, Lowering] = {
    "aten._scaled_dot_product_cudnn_attention.default": Lowering(with_bias, library=True),
    "aten._scaled_dot_product_efficient_attention.default": Lowering(with_bias, library=True),
    "aten._scaled_dot_product_flash_attention.default": Lowering(without_bias, library=True),
}


def _attended(
    ctx: LoweringContext,
    node: Any,
    operands: tuple[TensorValue, TensorValue, TensorValue, TensorValue | None],
    dropout: Any,
    causal: Any,
    scale: Any,
) -> tuple[TensorValue | None, ...]:
    if dropout or causal or ctx.settings.numerics != "fast":
        raise UnsupportedError("attention with dropout, or causal by position, is computed by the library")
    if any(user.args[1] != 0 for user in node.users):
        raise UnsupportedError("only the library gives sums of exponentials")
    if str(ctx.settings.plugin_option("triton", "attention", "") or "0") in ("0", "False", "false"):
        raise UnsupportedError("attention is the library's unless the option `triton.attention` is set")
    call = _problem(operands, scale)
    target = first_target(ctx.settings)
    if not is_faster(call, target):
        raise UnsupportedError("attention with many queries is computed by the library")
    given = [v for v in operands if v is not None]
    views = [ctx.realize(v) for v in given]
    steps = [_numbers(view.stride) for view in views]
    if any(step[3] != 1 for step in steps[:3]):
        raise UnsupportedError("queries, keys and values that are no lines in memory are read by the library")
    call = replace(call, query=steps[0], key=steps[1], value=steps[2])
    if len(given) > 3:
        # what has one element along a dimension is the same for all
        spread = zip(_numbers(given[3].size), steps[3], strict=True)
        call = replace(call, bias=tuple(step if size > 1 else 0 for size, step in spread))
    fake = node.meta["val"][0]
    nothing = (None,) * (len(node.meta["val"]) - 1)
    tiles = tiles_of(call, target)
    if tiles.parts == 1:
        result = ctx.stored(fake)
        call = replace(call, out=_numbers(ctx.realize(result).stride))
        _emit(ctx, call, tiles, views, (result,))
        return result, *nothing
    sums, facts = (
        ctx.stored(
            ctx.temporary(DType.f32, operands[0].device, (tiles.parts, *_numbers(operands[0].size)[:3], n))
        )
        for n in (call.values, 2)
    )
    _emit(ctx, call, tiles, views, (sums, facts))
    result = ctx.template(fake)
    result = ctx.lazy(fake, _joined(ctx.axes(result), tiles.parts, sums, facts))
    ctx.realize(result, "parts are joined once")
    return result, *nothing


def _problem(
    operands: tuple[TensorValue, TensorValue, TensorValue, TensorValue | None], scale: Any
) -> FewQueries:
    """The call, whose strides are not known yet."""
    query, key, value, bias = operands
    given = [v for v in operands if v is not None]
    if any(v.rank != 4 for v in given) or query.dtype not in _TYPES:
        raise UnsupportedError(f"attention on {query.torch_dtype} is computed by the library")
    if not query.dtype is key.dtype is value.dtype or (bias is not None and bias.dtype not in _BIAS_TYPES):
        raise UnsupportedError("attention on several types is computed by the library")
    (batch, heads, queries, depth), keys, values, *more = (_numbers(v.size) for v in given)
    if keys[:3] != values[:3] or keys[0] != batch or keys[3] != depth or not keys[1] or heads % keys[1]:
        raise UnsupportedError("keys and values that are shared by batches are read by the library")
    if any(n not in (1, m) for size in more for n, m in zip(size, (batch, heads, queries), strict=False)):
        raise UnsupportedError("a mask of another size is read by the library")
    if min(batch, queries, keys[2], depth, values[3]) < 1 or (more and more[0][3] != keys[2]):
        raise UnsupportedError("attention over nothing is computed by the library")
    return FewQueries(
        batch=batch,
        heads=heads,
        queries=queries,
        keys=keys[2],
        key_heads=keys[1],
        depth=depth,
        values=values[3],
        dtype=query.dtype,
        scale=1 / math.sqrt(depth) if scale is None else float(scale),
        query=(),
        key=(),
        value=(),
        out=(),
        bias_dtype=None if bias is None else bias.dtype,
    )


def _numbers(sizes: Sequence[IndexLike]) -> tuple[int, ...]:
    """Sizes or strides that are known."""
    found = tuple(n for n in sizes if isinstance(n, int))
    if len(found) != len(sizes):
        raise UnsupportedError(
            "attention of sizes that are known only at run time is computed by the library"
        )
    return found


def _emit(
    ctx: LoweringContext,
    call: FewQueries,
    tiles: Tiles,
    views: Sequence[View],
    results: Sequence[TensorValue],
) -> None:
    """The call of the kernel in the graph."""
    kernel = triton_template(
        "few_queries", lambda aligned: few_queries_source(call, tiles, aligned), ctx.settings
    )
    written = [ctx.realize(result) for result in results]
    outputs = tuple(view.buffer for view in written)
    key = ctx.add_object("few_queries_", kernel)
    ctx.emit(ExternCall(ctx.fresh("call"), key, (*views, *written), (), outputs, "into"))


def _joined(axes: Sequence[IndexLike], parts: int, sums: TensorValue, facts: TensorValue) -> Expr:
    """An element of the result: the sums of all parts, weighed by what their greatest scores are to the
    greatest of all.
    """
    *row, column = axes
    tops, totals = ([facts.at((part, *row, k)) for part in range(parts)] for k in (0, 1))
    most = tops[0]
    for top in tops[1:]:
        most = apply("maximum", most, top)
    # where no key counts, all parts are zero
    base = apply("where", apply("eq", most, const(-math.inf, DType.f32)), const(0.0, DType.f32), most)
    shares = [apply("exp2", apply("sub", top, base)) for top in tops]
    total = _weighed(shares, totals)
    whole = apply("where", apply("eq", total, const(0.0, DType.f32)), const(1.0, DType.f32), total)
    return apply("div", _weighed(shares, [sums.at((part, *row, column)) for part in range(parts)]), whole)


def _weighed(shares: Sequence[Expr], values: Sequence[Expr]) -> Expr:
    found = apply("mul", shares[0], values[0])
    for share, value in zip(shares[1:], values[1:], strict=True):
        found = apply("add", found, apply("mul", share, value))
    return found
