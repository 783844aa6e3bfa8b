"""Flexible attention and its gradients as lowerings: the operators' parameters, and what all kernels of them
begin with. Whoever brings kernels says how they are written.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from polyfuse.base.errors import UnsupportedError
from polyfuse.base.settings import Settings
from polyfuse.flex.call import FlexCall, is_read
from polyfuse.flex.problem import Problem
from polyfuse.plugin import Lowering, LoweringContext, TensorValue


@dataclass(frozen=True)
class Gradients:
    """A backward: what its kernels read besides queries, keys and values, and what they give.

    Attributes:
        grad: of the output.
        sums: the logarithm of each query's sum; f32.
        common: what the gradients of a query's scores have in common; f32.
        results: gradients of queries, keys and values, as torch describes them.
    """

    grad: TensorValue
    sums: TensorValue
    common: TensorValue
    results: tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class FlexKernels(ABC):
    """Kernels of flexible attention, and their calls in one graph. What they cannot do is refused: the next
    plugin is asked, or eager mode computes it, which stores every score.

    Args:
        ctx: of the graph.
        device: where the call's tensors are.
        learned: for gradients: which of the tensors that the score's function reads need theirs.

    Raises:
        UnsupportedError: when made, and from all methods, where there is no kernel.
    """

    def __init__(self, ctx: LoweringContext, device: str, learned: Collection[int] | None = None) -> None:
        self.ctx = ctx

    @abstractmethod
    def forward(self, call: FlexCall, problem: Problem, results: Sequence[TensorValue]) -> None:
        """Emit the call that writes the output, the logarithm of each query's sum, and its greatest score."""

    @abstractmethod
    def backward(
        self, call: FlexCall, problem: Problem, given: Gradients
    ) -> tuple[TensorValue, TensorValue, TensorValue]:
        """Emit the calls that make the gradients of queries, keys and values, and return these."""


def flex_lowerings(
    kernels: type[FlexKernels], takes: Callable[[Settings, Any], bool] | None = None
) -> Mapping[str, Lowering]:
    """The lowerings of both operators, by these kernels.

    Args:
        takes: whether they compute a traced call of the forward; None: any (`polyfuse.plugin.Lowering`).
    """
    return {
        "higher_order.flex_attention": Lowering(partial(_forward, kernels), library=True, takes=takes),
        "higher_order.flex_attention_backward": Lowering(partial(_backward, kernels), library=True),
    }


def _forward(
    kernels: type[FlexKernels],
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
) -> tuple[TensorValue, ...]:
    """The output, the logarithm of each query's sum, and its greatest score."""
    ours = kernels(ctx, query.device)
    call = FlexCall(ctx, node, query, key, value, block_mask, scale)
    score, mask = call.functions(score_mod, score_captured, mask_captured)
    problem = call.problem(score, mask, None)
    results = tuple(ctx.stored(fake) for fake in node.meta["val"])
    ours.forward(call, problem, results)
    return results


def _backward(
    kernels: type[FlexKernels],
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
    """The gradients of queries, keys and values, and of tensors that the score's function reads."""
    if grad is None:
        raise UnsupportedError("only the logarithms of the sums have a gradient")
    *results, captured = node.meta["val"]
    learned = {k: fake for k, fake in enumerate(captured) if fake is not None and is_read(node, k)}
    ours = kernels(ctx, query.device, learned)
    call = FlexCall(ctx, node, query, key, value, block_mask, scale)
    score, mask = call.functions(forward, score_captured, mask_captured)
    gradient, added = call.gradients(joint, score_captured, learned)
    problem = call.problem(score, mask, gradient, added)
    common = call.common(output, grad, grad_sums, sums)
    found = ours.backward(call, problem, Gradients(grad, sums, common, (*results,)))
    return *found, tuple(call.learned(k, learned[k]) if k in learned else None for k in range(len(captured)))
