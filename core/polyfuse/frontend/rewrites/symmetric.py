"""Matmuls and collectives through symmetric memory, where the program enabled it for their group.

    wait(all_gather(x)) @ w                -> all_gather_matmul(x, [w])
    wait(reduce_scatter(x @ w))            -> matmul_reduce_scatter(x, w)
    wait(all_reduce(x)), a short message   -> all_reduce(x), each process reading from all others

Torch cuts the matmuls into chunks that are copied between GPUs while others are multiplied, which two H200s
are slower with: by default only short sums are chosen. All ranks that enabled it for a group choose alike:
what is chosen follows from the graph alone.
"""

from __future__ import annotations

import operator
from typing import Any, Final

import torch
from torch.fx import Node

from polyfuse.frontend.graph import Note
from polyfuse.frontend.rewrites.chunked import GatheredMatmuls, SummedMatmul, gathered_matmuls, summed_matmul
from polyfuse.frontend.rewrites.tools import Rewriting, is_contiguous, tensor_value
from polyfuse.torch_compat import ops
from polyfuse.torch_compat.groups import symmetric_groups

aten = torch.ops.aten

_PREFIX: Final = "_c10d_functional."
_GATHER: Final = f"{_PREFIX}all_gather_into_tensor.default"
_SCATTER: Final = f"{_PREFIX}reduce_scatter_tensor.default"
_SUM: Final = f"{_PREFIX}all_reduce.default"
_TURNS: Final = (aten.t.default, aten.permute.default, aten.transpose.int)


def symmetric_matmuls(state: Rewriting) -> int:
    """Put matmuls with their collective in place of the two, for groups with symmetric memory."""
    count = 0
    for node in state.nodes() if _is_on(state, "all") else ():
        name = ops.op_name(node.target)
        if name == _GATHER and (found := gathered_matmuls(node)) is not None:
            count += _gathered(state, found)
        elif name == _SCATTER and (ended := summed_matmul(node)) is not None:
            count += _scattered(state, ended)
    return count


def symmetric_sums(state: Rewriting) -> int:
    """Have each process add up short messages of all others itself."""
    count = 0
    for node in state.nodes() if _is_on(state, "sums", "all") else ():
        if ops.op_name(node.target) == _SUM:
            count += _summed(state, node)
    return count


def _is_on(state: Rewriting, *choices: str) -> bool:
    # without such a group our operators need not be imported
    return state.settings.symmetric_memory in choices and state.stage != "joint" and bool(symmetric_groups())


def _note(state: Rewriting, start: Node, others: list[Node]) -> None:
    names = "+".join(node.name for node in others)
    state.notes.append(Note("symmetric", start.name, names, "through memory that GPUs map from each other"))


def _gathered(state: Rewriting, found: GatheredMatmuls) -> bool:
    from polyfuse.torch_compat import symmetric

    shard, made = tensor_value(found.start.args[0]), tensor_value(found.start)
    if shard is None or made is None or not symmetric.is_supported(shard, str(found.start.args[2])):
        return False
    if found.dim and shard.shape[0] != 1:
        return False  # rows of a process do not follow each other in the whole
    positions = {node: number for number, node in enumerate(state.graph.nodes)}
    matmuls = [
        node
        for node in found.matmuls
        if node.target is aten.mm.default and _can_come_first(node.args[1], found.wait, positions)
    ]
    if not matmuls or not state.spend():
        return False
    for matmul in matmuls:
        _bring(matmul.args[1], found.wait, positions)
    depth = int(shard.shape[-1])
    rows = state.call_before(found.wait, aten.view.default, (found.start.args[0], [-1, depth]))
    others = len(matmuls) < len(found.matmuls) or bool(found.others)
    weights = [matmul.args[1] for matmul in matmuls]
    given = (rows, weights, others, found.start.args[2])
    call = state.call_before(found.wait, symmetric.ALL_GATHER_MATMUL, given)
    parts = [_item(state, found.wait, call, i) for i in range(len(weights) + others)]
    _note(state, found.start, matmuls)
    for matmul, part in zip(matmuls, parts, strict=False):
        state.replace(matmul, part)
    if others:
        whole = state.call_before(found.wait, aten.view.default, (parts[-1], list(made.shape)))
        state.replace(found.wait, whole)
    else:
        _erase_from(state, found.rows, found.wait)
    state.graph.erase_node(found.start)
    return True


