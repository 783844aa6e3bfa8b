"""The tensors of models that go into one package: each once, however many entries read it; weights of
convolutions as kernels of our own read them, channels last.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import torch
from torch.fx import Node

from polyfuse.aot.container import ALIGNMENT
from polyfuse.aot.description import Weight
from polyfuse.aot.weights import spanned
from polyfuse.base.errors import PackageError
from polyfuse.frontend.exported import ExportedGraph, ExportedInput
from polyfuse.frontend.graph import CHANNELS_LAST, ChannelsLast, WantsChannelsLast


@dataclass
class _Row:
    name: str
    kind: str
    tensor: torch.Tensor
    mutable: bool = False


class WeightTable:
    """Collects tensors, and says where each lies.

    `embedded`: whether parameters and buffers are written; constants, which have no names of the user's, are
    written in any case.
    """

    def __init__(self, *, embedded: bool) -> None:
        self._embedded = embedded
        self._rows: list[_Row] = []
        self._by_name: dict[str, int] = {}

    def add(self, entry: str, name: str, kind: str, tensor: torch.Tensor, mutable: bool = False) -> int:
        """The position of a tensor; entries share those that are the same under one name.

        Raises:
            PackageError: the tensor is not dense, or another one has its name.
        """
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
            raise PackageError(
                f"{name} is a {type(tensor).__name__} of layout {tensor.layout}, which cannot be stored",
                "make it a plain dense tensor before exporting",
            )
        for candidate in (name, f"{entry}.{name}"):
            found = self._by_name.get(candidate)
            if found is None:
                self._rows.append(_Row(candidate, kind, tensor, mutable))
                self._by_name[candidate] = len(self._rows) - 1
                return len(self._rows) - 1
            if _same(self._rows[found].tensor, tensor):
                self._rows[found].mutable |= mutable
                return found
        raise PackageError(f"two tensors are called {name}", "rename one of them")

    def rows(self) -> tuple[Weight, ...]:
        """What the package says of them."""
        offsets = dict(zip(self._positions(), self._offsets(), strict=True))
        return tuple(
            Weight(
                row.name,
                row.kind,
                str(row.tensor.dtype).removeprefix("torch."),
                tuple(row.tensor.shape),
                row.tensor.stride(),
                str(row.tensor.device),
                offsets.get(position, -1),
                spanned(row.tensor).nbytes,
                row.mutable,
            )
            for position, row in enumerate(self._rows)
        )

    def written(self) -> tuple[tuple[int, torch.Tensor], ...]:
        """The tensors that are written, each with its offset."""
        tensors = (self._rows[position].tensor for position in self._positions())
        return tuple(zip(self._offsets(), tensors, strict=True))

    def _positions(self) -> list[int]:
        return [i for i, row in enumerate(self._rows) if self._embedded or row.kind == "constant"]

    def _offsets(self) -> list[int]:
        offsets: list[int] = []
        end = 0
        for position in self._positions():
            offsets.append(end)
            end += spanned(self._rows[position].tensor).nbytes
            end += -end % ALIGNMENT
        return offsets


def _same(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two tensors are one memory seen alike."""
    return (
        (first.data_ptr(), first.dtype, first.device) == (second.data_ptr(), second.dtype, second.device)
        and first.shape == second.shape
        and first.stride() == second.stride()
    )


_CONVOLUTION: Final = torch.ops.aten.convolution.default

_Region: TypeAlias = tuple[int, torch.dtype, torch.Size]
"""Where a tensor begins in memory, its type and shape."""

_Order: TypeAlias = tuple[int, ...]
"""Dimensions of a tensor, the one that is slowest in memory first."""


def lay_out_weights(
    graphs: Mapping[str, ExportedGraph], last: Collection[str], wants: WantsChannelsLast
) -> dict[str, ExportedGraph]:
    """Give the weights of convolutions the layout that kernels want, in the graphs and as they will be
    stored: channels last, where `wants` tells that their images get it.

    Weights are left that anything else reads, or that a graph writes to: entries share what is stored.

    Args:
        graphs: of all entries.
        last: the entries whose convolutions get channels last.
    """
    # parts of one memory are tensors of their own: each is stored by itself
    read: dict[_Region, list[tuple[str, ExportedInput, Node]]] = defaultdict(list)
    others: set[_Region] = set()
    orders: dict[_Region, _Order] = {}
    for name, graph in graphs.items():
        for item, node in _stored(graph):
            tensor = graph.tensors[item.name]
            region = tensor.data_ptr(), tensor.dtype, tensor.shape
            read[region].append((name, item, node))
            order = _order(node, wants) if name in last and not item.mutated else None
            if order is None or orders.setdefault(region, order) != order:
                others.add(region)
    tensors = {name: dict(graph.tensors) for name, graph in graphs.items()}
    for region in read.keys() - others:
        (first, item, _), *_ = read[region]
        order = orders[region]
        laid_out = _in_order(tensors[first][item.name].detach(), order)
        for name, item, node in read[region]:
            tensors[name][item.name] = laid_out
            node.meta["val"] = _in_order(node.meta["val"], order)
    return {name: replace(graph, tensors=tensors[name]) for name, graph in graphs.items()}


def _stored(graph: ExportedGraph) -> Iterator[tuple[ExportedInput, Node]]:
    """The inputs of a graph that are tensors of the model."""
    nodes = (node for node in graph.module.graph.nodes if node.op == "placeholder")
    for item, node in zip(graph.inputs, nodes, strict=True):
        if item.origin != "argument" and type(graph.tensors[item.name]) in (torch.Tensor, torch.nn.Parameter):
            yield item, node


def _order(node: Node, wants: WantsChannelsLast) -> _Order | None:
    """In which order, the slowest one first, kernels want the dimensions of a weight that convolutions alone
    read, all alike; None: as they are, or something else reads it.
    """
    found = {_wanted_order(user, node, wants) for user in node.users}
    return next(iter(found)) if len(found) == 1 and node.meta["val"].is_contiguous() else None


def _wanted_order(user: Node, node: Node, wants: WantsChannelsLast) -> _Order | None:
    weight = node.meta["val"]
    if user.target is not _CONVOLUTION or user.args[0] is node or user.args[2] is node:
        return None
    if weight.dim() not in CHANNELS_LAST or all(n == 1 for n in weight.shape[2:]):
        return None
    stride, padding, dilation, transposed, more, groups = user.args[3:]
    dims = weight.dim() - 2
    if transposed:
        # windows side by side: each of their pixels is a matrix of its own
        apart = (*stride, *padding, *more, *dilation) == (*weight.shape[2:], *[0] * 2 * dims, *[1] * dims)
        return (*range(2, 2 + dims), 1, 0) if apart and groups == 1 else None
    if weight.shape[1] == 1 or wants(user.args[0].meta["val"], weight, False) is ChannelsLast.NONE:
        return None
    return (0, *range(2, 2 + dims), 1)


def _in_order(tensor: torch.Tensor, order: _Order) -> torch.Tensor:
    """The same tensor with its dimensions in this order in memory."""
    back = [order.index(dim) for dim in range(len(order))]
    return tensor.permute(order).contiguous().permute(back)
