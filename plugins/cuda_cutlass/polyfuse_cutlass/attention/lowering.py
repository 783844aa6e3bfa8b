"""Flexible attention's forward and backward as kernels for Hopper. What it cannot do is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from polyfuse.base.errors import BackendUnavailableError, UnsupportedError
from polyfuse.base.settings import Settings
from polyfuse.ir.expr import apply, const
from polyfuse.ir.types import DType
from polyfuse.plugin import Lowering, LoweringContext, TensorValue
from polyfuse_cuda.flex.call import KEY_LISTS, QUERY_LISTS, FlexCall, Written, is_read
from polyfuse_cuda.template import TemplateKernel
from polyfuse_cutlass.attention.backward import Totals, backward_source
from polyfuse_cutlass.attention.forward import forward_source
from polyfuse_cutlass.attention.loading import Loader
from polyfuse_cutlass.attention.text import is_copied
from polyfuse_cutlass.attention.tiles import backward_tiles_of
from polyfuse_cutlass.backend import CutlassBackend
from polyfuse_cutlass.target import is_hopper

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
    backend = _backend(ctx.settings, query.device)
    call = FlexCall(ctx, node, query, key, value, block_mask, scale)
    score, mask = call.functions(score_mod, score_captured, mask_captured)
    problem = call.problem(score, mask, None)
    results = [ctx.stored(fake) for fake in node.meta["val"]]
    operands = [call.array(v) for v in (query, key, value)]
    written = forward_source(problem, operands, call.lists(KEY_LISTS), [call.array(v) for v in results])
    call.emit(_kernel(written, backend, len(operands)), written, results)
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
    if ctx.settings.deterministic == "on":
        raise UnsupportedError("gradients of queries are added up in any order")
    backend = _backend(ctx.settings, query.device)
    fakes = node.meta["val"]
    if any(fake is not None and is_read(node, k) for k, fake in enumerate(fakes[3])):
        raise UnsupportedError("gradients of tensors that the score's function reads are not added up here")
    call = FlexCall(ctx, node, query, key, value, block_mask, scale)
    score, mask = call.functions(forward, score_captured, mask_captured)
    gradient, _ = call.gradients(joint, score_captured, {})
    problem = call.problem(score, mask, gradient)
    tiles = backward_tiles_of(problem)
    common = call.common(output, grad, grad_sums, sums)
    grad = _in_rows(ctx, grad)
    operands = [call.array(v) for v in (query, key, value, grad, sums, common)]
    layout = Totals(problem, tiles)
    totals = ctx.temporary(DType.f32, query.device, layout.size)
    totals = ctx.lazy(totals, const(0.0, DType.f32))
    to_query, to_key, to_value = fakes[:3]
    results = [ctx.stored(fake) for fake in (to_key, to_value)]
    written = backward_source(
        problem,
        tiles,
        operands,
        call.lists(QUERY_LISTS),
        call.array(totals),
        [call.array(v) for v in results],
    )
    # the copy engine reads the first four
    call.emit(_kernel(written, backend, 4), written, results, added=[totals])
    b, h, m, d = ctx.axes(ctx.template(to_query))
    total = apply("mul", totals.at((b, h, layout.place(m, d))), const(problem.scale, DType.f32))
    return ctx.lazy(to_query, total), *results, (None,) * len(fakes[3])


def _in_rows(ctx: LoweringContext, value: TensorValue) -> TensorValue:
    """A value in rows, as the copy engine fetches it: a copy of the gradient of a sum, which repeats."""
    if is_copied(ctx.realize(value).stride):
        return value
    assert value.dtype is not None
    rows = ctx.temporary(value.dtype, value.device, value.size)
    return ctx.lazy(rows, value.at(ctx.axes(rows)))


def _kernel(written: Written, backend: CutlassBackend, copied: int) -> TemplateKernel:
    return TemplateKernel(written.source.name, Loader(written.source, backend, copied))


def _backend(settings: Settings, device: str) -> CutlassBackend:
    """What builds the kernel; refused where it would not run, or nothing compiles it."""
    try:
        backend = CutlassBackend(settings)
    except BackendUnavailableError as error:
        raise UnsupportedError(error.cause, error.fix) from error
    if backend.target.ampere or not is_hopper(device):
        raise UnsupportedError("only a Hopper has what this kernel is made of")
    return backend


LOWERINGS = {
    "higher_order.flex_attention": Lowering(flex_attention, library=True),
    "higher_order.flex_attention_backward": Lowering(flex_attention_backward, library=True),
}
