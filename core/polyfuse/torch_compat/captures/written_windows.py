"""Windows of a tensor (`Tensor.unfold`) that a graph writes to.

AOTAutograd replaces what is written by new tensors, and makes the tensor anew from its windows, as a gradient
is: what no window holds becomes zero, and what several hold is added up. Only windows that follow each other
without gaps come out right.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_any

from polyfuse.torch_compat.captures.shared_inputs import IN_PLACE


def writes_to_windows(gm: Any) -> bool:
    """Whether a captured graph writes to windows that overlap, leave gaps, or may do so."""
    if not isinstance(gm, GraphModule) or not any(map(_makes_windows, gm.graph.nodes)):
        return False
    windows: dict[Node, frozenset[int]] = {}
    """Them and their views, each with the memories in which it lies."""
    for node in gm.graph.nodes:
        memory = _memory(node.meta.get("example_value"))
        if _makes_windows(node) and memory and _is_uneven(node):
            windows[node] = memory
            continue
        given = [windows[arg] for arg in node.all_input_nodes if arg in windows]
        if not given:
            continue
        if _writes(node, windows):
            return True
        if not all(map(memory.isdisjoint, given)):
            windows[node] = memory
    return False


def _makes_windows(node: Node) -> bool:
    # the function of `torch.nn.functional` copies
    return _name(node) == "unfold" and node.target is not torch.nn.functional.unfold


def _is_uneven(node: Node) -> bool:
    """Whether windows overlap or leave gaps, or that is not known."""
    value = node.args[0].meta.get("example_value") if isinstance(node.args[0], Node) else None
    named = {**dict(zip(("dimension", "size", "step"), node.args[1:], strict=False)), **node.kwargs}
    dim, size, step = (named.get(name) for name in ("dimension", "size", "step"))
    if not isinstance(value, torch.Tensor) or not isinstance(dim, int) or value.dim() == 0:
        return True
    length = value.shape[dim]
    known = all(isinstance(n, int) for n in (length, size, step))
    return not known or size != step or length % size != 0


def _memory(value: Any) -> frozenset[int]:
    """Which memories a value lies in; none where it is no tensor with strides, or that is not known."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return frozenset()
    if is_traceable_wrapper_subclass(value):  # whose own views need not share what it has itself
        names, _ = value.__tensor_flatten__()
        return frozenset().union(*(_memory(getattr(value, name)) for name in names))
    while torch._C._functorch.is_functorch_wrapped_tensor(value):  # inside `torch.func` transforms
        value = torch._C._functorch.get_unwrapped(value)
    try:
        return frozenset({value.untyped_storage()._cdata})
    except (NotImplementedError, RuntimeError):  # of a class of tensors that has no memory of its own
        return frozenset()


def _name(node: Node) -> str:
    if node.op not in ("call_method", "call_function"):
        return ""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return name.removesuffix(".default")


def _writes(node: Node, windows: dict[Node, Any]) -> bool:
    def among(value: Any) -> bool:
        return tree_any(lambda one: isinstance(one, Node) and one in windows, value)

    if isinstance(node.target, torch._ops.OpOverload):
        return bool(node.target._schema.is_mutable)
    if among(node.kwargs.get("out")):
        return True
    name = _name(node)
    in_place = name in IN_PLACE or (name.endswith("_") and not name.endswith("__"))
    return in_place and among(node.args[:1])
