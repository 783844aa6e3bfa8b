"""Attention with few queries over many keys, in place of the library's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from polyfuse.base.errors import UnsupportedError
from polyfuse.base.settings import Settings
from polyfuse.ir.nodes import ExternCall
from polyfuse.ir.types import DType
from polyfuse.plugin import Lowering, LoweringContext, TensorValue
from polyfuse.symbolic import IndexLike
from polyfuse_cuda.template import ComparedTemplate
from polyfuse_triton.attention.expected import expected_attention
from polyfuse_triton.attention.kernel import few_queries_source
from polyfuse_triton.attention.problem import FewQueries, Tiles
from polyfuse_triton.attention.tiles import is_faster, tiles_of
from polyfuse_triton.target import first_target
from polyfuse_triton.template import triton_template

_RANK = 4
_TYPES = (DType.bf16, DType.f16)
_BIAS_TYPES = (*_TYPES, DType.f32)
_LINE = 8
"""Numbers that a copy past registers takes."""


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


def few_queries_kernel(call: FewQueries, tiles: Tiles, settings: Settings) -> ComparedTemplate:
    """What a program calls."""
    return triton_template(
        "few_queries",
        lambda aligned: few_queries_source(call, tiles, aligned),
        settings,
        partial(expected_attention, call),
        (few_queries_kernel, (call, tiles, settings)),
    )


def _attended(
    ctx: LoweringContext,
    node: Any,
    operands: tuple[TensorValue, TensorValue, TensorValue, TensorValue | None],
    dropout: Any,
    causal: Any,
    scale: Any,
) -> tuple[TensorValue | None, ...]:
    settings = ctx.settings
    if ctx.packaged:
        raise UnsupportedError("packages hold calls of the library alone")
    if dropout or causal or settings.numerics != "fast" or settings.gemm == "library":
        raise UnsupportedError("attention with dropout, or causal by position, is computed by the library")
    if any(user.args[1] != 0 for user in node.users):
        raise UnsupportedError("only the library gives sums of exponentials")
    call = _problem(operands, scale)
    target = first_target(settings)
    if not is_faster(call, target):
        raise UnsupportedError("attention but of one query with a mask is computed by the library")
    given = [v for v in operands if v is not None]
    views = [ctx.realize(v) for v in given]
    steps = [_numbers(view.stride) for view in views]
    if any(step[3] != 1 for step in steps[:3]) or any(n % _LINE for step in steps[1:3] for n in step[:3]):
        raise UnsupportedError("keys and values that are no aligned lines in memory are read by the library")
    result = ctx.stored(node.meta["val"][0])
    written = [result]
    tiles = tiles_of(call, target)
    if tiles.parts > 1:
        rows = (tiles.parts, *_numbers(operands[0].size)[:3])
        device = operands[0].device
        written += [ctx.stored(ctx.temporary(DType.f32, device, (*rows, n))) for n in (call.values, 2)]
    made = [ctx.realize(one) for one in written]
    call = replace(call, query=steps[0], key=steps[1], value=steps[2], out=_numbers(made[0].stride))
    if len(given) > 3:
        # what has one element along a dimension is the same for all
        spread = zip(_numbers(given[3].size), steps[3], strict=True)
        call = replace(call, bias=tuple(step if size > 1 else 0 for size, step in spread))
    name = ctx.add_object("few_queries_", few_queries_kernel(call, tiles, settings))
    outputs = tuple(view.buffer for view in made)
    ctx.emit(ExternCall(ctx.fresh("call"), name, (*views, *made), (), outputs, "into"))
    return result, *((None,) * (len(node.meta["val"]) - 1))


def _problem(
    operands: tuple[TensorValue, TensorValue, TensorValue, TensorValue | None], scale: Any
) -> FewQueries:
    """The call, whose strides are not known yet."""
    query, key, value, bias = operands
    given = [v for v in operands if v is not None]
    if any(v.rank != _RANK for v in given) or query.dtype not in _TYPES:
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
