"""A traced graph as text that is the same in every process, to look up what became of an equal one.

The captured graph says less than this: what is traced of a tensor that is spread over processes depends on
the rank of this one. Two traced graphs of equal text compute the same, wherever they come from.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from polyfuse.base.digest import digest
from polyfuse.frontend.addresses import TORCH_NAMESPACES
from polyfuse.frontend.captured import CacheBypass, value_text
from polyfuse.frontend.shared_arguments import SHARED
from polyfuse.torch_compat import ops
from polyfuse.torch_compat.groups import group_of, processes_of_host
from polyfuse.torch_compat.tracing import fx, shapes

if TYPE_CHECKING:
    from polyfuse.frontend.graph import AtenGraph

_LARGEST = 1 << 12
"""Bytes of a constant that is read to tell it from others."""


def traced_text(graph: AtenGraph) -> str:
    """Return the text of a graph that AOTAutograd traced and that was rewritten.

    Raises:
        CacheBypass: something in it has no text that says what it does.
    """
    return "\n".join(_lines(graph))


def _lines(graph: AtenGraph) -> Iterator[str]:
    yield f"{graph.kind} {graph.name} {graph.rewrites} {graph.notes}"
    for given in graph.inputs:
        flags = given.static, given.donated, given.mutated
        yield f"input {given.name} {given.kind} {flags} {_value(given.value)}"
    numbers = {node: number for number, node in enumerate(graph.module.graph.nodes)}
    for node, number in numbers.items():
        if node.op == "call_function":
            yield f"%{number} {_call(node, numbers)}"
        elif node.op == "get_attr":
            yield f"%{number} {_constant(fx.get_constant(graph.module, str(node.target)))}"
        elif node.op == "output":
            yield f"returns {value_text(node.args, numbers)}"
        elif any(user.op != "output" for user in node.users) and not _is_plain(node.meta.get("val")):
            raise CacheBypass(f"it computes with a {type(node.meta.get('val')).__name__}")
    for result in graph.outputs:
        yield f"output {result.kind} {result.saved} {_value(result.value)}"


def _call(node: Node, numbers: dict[Node, int]) -> str:
    target: Any = node.target
    if isinstance(target, ops.OpOverload):
        if target.namespace not in TORCH_NAMESPACES:
            raise CacheBypass(f"it calls {target}, which is no operator of torch")
        name = str(target)
    elif getattr(target, "__module__", "") in ("_operator", "builtins", "math"):
        name = f"{target.__module__}.{target.__qualname__}"
    else:
        raise CacheBypass(f"it calls {getattr(target, '__name__', target)}")
    if node.meta.get("unbacked_bindings"):
        raise CacheBypass("data decide a size of it")
    made = _value(node.meta.get("val"))
    given = f"{value_text(node.args, numbers)} {value_text(node.kwargs, numbers)}{_groups(node)}"
    beside = f"{fx.original_operator(node)} {node.meta.get(SHARED)} {fx.source_text(node)}"
    return f"{name} {given} -> {made}  # {beside}"


def _groups(node: Node) -> str:
    """What is known of the groups of processes that a collective names."""
    if getattr(node.target, "namespace", "") not in ("_c10d_functional", "_dtensor", "polyfuse_symmetric"):
        return ""
    found = (group_of(value) for value in (*node.args, *node.kwargs.values()) if isinstance(value, str))
    host = processes_of_host()
    return "".join(
        f" by {len(group.ranks)} of {group.name} {group.libraries} {group.is_on_one_host(host)}"
        for group in found
        if group is not None
    )


def _is_plain(value: Any) -> bool:
    return isinstance(value, (torch.Tensor, int, float, bool, type(None)))


def _value(value: Any) -> str:
    """What was traced of a value."""
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_value, value))})"
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided or shapes.free_symbols(value):
            raise CacheBypass("sizes of it vary, or a tensor in it has no strides")
        lies = f"{tuple(value.shape)} {value.stride()} {value.storage_offset()}"
        return f"{value.dtype} {value.device} {lies} {value.is_conj()} {value.is_neg()}"
    if shapes.is_symbolic(value):
        raise CacheBypass("numbers in it vary")
    return repr(value) if _is_plain(value) else f"a {type(value).__module__}.{type(value).__qualname__}"


def _constant(value: Any) -> str:
    plain = type(value) is torch.Tensor and value.layout == torch.strided and value.device.type == "cpu"
    if not plain or value.nbytes > _LARGEST or value.is_conj() or value.is_neg():
        raise CacheBypass("it reads a constant that is large, or no tensor on the CPU")
    content = value.detach().contiguous().view(-1).view(torch.uint8) if value.numel() else value.view(-1)
    return f"constant {_value(value)} {digest(bytes(content.tolist()))}"
