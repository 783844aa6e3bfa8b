"""Weights of convolutions as kernels of our own read them: channels last, once and for all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Final, TypeAlias

import torch
from torch.fx import Node

from polyfuse.frontend.exported import ExportedGraph, ExportedInput
from polyfuse.frontend.graph import CHANNELS_LAST, ChannelsLast, WantsChannelsLast

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
