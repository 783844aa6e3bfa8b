"""Build the description of a graph's inputs and outputs: what is static, mutated, saved, aliased."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch.fx import GraphModule, Node

from polyfuse.frontend.graph import AtenGraph, GraphInput, GraphKind, GraphOutput, Note, kind_of
from polyfuse.torch_compat import ops
from polyfuse.torch_compat.tracing import fake

if TYPE_CHECKING:
    from polyfuse.base.text import PassText


def output_node(module: GraphModule) -> Node:
    """The graph's output node."""
    node: Node = next(n for n in reversed(module.graph.nodes) if n.op == "output")
    return node


def output_args(module: GraphModule) -> tuple[Any, ...]:
    """The flat outputs: nodes and constants."""
    (result,) = output_node(module).args
    return tuple(result) if isinstance(result, tuple | list) else (result,)


def alias_root(node: Node) -> Node:
    """The node whose storage `node` may share: views are followed to what they look at."""
    while node.op == "call_function" and node.all_input_nodes:
        facts = ops.facts(node.target)
        if facts.is_higher_order or not (facts.is_view or facts.mutates):
            break
        node = node.all_input_nodes[0]
    return node


def mutated_placeholders(module: GraphModule) -> tuple[Node, ...]:
    """Placeholders that some operator of the graph writes to, directly or through a view, in input order."""
    written: set[Node] = set()
    for node in module.graph.nodes:
        # what functionalisation wrapped writes to an input only where a `copy_` of its own follows
        if node.op != "call_function" or _is_functionalized(node):
            continue
        for target in mutated_nodes(node):
            root = alias_root(target)
            if root.op == "placeholder":
                written.add(root)
    return tuple(n for n in module.graph.nodes if n in written)


def mutated_nodes(node: Node) -> tuple[Node, ...]:
    """The argument nodes a call writes to, or may write to where nobody needs what they hold. A higher-order
    call may write to any of its tensor arguments."""
    facts = ops.facts(node.target)
    if not facts.is_operator:
        return tuple(node.all_input_nodes) if facts.is_higher_order and _mutating_hop(node) else ()
    if not facts.mutates:
        return ()
    names = ops.argument_names(node.target)
    found: list[Node] = []
    for position in facts.mutates:
        value = node.args[position] if position < len(node.args) else node.kwargs.get(names[position])
        values = value if isinstance(value, list | tuple) else (value,)
        found.extend(v for v in values if isinstance(v, Node))
    return tuple(found)


def _mutating_hop(node: Node) -> bool:
    return "triton_kernel_wrapper_mutation" in ops.op_name(node.target) or _is_functionalized(node)


def _is_functionalized(node: Node) -> bool:
    return "auto_functionalized" in ops.op_name(node.target)


def describe(
    module: GraphModule,
    kind: GraphKind,
    *,
    name: str,
    fake_mode: Any,
    static: Sequence[int] = (),
    donated: Sequence[int] = (),
    user_outputs: int | None = None,
    rewrites: Sequence[tuple[str, int]] = (),
    passes: Sequence[PassText] = (),
    notes: Sequence[Note] = (),
    given: int | None = None,
) -> AtenGraph:
    """Put a finished graph and the facts about its inputs and outputs into an `AtenGraph`."""
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    mutated = set(mutated_placeholders(module))
    inputs = tuple(
        GraphInput(
            index=i,
            name=node.name,
            kind=kind_of(node.meta.get("val")),
            value=node.meta.get("val"),
            static=i in static,
            donated=i in donated,
            mutated=node in mutated,
        )
        for i, node in enumerate(placeholders)
    )
    outputs = tuple(
        _describe_output(i, value, kind, user_outputs) for i, value in enumerate(output_args(module))
    )
    return AtenGraph(
        name=name,
        kind=kind,
        module=module,
        inputs=inputs,
        outputs=outputs,
        fake_mode=fake_mode,
        shape_env=fake.shape_env_of(fake_mode),
        rewrites=tuple(rewrites),
        passes=tuple(passes),
        notes=tuple(notes),
        given=given,
    )


def _describe_output(index: int, arg: Any, kind: GraphKind, user_outputs: int | None) -> GraphOutput:
    saved = kind == "forward" and user_outputs is not None and index >= user_outputs
    if not isinstance(arg, Node):
        return GraphOutput(index, kind_of(arg), None, arg, saved)
    value = arg.meta.get("val")
    return GraphOutput(index, kind_of(value), arg.name, value, saved)
