"""Readable text of an ATen graph, the same in every process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from polyfuse.torch_compat import ops
from polyfuse.torch_compat.tracing import fx, shapes

if TYPE_CHECKING:
    from polyfuse.frontend.graph import AtenGraph

_SHORT = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "u8",
    torch.uint16: "u16",
    torch.uint32: "u32",
    torch.uint64: "u64",
    torch.bool: "bool",
}


def value_text(value: Any) -> str:
    """`f32[4, s0] strides (s0, 1) cpu` of a tensor; other values as they print."""
    if isinstance(value, torch.Tensor):
        dtype = _SHORT.get(value.dtype, str(value.dtype).removeprefix("torch."))
        size = ", ".join(str(n) for n in shapes.exprs_of(value.shape))
        if value.layout != torch.strided:
            return f"{dtype}[{size}] {value.layout} {value.device}"
        strides = ", ".join(str(n) for n in shapes.exprs_of(value.stride()))
        return f"{dtype}[{size}] strides ({strides}) {value.device}"
    if isinstance(value, list | tuple):
        return "(" + ", ".join(value_text(v) for v in value) + ")"
    return str(shapes.expr_of(value))


def graph_text(graph: AtenGraph) -> str:
    """One line a node: name, operator, arguments, value, and the user's source line beside it."""
    lines = [f"graph {graph.name} ({graph.kind})"]
    for item in graph.inputs:
        flags = [
            f
            for f, on in (("static", item.static), ("donated", item.donated), ("mutated", item.mutated))
            if on
        ]
        lines.append(
            f"  input %{item.name}: {value_text(item.value)}{' ' + ' '.join(flags) if flags else ''}"
        )
    for node in graph.module.graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        lines.append("  " + _node_text(node))
    (result,) = graph.module.graph.output_node().args
    outputs = result if isinstance(result, tuple | list) else (result,)
    returned = ", ".join(_argument(a) for a in outputs)
    lines.append(f"  return {returned}")
    return "\n".join(lines) + "\n"


def _node_text(node: Node) -> str:
    what = f"constant {node.target}" if node.op == "get_attr" else ops.op_name(node.target) + _call_text(node)
    source = fx.source_text(node)
    return f"%{node.name}: {value_text(node.meta.get('val'))} = {what}" + (f"  # {source}" if source else "")


def _call_text(node: Node) -> str:
    parts = [_argument(a) for a in node.args]
    parts.extend(f"{k}={_argument(v)}" for k, v in node.kwargs.items())
    return "(" + ", ".join(parts) + ")"


def _argument(value: Any) -> str:
    if isinstance(value, Node):
        return f"%{value.name}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_argument(v) for v in value) + "]"
    if isinstance(value, torch.fx.GraphModule):
        return "subgraph"
    return repr(value)
