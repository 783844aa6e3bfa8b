"""Freezing: what follows from the parameters of a model alone is computed once, not at each call.

The graph is divided in two. One part computes, from parameters and buffers, the values that the other part
takes as further inputs; who runs the program keeps these values for as long as the parameters do not change
(`polyfuse.runtime.frozen`). Views of parameters stay where they are: they cost nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from polyfuse.base.settings import Settings
from polyfuse.frontend.describe import alias_root, mutated_placeholders, output_args
from polyfuse.frontend.freezing.channels import fold_into_convolutions
from polyfuse.frontend.graph import ReadsNarrow
from polyfuse.frontend.rewrites.passes import remove_dead
from polyfuse.frontend.rewrites.tools import Rewriting, tensor_value
from polyfuse.runtime.frozen import FrozenOperand, FrozenStep, FrozenValues
from polyfuse.torch_compat import ops

# What is stored besides the parameters may be as large as this, or as several times the parameters.
_BYTES = 16 << 20
_TIMES = 2


_FEW_ROWS = 4
"""Rows up to which a backend that can multiplies a weight as it is stored, whatever it looks like."""

_HALF = 2
"""Bytes of a number of 16 bits."""

_CONVERSIONS = (
    "aten._to_copy.default",
    "aten.expand.default",
    "aten.mul.Tensor",
    "aten.permute.default",
    "aten.sub.Tensor",
    "aten.t.default",
    "aten.unsqueeze.default",
    "aten.view.default",
    "prims.convert_element_type.default",
)
"""What makes a weight of one that is stored with fewer bits, also in groups."""


def freeze(
    module: GraphModule, static: Sequence[int], settings: Settings, reads_narrow: ReadsNarrow | None = None
) -> FrozenValues | None:
    """Take what depends on parameters alone out of `module`, in place; None where that is nothing. The graph
    gets the values as further inputs.

    Args:
        static: positions of parameters and buffers among the inputs.
        reads_narrow: whether a device multiplies few rows with a weight as it is stored.
    """
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    written = set(mutated_placeholders(module))
    sources = [
        placeholders[i]
        for i in sorted(static)
        if placeholders[i] not in written and _is_plain(tensor_value(placeholders[i]))
    ]
    if not sources:
        return None
    fixed = _fixed(module, sources)
    if reads_narrow is not None and settings.numerics == "fast" and settings.gemm != "library":
        for node in _read_as_stored(module, fixed, reads_narrow):
            del fixed[node]
    _move_up(placeholders[-1], [n for n in fixed if n.op != "placeholder"])
    state = Rewriting(module, settings, "inference")
    folded = fold_into_convolutions(state, fixed) if settings.numerics == "fast" else 0
    remove_dead(state)
    fixed = {node: None for node in module.graph.nodes if node in fixed}
    wanted = _wanted(fixed, sources)
    if not wanted:
        return None
    taken = _taken_out(module, wanted, sources)
    _put_in_place(module.graph, placeholders[-1], wanted)
    remove_dead(state)
    module.graph.lint()
    module.recompile()
    return replace(taken, folded=folded)


def _is_plain(value: object) -> bool:
    """Whether a value is a tensor in memory whose sizes are known."""
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return False
    return all(isinstance(n, int) for n in (*value.shape, *value.stride()))


def _is_operator(node: Node) -> bool:
    """Whether a call has a name, and the same result whenever it is made."""
    named = isinstance(node.target, ops.OpOverload) or node.target is operator.getitem
    return named and ops.facts(node.target).mergeable


def _bytes(value: torch.Tensor) -> int:
    return value.numel() * value.dtype.itemsize


def _fixed(module: GraphModule, sources: Sequence[Node]) -> dict[Node, None]:
    """All that depends on nothing but `sources` and constants, in order; not what the caller gets, which has
    to be new each time.
    """
    most = max(_BYTES, _TIMES * sum(_bytes(n.meta["val"]) for n in sources))
    returned = {alias_root(a) for a in output_args(module) if isinstance(a, Node)}
    fixed: dict[Node, None] = dict.fromkeys(sources)
    for node in module.graph.nodes:
        if node.op == "get_attr" and _is_plain(tensor_value(node)):
            fixed[node] = None
        if node.op != "call_function" or node in returned or not _is_operator(node):
            continue
        value = node.meta.get("val")
        values = value if isinstance(value, (tuple, list)) else (value,)
        small = all(_is_plain(v) and _bytes(v) <= most for v in values)
        if small and all(operand in fixed for operand in node.all_input_nodes):
            fixed[node] = None
    return fixed


def _read_as_stored(module: GraphModule, fixed: Mapping[Node, None], reads_narrow: ReadsNarrow) -> set[Node]:
    """Conversions of weights that are multiplied with few rows: reading what is stored takes less time than
    reading the result.
    """
    found: set[Node] = set()
    for node in module.graph.nodes:
        if ops.op_name(node.target) not in ("aten.mm.default", "aten.addmm.default"):
            continue
        rows, weight = node.args[-2:]
        count = tensor_value(rows)
        if weight not in fixed or count is None or rows in fixed:
            continue
        # of 16 bits, converting takes as long as reading does, and longer with every further row
        most = _FEW_ROWS if weight.meta["val"].dtype.itemsize > _HALF else 1
        if not isinstance(count.shape[0], int) or count.shape[0] > most:
            continue
        if not reads_narrow(count.device.type):
            continue
        made, stored = _made_of(weight, node)
        if made and 4 * stored <= 3 * _bytes(weight.meta["val"]):
            found |= made
    return found


def _made_of(weight: Node, reader: Node) -> tuple[set[Node], int]:
    """The conversions that make a weight for one reader alone, and the bytes that they read."""
    made: set[Node] = set()
    read: dict[Node, int] = {}
    stack = [weight]
    while stack:
        node = stack.pop()
        cheap = node.op == "call_function" and ops.op_name(node.target) in _CONVERSIONS
        if cheap and all(user is reader or user in made for user in node.users):
            made.add(node)
            stack.extend(node.all_input_nodes)
        else:
            read[node] = _bytes(node.meta["val"])
    return made, sum(read.values())


def _move_up(last: Node, nodes: Sequence[Node]) -> None:
    """Put nodes behind the inputs, in their order."""
    for node in nodes:
        last.append(node)
        last = node


def _wanted(fixed: dict[Node, None], sources: Sequence[Node]) -> list[Node]:
    """The fixed values that others read, without the views that are taken of them."""
    rooted = set(sources)
    for node in fixed:  # in order
        if any(operand in rooted for operand in node.all_input_nodes):
            rooted.add(node)
    wanted: dict[Node, None] = {}
    for node in fixed:
        if all(user in fixed for user in node.users):
            continue
        root = _owner(node)
        if root.op == "call_function" and root in rooted:
            wanted[root] = None
    return [node for node in fixed if node in wanted]


def _owner(node: Node) -> Node:
    """The tensor that a chain of views looks at."""
    while node.op == "call_function" and ops.facts(node.target).is_view:
        operand = node.all_input_nodes[0]
        if tensor_value(operand) is None:
            break
        node = operand
    return node


def _taken_out(module: GraphModule, wanted: Sequence[Node], sources: Sequence[Node]) -> FrozenValues:
    """What computes these values."""
    needed: set[Node] = set()
    stack = list(wanted)
    while stack:
        node = stack.pop()
        if node not in needed:
            needed.add(node)
            stack.extend(node.all_input_nodes)
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    used = [node for node in sources if node in needed]
    inside = [node for node in module.graph.nodes if node in needed]
    held = [node for node in inside if node.op == "get_attr"]
    calls = [node for node in inside if node.op == "call_function"]
    numbers = {node: number for number, node in enumerate((*used, *held, *calls))}
    values = [node.meta["val"] for node in wanted]
    return FrozenValues(
        tuple(placeholders.index(node) for node in used),
        tuple(_held(module, str(node.target)) for node in held),
        tuple(
            FrozenStep(_name(node), _plain(node.args, numbers), _plain(dict(node.kwargs), numbers))
            for node in calls
        ),
        tuple(numbers[node] for node in wanted),
        tuple((tuple(map(int, v.shape)), tuple(map(int, v.stride()))) for v in values),
    )


def _held(module: GraphModule, name: str) -> torch.Tensor:
    owner, _, last = name.rpartition(".")
    held: torch.Tensor = getattr(module.get_submodule(owner), last)
    return held


def _name(node: Node) -> str:
    return "getitem" if node.target is operator.getitem else str(node.target)


def _plain(value: Any, numbers: Mapping[Node, int]) -> Any:
    """Arguments of a call as plain values, without nodes."""
    if isinstance(value, Node):
        return FrozenOperand(numbers[value])
    if isinstance(value, tuple):
        return tuple(_plain(item, numbers) for item in value)
    if isinstance(value, list):
        return [_plain(item, numbers) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item, numbers) for key, item in value.items()}
    return value


def _put_in_place(graph: Graph, last: Node, wanted: Sequence[Node]) -> None:
    """New inputs instead of these values."""
    for number, node in enumerate(wanted):
        with graph.inserting_after(last):
            last = graph.placeholder(f"frozen_{number}")
        last.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(last)
