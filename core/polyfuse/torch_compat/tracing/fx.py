"""Graph helpers over `torch.fx` that need more than its public surface."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_aggregate

_COLLECTIVES = "_functional_collectives.py"
"""Of torch: a model's line is the one that called it."""


def value_of(arg: Any) -> Any:
    """The traced value of an argument: `meta["val"]` of nodes, applied through containers."""
    return map_aggregate(arg, lambda a: a.meta.get("val") if isinstance(a, Node) else a)


def placeholder_values(graph: Graph) -> tuple[Any, ...]:
    """Traced values of a graph's placeholders, in order."""
    return tuple(n.meta.get("val") for n in graph.nodes if n.op == "placeholder")


def is_backward(node: Node) -> bool:
    """Whether autograd added a node of a joint graph for the gradients."""
    return "backward" in str(node.meta.get("partitioner_tag", ""))


def has_policy(node: Node) -> bool:
    """Whether a checkpoint says of a node of a joint graph whether it is saved."""
    return node.meta.get("recompute") is not None


def get_constant(module: GraphModule, name: str) -> Any:
    """What a `get_attr` node reads; dotted names walk submodules."""
    value: Any = module
    for part in name.split("."):
        value = getattr(value, part)
    return value


def set_constant(module: GraphModule, name: str, value: Any) -> None:
    """Attach a constant to a module under `name`; a tensor as a buffer that is no part of its state."""
    if isinstance(value, torch.Tensor):
        module.register_buffer(name, value, persistent=False)
    else:
        setattr(module, name, value)


def constant_name(module: GraphModule, prefix: str) -> str:
    """The first free attribute name `prefix0`, `prefix1`, ..."""
    index = 0
    while hasattr(module, f"{prefix}{index}"):
        index += 1
    return f"{prefix}{index}"


def copy_module(module: GraphModule) -> GraphModule:
    """A copy with its own graph that shares constants and node metadata."""
    graph = Graph()
    mapping: dict[Node, Node] = {}
    output = graph.graph_copy(module.graph, mapping)
    old_output = next(n for n in reversed(module.graph.nodes) if n.op == "output")
    new_output = graph.output(output)
    new_output.meta = dict(old_output.meta)
    for old, new in mapping.items():
        new.meta = dict(old.meta)
    return GraphModule(module, graph)


def region_module(
    module: GraphModule, nodes: Sequence[Node], inputs: Sequence[Node], outputs: Sequence[Node]
) -> GraphModule:
    """Neighbouring nodes of Dynamo's graph as a graph like Dynamo's: AOTAutograd asks where inputs come from.
    No input is said to stay where it is, as the region may be called with others.
    """
    graph = Graph()
    copies: dict[Node, Node] = {}
    for node in inputs:
        mine: Any = graph.placeholder(node.name)
        of_graph = node.op == "placeholder"
        mine.meta = {"example_value": node.meta["example_value"]}
        mine._dynamo_source = getattr(node, "_dynamo_source", None) if of_graph else None
        copies[node] = mine
    for node in nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in outputs))
    region = GraphModule(torch.nn.Module(), graph)
    region.meta = module.meta
    for name in ("_param_name_to_source", "compile_subgraph_reason"):
        if hasattr(module, name):
            setattr(region, name, getattr(module, name))
    return region


def source_text(node: Node) -> str:
    """Where the user's model made this node: its stack trace's last frame and its line, or empty. Frames of
    torch's own functions for collectives are passed over.
    """
    trace = node.meta.get("stack_trace") or ""
    lines = [line.strip() for line in trace.strip().splitlines()]
    frames = [i for i, line in enumerate(lines) if line.startswith("File ")]
    if not frames:
        return ""
    outside = [i for i in frames if _COLLECTIVES not in lines[i]]
    last = (outside or frames)[-1]
    code = lines[last + 1] if last + 1 < len(lines) else ""
    return f"{lines[last]}: {code}" if code else lines[last]


def original_operator(node: Node) -> Any:
    """The operator of which a decomposition made this node, None where there was none."""
    return node.meta.get("original_aten")


def traces_backward() -> bool:
    """Whether what is traced now belongs to the backward of a graph with gradients, whose forward runs before
    it. Gradients that a function computes itself (`torch.func.grad`) do not."""
    return "backward" in str(torch.fx.traceback.get_current_meta().get("partitioner_tag", ""))


def mark_boxed(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Mark `fn` as taking one list of arguments, which it may clear."""
    try:
        fn._boxed_call = True  # type: ignore[attr-defined]
        return fn
    except AttributeError:
        pass

    def boxed(args: list[Any]) -> Any:
        return fn(args)

    boxed._boxed_call = True  # type: ignore[attr-defined]
    return boxed
