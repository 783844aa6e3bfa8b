"""Inputs that a backward reads and that the forward overwrites: their old content is what must be saved.

The split of a joint graph saves an input instead of what follows cheaply from it, such as
`buffer.exp()`, and takes no notice of a `copy_` at the forward's end. The backward would find what the buffer
holds by then. What the backward writes to an input goes to the input itself all the same.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from polyfuse.frontend.describe import alias_root, mutated_placeholders, output_args, output_node
from polyfuse.torch_compat.tracing import fake


def copy_overwritten(forward: GraphModule, backward: GraphModule, user_outputs: int) -> int:
    """Save copies of inputs, and of views of them, that the forward writes to; returns how many there are.

    Args:
        forward: the forward, whose outputs behind the first `user_outputs` are saved for the backward.
        backward: the backward, whose placeholders are called as what was saved. One that it writes to stays
            the input; if it is read as well, the copy is saved besides.
        user_outputs: how many results the forward's caller gets.
    """
    written = set(mutated_placeholders(forward))
    if not written:
        return 0
    targets = {node.name: node for node in mutated_placeholders(backward)}
    copies: dict[Node, Node] = {}
    outputs = list(output_args(forward))
    first = outputs[user_outputs] if user_outputs < len(outputs) else None
    besides: list[Node] = []
    for position, saved in enumerate(outputs[user_outputs:], user_outputs):
        if not isinstance(saved, Node) or alias_root(saved) not in written or not _is_tensor(saved):
            continue
        target = targets.get(saved.name)
        if target is not None and not _readers(target):
            continue
        if saved not in copies:
            copies[saved] = _copied(forward, saved)
        if target is None:
            outputs[position] = copies[saved]
        else:
            _read_from(backward, target, before=first)
            besides.append(copies[saved])
    if copies:
        # AOTAutograd counts what is saved: tensors come first among the outputs, and in one order with inputs
        outputs[user_outputs:user_outputs] = besides
        output_node(forward).args = (tuple(outputs),)
        forward.recompile()
        backward.recompile()
    return len(copies)


def _readers(target: Node) -> list[Node]:
    """What reads an input of the backward, apart from the writes to it at the end."""
    return [
        user
        for user in target.users
        if not (user.target is torch.ops.aten.copy_.default and user.args[0] is target and not user.users)
    ]


def _read_from(backward: GraphModule, target: Node, before: Any) -> None:
    """Have everything but writes read the copy of an input, a new placeholder in front of that which is
    called as `before`."""
    front = next(n for n in backward.graph.nodes if n.op == "placeholder" and n.name == before.name)
    with backward.graph.inserting_before(front):
        copy = backward.graph.placeholder(f"{target.name}_before")
    copy.meta = dict(target.meta)
    for user in _readers(target):
        user.replace_input_with(target, copy)


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
