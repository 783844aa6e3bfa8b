"""Parameters that calls may read in another form, which is made once for each and lives as long."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch.fx import Node

from polyfuse.frontend.describe import mutated_placeholders
from polyfuse.frontend.graph import CHANNELS_LAST, Note
from polyfuse.frontend.rewrites.tools import Rewriting, tensor_value
from polyfuse.runtime.devices.registry import device_of
from polyfuse.runtime.frozen import room_of

_MEGABYTE = 1 << 20


@dataclass
class Packing:
    """Which parameters of a graph rewrites pack.

    Attributes:
        state: of rewriting it.
        packed: parameters, in order.
    """

    state: Rewriting
    packed: dict[Node, None] = field(default_factory=dict)

    def allows(self, node: object) -> bool:
        """Whether a node is a parameter on the host that the graph does not write to, and, without the
        option `freezing`, there is room for a copy besides those of `packed`.
        """
        if self.state.stage != "inference" or not isinstance(node, Node):
            return False
        if node not in self.state.parameters or node in self._written:
            return False
        value = tensor_value(node)
        if value is None or not device_of(value.device.type).is_host:
            return False
        if not _is_fixed(value) or not _is_dense(value):
            return False
        if self.state.settings.freezing or node in self.packed:
            return True
        return sum(map(_bytes, self.packed)) + _bytes(node) <= self._room

    def add(self, node: Node, reader: str, rewrite: str) -> None:
        """Take the room for a parameter's copy, and say so.

        Args:
            reader: who reads it.
            rewrite: who packs it.
        """
        if node in self.packed:
            return
        self.packed[node] = None
        share = f"{_bytes(node) / _MEGABYTE:.1f} MB"
        if not self.state.settings.freezing:
            share += f" of at most {self._room // _MEGABYTE} MB"
        reason = f"what is made of {node.name} is computed once for all calls, {share}"
        self.state.notes.append(Note("choice", reader, rewrite, reason))

    @cached_property
    def _room(self) -> int:
        return room_of(sum(map(_bytes, self.state.parameters)))

    @cached_property
    def _written(self) -> frozenset[Node]:
        return frozenset(mutated_placeholders(self.state.module))


def _bytes(node: Node) -> int:
    value = tensor_value(node)
    return value.numel() * value.dtype.itemsize if value is not None and _is_fixed(value) else 0


def _is_dense(value: torch.Tensor) -> bool:
    last = CHANNELS_LAST.get(value.dim())
    dense = value.is_contiguous() or (last is not None and value.is_contiguous(memory_format=last))
    return dense and value.numel() > 0


def _is_fixed(value: torch.Tensor) -> bool:
    return value.layout is torch.strided and all(isinstance(n, int) for n in value.shape)
