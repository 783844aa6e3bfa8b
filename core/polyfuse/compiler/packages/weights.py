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


def lay_out_weights(
    graphs: Mapping[str, ExportedGraph], last: Collection[str], wants: WantsChannelsLast
) -> dict[str, ExportedGraph]:
    """Give the weights of convolutions, of which `wants` tells that their images get channels last, the same
    layout, in the graphs and as they will be stored.

    Weights are left that anything else reads, or that a graph writes to: entries share what is stored.

    Args:
        graphs: of all entries.
        last: the entries whose convolutions get channels last.
    """
    # parts of one memory are tensors of their own: each is stored by itself
    read: dict[_Region, list[tuple[str, ExportedInput, Node]]] = defaultdict(list)
    others: set[_Region] = set()
    for name, graph in graphs.items():
        for item, node in _stored(graph):
            tensor = graph.tensors[item.name]
            region = tensor.data_ptr(), tensor.dtype, tensor.shape
            read[region].append((name, item, node))
            if name not in last or item.mutated or not _convolves_only(node, wants):
                others.add(region)
    tensors = {name: dict(graph.tensors) for name, graph in graphs.items()}
    for region in read.keys() - others:
        (first, item, node), *_ = read[region]
        layout = CHANNELS_LAST[node.meta["val"].dim()]
        laid_out = tensors[first][item.name].detach().to(memory_format=layout)
        for name, item, node in read[region]:
            tensors[name][item.name] = laid_out
            node.meta["val"] = node.meta["val"].to(memory_format=layout)
    return {name: replace(graph, tensors=tensors[name]) for name, graph in graphs.items()}


def _stored(graph: ExportedGraph) -> Iterator[tuple[ExportedInput, Node]]:
    """The inputs of a graph that are tensors of the model."""
    nodes = (node for node in graph.module.graph.nodes if node.op == "placeholder")
    for item, node in zip(graph.inputs, nodes, strict=True):
        if item.origin != "argument" and type(graph.tensors[item.name]) in (torch.Tensor, torch.nn.Parameter):
            yield item, node


def _convolves_only(node: Node, wants: WantsChannelsLast) -> bool:
    """Whether a tensor is a weight with a window and several channels, and nothing else."""
    weight = node.meta["val"]
    if weight.dim() not in CHANNELS_LAST or not weight.is_contiguous():
        return False
    if weight.shape[1] == 1 or all(n == 1 for n in weight.shape[2:]) or not node.users:
        return False
    for user in node.users:
        if user.target is not _CONVOLUTION or user.args[0] is node or user.args[2] is node or user.args[6]:
            return False
        if wants(user.args[0].meta["val"], weight, False) is ChannelsLast.NONE:
            return False
    return True
