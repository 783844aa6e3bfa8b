"""Inputs that a backward reads and that the forward overwrites: their old content is what must be saved.

The split of a joint graph saves an input instead of what follows cheaply from it, such as
`buffer.exp()`, and takes no notice of a `copy_` at the forward's end. The backward would find what the buffer
holds by then.
"""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from polyfuse.frontend.describe import alias_root, mutated_placeholders, output_args, output_node
from polyfuse.torch_compat.tracing import fake


def copy_overwritten(forward: GraphModule, user_outputs: int) -> int:
    """Save copies of inputs, and of views of them, that the forward writes to; returns how many there are.

    Args:
        forward: the forward, whose outputs behind the first `user_outputs` are saved for the backward.
        user_outputs: how many results the forward's caller gets.
    """
    written = set(mutated_placeholders(forward))
    if not written:
        return 0
    copies: dict[Node, Node] = {}
    outputs = list(output_args(forward))
    for position, saved in enumerate(outputs[user_outputs:], user_outputs):
        if isinstance(saved, Node) and alias_root(saved) in written and _is_tensor(saved):
            if saved not in copies:
                copies[saved] = _copied(forward, saved)
            outputs[position] = copies[saved]
    if copies:
        output_node(forward).args = (tuple(outputs),)
        forward.recompile()
    return len(copies)


def _is_tensor(saved: Node) -> bool:
    return isinstance(saved.meta.get("val"), torch.Tensor)


def _copied(forward: GraphModule, saved: Node) -> Node:
    """A copy with the same strides, made where the value is."""
    value = saved.meta["val"]
    operator = torch.ops.aten.clone.default
    with forward.graph.inserting_after(saved if saved.op != "placeholder" else _last_placeholder(forward)):
        copy = forward.graph.call_function(operator, (saved,))
    copy.meta = dict(saved.meta)
    copy.meta["val"] = fake.fake_evaluate(fake.detect_fake_mode((value,)), operator, (value,), {})
    return copy


def _last_placeholder(forward: GraphModule) -> Node:
    return [n for n in forward.graph.nodes if n.op == "placeholder"][-1]
