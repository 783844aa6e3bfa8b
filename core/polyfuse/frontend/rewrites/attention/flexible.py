"""Flexible attention on the CPU as the operators by which eager mode computes it, which fuse: two matmuls,
and between them `score_mod`, `mask_mod` and a softmax. Scores are held in memory, as in eager mode.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch.fx import GraphModule, Node

from polyfuse.frontend.rewrites.tools import Rewriting, same_number
from polyfuse.torch_compat import ops

aten = torch.ops.aten

_NAME: Final = "higher_order.flex_attention"

_LOG2: Final = math.log(2)
"""The call's second and third result are logarithms to the base of two."""


def spell_out_flexible(state: Rewriting) -> int:
    """Replace calls of `flex_attention` on tensors of the CPU, whose functions compute each score by itself.

    Not those in double precision, of which PyTorch's fake tensors and eager mode give sums of other types.
    """
    count = 0
    if state.stage != "inference":
        return 0  # PyTorch has no gradients of it on the CPU
    for node in state.nodes():
        if ops.op_name(node.target) != _NAME:
            continue
        query = node.args[0].meta["val"]
        if query.device.type != "cpu" or query.dtype is torch.float64:
            continue
        if state.lowered_elsewhere(state, node):
            continue
        functions = _functions(state.module, node)
        if functions is not None and state.spend():
            _Spelled(state, node).replace(*functions)
            count += 1
    return count


def _functions(module: GraphModule, node: Node) -> tuple[GraphModule, GraphModule] | None:
    """`score_mod` and `mask_mod`, where scores and positions may be whole tensors in them: what each computes
    is element by element, or one element of a tensor for each.
    """
    found = tuple(getattr(module, str(each.target)) for each in (node.args[3], node.args[4][-1]))
    for function in found:
        for inner in function.graph.nodes:
            if inner.op == "get_attr" or (inner.op == "call_function" and not _is_of_each(inner)):
                return None
    return found


def _is_of_each(node: Node) -> bool:
    if node.target is aten.index.Tensor:
        table, indices = node.args
        return len(indices) == table.meta["val"].dim() and None not in indices
    if node.target in (aten.full.default, aten.scalar_tensor.default, aten.new_ones.default):
        return node.meta["val"].dim() == 0
    return torch.Tag.pointwise in getattr(node.target, "tags", ())


