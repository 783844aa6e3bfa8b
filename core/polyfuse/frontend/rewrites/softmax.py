"""The logarithm of softmax, decomposed, where a backward may need it.

Whole, it is saved for the backward, as large as its operand. Decomposed, a maximum and a logarithm are saved
for each row, and the backward computes the rest again from the operand while it reads that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from polyfuse.frontend.rewrites.tools import Rewriting, aten, same_sizes, tensor_value


def spell_out_log_softmax(state: Rewriting) -> int:
    """`_log_softmax` becomes the operations that it stands for where forward and backward are one graph."""
    if state.stage != "joint":
        return 0

    def spelled(node: Node) -> Callable[[], Node] | None:
        if node.target is not aten._log_softmax.default or state.escapes(node):
            return None
        source, result = tensor_value(node.args[0]), tensor_value(node)
        if source is None or result is None or not _can_be_decomposed(node, source, result):
            return None
        return lambda: _decomposed(state, node, source, result)

    return state.replace_each(spelled)


def _can_be_decomposed(node: Node, source: torch.Tensor, result: torch.Tensor) -> bool:
    """Whether there are rows, and the decomposition lays out the result as the whole does."""
    if source.dim() == 0 or not source.is_floating_point():
        return False
    length = source.shape[node.args[1]]
    return not (type(length) is int and length == 0) and same_sizes(source.stride(), result.stride())


def _decomposed(state: Rewriting, node: Node, source: torch.Tensor, result: torch.Tensor) -> Node:
    def call(target: Any, *args: Any, **kwargs: Any) -> Node:
        return state.call_before(node, target, args, kwargs)

    value, dim = node.args[0], node.args[1]
    kind = torch.float32 if source.dtype.itemsize < 4 else source.dtype
    if kind != source.dtype:
        value = call(aten._to_copy.default, value, dtype=kind)
    shifted = call(aten.sub.Tensor, value, call(aten.amax.default, value, [dim], True))
    total = call(aten.sum.dim_IntList, call(aten.exp.default, shifted), [dim], True)
    found = call(aten.sub.Tensor, shifted, call(aten.log.default, total))
    return found if result.dtype == kind else call(aten._to_copy.default, found, dtype=result.dtype)
