"""Flexible attention: the operator with functions of a score and its place, as kernels of our own.

What the kernels cannot do is refused, and eager mode then computes it, which stores every score.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from polyfuse.base.errors import BackendUnavailableError, UnsupportedError
from polyfuse.base.settings import Settings
from polyfuse.plugin import Lowering, LoweringContext, TensorValue
from polyfuse_cuda.flex.call import KEY_LISTS, QUERY_LISTS, FlexCall, Written, is_read
from polyfuse_triton.flex.kernel import (
    forward_source,
    key_gradient_source,
    query_gradient_source,
)
from polyfuse_triton.flex.tiles import tiles_of
from polyfuse_triton.target import Target, known_target, targets_of
from polyfuse_triton.template import triton_template

__all__ = ["LOWERINGS", "flex_attention", "flex_attention_backward"]


def flex_attention(
    ctx: LoweringContext,
    node: Any,
    query: TensorValue,
    key: TensorValue,
    value: TensorValue,
    score_mod: Any,
    block_mask: Sequence[Any],
    scale: float,
    kernel_options: Mapping[str, Any],
    score_captured: Sequence[Any] = (),
    mask_captured: Sequence[Any] = (),
) -> tuple[TensorValue | None, ...]:
    """The output, the logarithm of each query's sum, and its greatest score."""
    call = FlexCall(ctx, node, query, key, value, block_mask, scale)
    score, mask = call.functions(score_mod, score_captured, mask_captured)
    problem = call.problem(score, mask, None)
    results = [ctx.stored(fake) for fake in node.meta["val"]]
    operands = [call.array(v) for v in (query, key, value)]
    lists = call.lists(KEY_LISTS)
    written = [call.array(v) for v in results]
    tiles = tiles_of("forward", problem, _target(ctx.settings))
    _emit(
        ctx,
        call,
        lambda a: forward_source(problem, tiles, operands, lists, written, a),
        results,
    )
    return tuple(results)


def flex_attention_backward(
    ctx: LoweringContext,
    node: Any,
    query: TensorValue,
    key: TensorValue,
    value: TensorValue,
    output: TensorValue,
    sums: TensorValue,
    grad: TensorValue | None,
    grad_sums: TensorValue | None,
    forward: Any,
    joint: Any,
    block_mask: Sequence[Any],
    scale: float,
    kernel_options: Mapping[str, Any],
    score_captured: Sequence[Any] = (),
    mask_captured: Sequence[Any] = (),
) -> tuple[Any, ...]:
    """The gradients of queries, keys and values."""
    if grad is None:
        raise UnsupportedError("only the logarithms of the sums have a gradient")
    fakes = node.meta["val"]
    wanted = [k for k, fake in enumerate(fakes[3]) if fake is not None and is_read(node, k)]
    call = FlexCall(ctx, node, query, key, value, block_mask, scale)
    score, mask = call.functions(forward, score_captured, mask_captured)
    gradient, added = call.gradients(joint, score_captured, {k: fakes[3][k] for k in wanted})
    problem = call.problem(score, mask, gradient, added)
    common = call.common(output, grad, grad_sums, sums)
    operands = [call.array(v) for v in (query, key, value, grad, sums, common)]
    to_query, to_key, to_value = (ctx.stored(fake) for fake in fakes[:3])
    lists, query_lists = call.lists(KEY_LISTS), call.lists(QUERY_LISTS)
    tiles, key_tiles = (tiles_of(name, problem, _target(ctx.settings)) for name in ("queries", "keys"))
    first, second, third = (call.array(v) for v in (to_query, to_key, to_value))
    _emit(
        ctx,
        call,
        lambda a: query_gradient_source(problem, tiles, operands, lists, first, a),
        [to_query],
    )
    _emit(
        ctx,
        call,
        lambda a: key_gradient_source(problem, key_tiles, operands, query_lists, (second, third), a),
        [to_key, to_value],
    )
    learned = tuple(call.learned(k, fake) if k in wanted else None for k, fake in enumerate(fakes[3]))
    return to_query, to_key, to_value, learned


LOWERINGS = {
    "higher_order.flex_attention": Lowering(flex_attention, library=True),
    "higher_order.flex_attention_backward": Lowering(flex_attention_backward, library=True),
}


def _target(settings: Settings) -> Target:
    """What kernels are compiled for; a large chip where there is none."""
    try:
        return targets_of(settings)[0]
    except BackendUnavailableError:
        return known_target("sm_90")


def _emit(
    ctx: LoweringContext,
    call: FlexCall,
    make: Callable[[bool], Written],
    results: Sequence[TensorValue],
) -> None:
    """The call of a kernel in the graph."""
    written = make(True)
    kernel = triton_template(written.source.name, lambda aligned: make(aligned).source, ctx.settings)
    call.emit(kernel, written, results)
