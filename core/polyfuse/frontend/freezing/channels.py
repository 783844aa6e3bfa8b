"""Scaling and shifting the channels of a convolution, as batch normalisation does, within its weights."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from polyfuse.frontend.rewrites.tools import Rewriting, same_layout, tensor_value

aten = torch.ops.aten

_STEPS = {
    aten.mul.Tensor: "mul",
    aten.div.Tensor: "div",
    aten.add.Tensor: "add",
    aten.sub.Tensor: "sub",
    aten._to_copy.default: "cast",
}

_Step = tuple[str, Node | None]


def fold_into_convolutions(state: Rewriting, fixed: dict[Node, None]) -> int:
    """Replace ``conv(x, w, b) * s + t``, where s and t hold a number for each channel, by
    ``conv(x, w * s, b * s + t)``. What is new among `fixed` is added to it. Returns how many operations went.
    """
    count = 0
    for node in state.nodes():
        if node.target is aten.convolution.default and node not in fixed and _has_fixed_weights(node, fixed):
            last, steps = _chain(node, fixed)
            if steps and state.spend():
                _fold(state, node, last, steps, fixed)
                count += len(steps)
    return count


def _has_fixed_weights(conv: Node, fixed: dict[Node, None]) -> bool:
    weight, bias, transposed = conv.args[1], conv.args[2], conv.args[6]
    value = tensor_value(conv)
    floating = value is not None and value.is_floating_point()
    return floating and not transposed and weight in fixed and (bias is None or bias in fixed)


def _chain(conv: Node, fixed: dict[Node, None]) -> tuple[Node, list[_Step]]:
    """The last node that only scales and shifts the result of `conv`, in its type, and the steps to there."""
    value = tensor_value(conv)
    assert value is not None
    has_bias = conv.args[2] is not None
    last, taken, steps, node = conv, 0, [], conv
    while len(node.users) == 1:
        user = next(iter(node.users))
        step = _step(user, node, value, fixed)
        if step is None:
            break
        kind, operand = step
        if kind in ("add", "sub") and not has_bias:
            if operand is None or _numel(operand) != value.shape[1]:
                break
            has_bias = True
        steps.append(step)
        node = user
        found = tensor_value(node)
        if found is not None and same_layout(found, value):
            last, taken = node, len(steps)
    return last, steps[:taken]


def _step(user: Node, node: Node, conv: torch.Tensor, fixed: dict[Node, None]) -> _Step | None:
    kind = _STEPS.get(user.target)
    value = tensor_value(user)
    if kind is None or value is None or not value.is_floating_point() or value.shape != conv.shape:
        return None
    if kind == "cast":
        wide = value.dtype == conv.dtype or value.dtype.itemsize > conv.dtype.itemsize
        return (kind, None) if wide and set(user.kwargs) <= {"dtype"} else None
    if user.kwargs or len(user.args) != 2:
        return None
    left, right = user.args
    if left is not node and not (right is node and kind in ("add", "mul")):
        return None
    operand = right if left is node else left
    if not isinstance(operand, Node) or operand is node or operand not in fixed:
        return None
    return (kind, operand) if _is_per_channel(operand, conv) else None


def _is_per_channel(operand: Node, conv: torch.Tensor) -> bool:
    """Whether a tensor that is spread over the result differs between channels at most."""
    value = tensor_value(operand)
    if value is None or not value.is_floating_point() or value.ndim > conv.ndim:
        return False
    shape = (1,) * (conv.ndim - value.ndim) + tuple(value.shape)
    return all(n == 1 for i, n in enumerate(shape) if i != 1) and shape[1] in (1, conv.shape[1])


def _numel(node: Node) -> int:
    value = tensor_value(node)
    return 0 if value is None else value.numel()


def _fold(state: Rewriting, conv: Node, last: Node, steps: list[_Step], fixed: dict[Node, None]) -> None:
    value, weight = tensor_value(conv), conv.args[1]
    assert value is not None and isinstance(weight, Node)
    # as wide as what was done with the result
    wide = torch.promote_types(value.dtype, torch.float32)

    def call(target: Any, *args: Any, **kwargs: Any) -> Node:
        new = state.call_before(conv, target, args, kwargs)
        fixed[new] = None
        return new

    scaled: Any = call(aten._to_copy.default, weight, dtype=wide)
    bias: Any = conv.args[2]
    bias = None if bias is None else call(aten._to_copy.default, bias, dtype=wide)
    for kind, operand in steps:
        if operand is None:
            continue
        flat = call(aten.view.default, call(aten._to_copy.default, operand, dtype=wide), [-1])
        if kind in ("mul", "div"):
            target = aten.mul.Tensor if kind == "mul" else aten.div.Tensor
            rank = value.ndim - 1
            scaled = call(target, scaled, call(aten.view.default, flat, [-1] + [1] * rank))
            bias = None if bias is None else call(target, bias, flat)
        elif bias is None:
            bias = flat if kind == "add" else call(aten.neg.default, flat)
        else:
            bias = call(aten.add.Tensor if kind == "add" else aten.sub.Tensor, bias, flat)
    scaled = call(aten._to_copy.default, scaled, dtype=value.dtype)
    if bias is not None:
        bias = call(aten._to_copy.default, bias, dtype=value.dtype)
    conv.args = (conv.args[0], scaled, bias, *conv.args[3:])
    last.replace_all_uses_with(conv)