class _Spelled:
    """One call on its way: new nodes stand before it."""

    def __init__(self, state: Rewriting, node: Node) -> None:
        self.state, self.node = state, node

    def call(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        """A new node."""
        return self.state.call_before(self.node, target, args, kwargs)

    def replace(self, score_mod: GraphModule, mask_mod: GraphModule) -> None:
        """The call's results, computed by operators."""
        query, key, value, _, _, scale, _, score_others, mask_others = self.node.args
        wide, cpu = torch.float32, torch.device("cpu")
        sizes = query.meta["val"].shape
        keys, values = (self._shared(each, sizes) for each in (key, value))
        left, right = self._as(query, wide), self.call(aten.transpose.int, self._as(keys, wide), 2, 3)
        scores = self.call(aten.mul.Tensor, self._matmul(left, right), scale)
        positions = self._positions(scores)
        scores = self._as(self._computed(score_mod, (scores, *positions, *score_others)), wide)
        allowed = self._computed(mask_mod, (*positions, *mask_others))
        nothing = self.call(aten.full.default, [], -math.inf, dtype=wide, device=cpu)
        scores = self.call(aten.where.self, allowed, scores, nothing)
        greatest = self.call(aten.amax.default, scores, [3], True)
        # a row without keys gives zeros
        zero = self.call(aten.full.default, [], 0.0, dtype=wide, device=cpu)
        empty = self.call(aten.eq.Scalar, greatest, -math.inf)
        above = self.call(aten.where.self, empty, zero, greatest)
        weights = self.call(aten.exp.default, self.call(aten.sub.Tensor, scores, above))
        total = self.call(aten.sum.dim_IntList, weights, [3], True)
        logarithm = self.call(aten.add.Tensor, self.call(aten.log.default, total), above)
        total = self.call(aten.where.self, empty, self.call(aten.add.Scalar, zero, 1.0), total)
        weights = self._as(self.call(aten.div.Tensor, weights, total), query.meta["val"].dtype)
        results = [self._laid_out(self._matmul(weights, values))]
        for each in (logarithm, greatest):
            found = self.call(aten.squeeze.dim, each, 3)
            results.append(self.call(aten.div.Tensor, found, _LOG2))
        for user in list(self.node.users):
            self.state.replace(user, results[user.args[1]])
        self.state.graph.erase_node(self.node)

    def _as(self, node: Node, dtype: torch.dtype) -> Node:
        known = node.meta["val"].dtype is dtype
        return node if known else self.call(aten._to_copy.default, node, dtype=dtype)

    def _shared(self, node: Node, sizes: Sequence[Any]) -> Node:
        """Keys or values for each sequence and head of the queries."""
        batch, heads, length, width = node.meta["val"].shape
        groups = sizes[1] // heads
        if groups == 1 and batch == sizes[0]:
            return node
        node = self.call(aten.unsqueeze.default, node, 2)
        node = self.call(aten.expand.default, node, [sizes[0], heads, groups, length, width])
        node = self.call(aten.clone.default, node, memory_format=torch.contiguous_format)
        return self.call(aten.view.default, node, [sizes[0], sizes[1], length, width])

    def _matmul(self, left: Node, right: Node) -> Node:
        """Of the last two dimensions of four."""
        batch, heads, rows, _ = left.meta["val"].shape
        columns = right.meta["val"].shape[3]
        product = self.call(aten.bmm.default, self._flat(left), self._flat(right))
        return self.call(aten.view.default, product, [batch, heads, rows, columns])

    def _flat(self, node: Node) -> Node:
        """Matrices of all sequences and heads one behind the other."""
        value = node.meta["val"]
        if not same_number(value.stride(0), value.stride(1) * value.shape[1]):
            node = self.call(aten.clone.default, node, memory_format=torch.contiguous_format)
        return self.call(aten.view.default, node, [value.shape[0] * value.shape[1], *value.shape[2:]])

    def _positions(self, scores: Node) -> list[Node]:
        """Numbers of sequence, head, query and key, each along its own dimension."""
        found = []
        for dim, size in enumerate(scores.meta["val"].shape):
            kind = {"dtype": torch.int32, "device": torch.device("cpu")}
            numbers = self.call(aten.arange.start_step, 0, size, 1, **kind)
            shape = [-1 if each == dim else 1 for each in range(4)]
            found.append(self.call(aten.view.default, numbers, shape))
        return found

    def _computed(self, function: GraphModule, arguments: Sequence[Any]) -> Any:
        """What a function of scalars gives for each of them."""
        given = iter(arguments)
        known: dict[Node, Any] = {}
        for node in function.graph.nodes:
            if node.op == "placeholder":
                known[node] = next(given)
            elif node.op == "output":
                (result,) = node.args[0] if isinstance(node.args[0], (tuple, list)) else node.args
                return known[result]
            else:
                args = torch.fx.map_arg(node.args, known.__getitem__)
                kwargs = torch.fx.map_arg(node.kwargs, known.__getitem__)
                known[node] = self.call(node.target, *args, **kwargs)
        raise AssertionError("a function without a result")

    def _laid_out(self, result: Node) -> Node:
        """The first result with its dimensions in memory in the order in which the query has them."""
        wanted = self.node.meta["val"][0]
        if result.meta["val"].stride() == wanted.stride():
            return result
        order = sorted(range(4), key=wanted.stride().__getitem__, reverse=True)
        moved = self.call(aten.permute.default, result, order)
        moved = self.call(aten.clone.default, moved, memory_format=torch.contiguous_format)
        return self.call(aten.permute.default, moved, [order.index(dim) for dim in range(4)])
