"""Checks that positions given by data exist: for each tensor of them, a call that raises otherwise.

They are operators like others, so that they fuse with what computes the positions. Backward graphs use the
positions of their forwards, which were checked there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from torch.fx import Node

from polyfuse.frontend.rewrite_tools import Rewriting, aten, tensor_value
from polyfuse.torch_compat import fx, ops, shapes

__all__ = ["check_positions"]

Position = tuple[Node, Node, int, bool]
"""Indices, what they select from, along which dimension, and whether they may count from the end."""


def check_positions(state: Rewriting) -> int:
    """Insert the checks; how many there are."""
    done: set[tuple[Node, Any, bool]] = set()
    for node in state.nodes():
        find = _POSITIONS.get(ops.op_name(node.target))
        for indices, selected, dim, from_end in find(node) if find else ():
            value, places = tensor_value(selected), tensor_value(indices)
            if value is None or places is None or value.ndim == 0 or places.dtype.itemsize == 1:
                continue  # a number has one place; masks and bytes select by truth
            dim %= value.ndim
            key = indices, shapes.expr_of(value.shape[dim]), from_end
            if key not in done:
                done.add(key)
                _check(state, node, indices, _size(state, node, selected, dim), from_end)
    return len(done)


def _check(state: Rewriting, node: Node, indices: Node, size: Any, from_end: bool) -> None:
    lowest = state.call_before(node, aten.add.Tensor, (indices, size)) if from_end else indices
    exists = state.call_before(
        node,
        aten.bitwise_and.Tensor,
        (
            state.call_before(node, aten.ge.Scalar, (lowest, 0)),
            state.call_before(node, aten.lt.Scalar, (indices, size)),
        ),
    )
    every = state.call_before(node, aten.all.default, (exists,))
    text = f"an index of {ops.op_name(node.target)} is out of range; give indices that exist"
    source = fx.source_text(node)
    if source:
        text = f"{text}: {source}"
    state.call_before(node, aten._assert_async.msg, (every, text))


def _size(state: Rewriting, node: Node, selected: Node, dim: int) -> Any:
    size = selected.meta["val"].shape[dim]
    return size if isinstance(size, int) else state.call_before(node, aten.sym_size.int, (selected, dim))


def _embedded(node: Node) -> Iterator[Position]:
    weight, indices, *_ = node.args
    assert isinstance(weight, Node)
    assert isinstance(indices, Node)
    yield indices, weight, 0, False


def _along_a_dimension(node: Node) -> Iterator[Position]:
    value, dim, indices, *_ = node.args
    assert isinstance(value, Node)
    assert isinstance(dim, int)
    assert isinstance(indices, Node)
    yield indices, value, dim, False


def _by_tensors(node: Node) -> Iterator[Position]:
    value, indices, *_ = node.args
    assert isinstance(value, Node)
    assert isinstance(indices, list | tuple)
    for dim, index in enumerate(indices):
        if isinstance(index, Node):
            yield index, value, dim, True


_ALONG = (
    *("index_select.default", "gather.default", "scatter.src", "scatter.value", "scatter.reduce"),
    *("scatter.value_reduce", "scatter_add.default", "scatter_reduce.two"),
)
_POSITIONS: Mapping[str, Callable[[Node], Iterator[Position]]] = MappingProxyType(
    {
        "aten.embedding.default": _embedded,
        **{f"aten.{name}": _along_a_dimension for name in _ALONG},
        "aten.index.Tensor": _by_tensors,
        "aten.index_put.default": _by_tensors,
    }
)
"""Where each operator's arguments hold positions."""
