"""Flexible attention's forward as a kernel for Hopper. What it cannot do is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from polyfuse.base.errors import BackendUnavailableError, UnsupportedError
from polyfuse.base.settings import Settings
from polyfuse.plugin import Lowering, LoweringContext, TensorValue
from polyfuse_cuda.flex.call import KEY_LISTS, FlexCall
from polyfuse_cuda.template import TemplateKernel
from polyfuse_cutlass.attention.kernel import forward_source
from polyfuse_cutlass.attention.loading import Loader
from polyfuse_cutlass.backend import CutlassBackend
from polyfuse_cutlass.target import is_hopper

__all__ = ["LOWERINGS", "flex_attention"]


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
    kernel = TemplateKernel(written.source.name, Loader(written.source, backend, len(operands)))
    call.emit(kernel, written, results)
    return tuple(results)


def _backend(settings: Settings, device: str) -> CutlassBackend:
    """What builds the kernel; refused where it would not run, or nothing compiles it."""
    try:
        backend = CutlassBackend(settings)
    except BackendUnavailableError as error:
        raise UnsupportedError(error.cause, error.fix) from error
    if backend.target.ampere or not is_hopper(device):
        raise UnsupportedError("only a Hopper has what this kernel is made of")
    return backend


LOWERINGS = {"higher_order.flex_attention": Lowering(flex_attention, library=True)}