def _item(state: Rewriting, anchor: Node, call: Node, number: int) -> Node:
    return state.call_before(anchor, operator.getitem, (call, number))


def _can_come_first(node: Any, anchor: Node, positions: dict[Node, int]) -> bool:
    """Whether a weight is defined before an anchor, or is a view that can be moved before it."""
    if not isinstance(node, Node):
        return False
    if positions[node] < positions[anchor]:
        return True
    turned = node.op == "call_function" and node.target in _TURNS
    return turned and _can_come_first(node.args[0], anchor, positions)


def _bring(node: Any, anchor: Node, positions: dict[Node, int]) -> None:
    if positions[node] > positions[anchor]:
        _bring(node.args[0], anchor, positions)
        anchor.prepend(node)
        positions[node] = positions[anchor] - 1


def _erase_from(state: Rewriting, last: Node, first: Node) -> None:
    """Drop a node that nobody reads any more, and what it alone was made of, back to `first`."""
    open_ones = [last]
    while open_ones:
        node = open_ones.pop()
        if not node.users:
            before = node.all_input_nodes
            state.graph.erase_node(node)
            open_ones += before if node is not first else []


def _scattered(state: Rewriting, found: SummedMatmul) -> bool:
    from polyfuse.torch_compat import symmetric

    matmul, start = found.matmul, found.start
    given, made, result = tensor_value(matmul.args[0]), tensor_value(matmul), tensor_value(start)
    group = str(start.args[-1])
    if given is None or made is None or result is None or matmul.target is not aten.mm.default:
        return False
    if not (symmetric.is_supported(given, group) and symmetric.is_supported(made, group)):
        return False
    if not all(_keeps_order(node) for node in found.path) or not state.spend():
        return False
    args = (*matmul.args, start.args[1], group)
    call = state.call_before(start, symmetric.MATMUL_REDUCE_SCATTER, args)
    _note(state, start, [matmul])
    done = state.call_before(start, aten.view.default, (call, list(result.shape)))
    state.replace(found.wait, done)
    _erase_from(state, start, matmul)
    return True


def _keeps_order(node: Node) -> bool:
    """Whether elements lie in memory as they do in what a node was made of, if that is row-major."""
    if node.target in (aten.view.default, aten._unsafe_view.default, aten.clone.default):
        value, before = tensor_value(node), tensor_value(node.args[0])
        return value is not None and before is not None and is_contiguous(value) and is_contiguous(before)
    split = node
    while isinstance(split.args[0], (Node, tuple, list)) and split.target not in _SPLITS:
        split = split.args[0] if isinstance(split.args[0], Node) else split.args[0][0]
    whole = tensor_value(split.args[0])
    # parts along the second axis, one behind the other along the first: the same where that has one row
    return whole is not None and whole.dim() > 1 and whole.shape[0] == 1 and _axis(split, 2) == 1


_SPLITS: Final = (aten.split.Tensor, aten.split_with_sizes.default)


def _axis(node: Node, position: int) -> int:
    value = tensor_value(node.args[0])
    assert value is not None
    given = node.args[position] if len(node.args) > position else node.kwargs.get("dim", 0)
    return int(given) % value.dim()


def _summed(state: Rewriting, start: Node) -> bool:
    from polyfuse.torch_compat import symmetric

    waits, x = list(start.users), tensor_value(start.args[0])
    if x is None or start.kwargs or start.args[1] != "sum" or len(waits) != 1:
        return False
    group = str(start.args[2])
    if ops.op_name(waits[0].target) != ops.WAIT_TENSOR or not symmetric.is_supported(x, group):
        return False
    if x.numel() * x.element_size() > symmetric.LARGEST_SUM or not state.spend():
        return False
    call = state.call_before(start, symmetric.ALL_REDUCE, tuple(start.args))
    _note(state, start, [waits[0]])
    state.replace(waits[0], call)
    state.graph.erase_node(start)
    return True
