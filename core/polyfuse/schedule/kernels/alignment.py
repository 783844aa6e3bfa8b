"""Which buffers start at round addresses, so that kernels may load several elements at once."""

from __future__ import annotations

from typing import Any

from polyfuse.ir.graph import Graph
from polyfuse.ir.nodes import Buffer, Collective, ExternCall

_ROUND = 64
"""What torch's allocators align to, at least."""

_ALLOCATING = ("_c10d_functional.", "polyfuse_symmetric.")
"""Collectives whose results are allocated by torch, whatever their group does."""


def aligned_buffers(graph: Graph, checked: bool) -> frozenset[str]:
    """Buffers that start where an allocation does.

    Inputs are taken to lie as they did when traced, and results of operators as allocated: the host program
    checks both and copies what does not. It looks at results only if `checked`.
    """
    inputs = {item.name for item in graph.inputs if item.kind == "tensor" and item.address != "any"}
    elsewhere: set[str] = set()
    for node in graph.nodes:
        if isinstance(node, ExternCall) and not _allocates(node, checked):
            elsewhere.update(node.outputs)

    def is_aligned(buffer: Buffer) -> bool:
        if buffer.kind in ("temp", "status"):
            return buffer.name not in elsewhere
        if buffer.kind == "constant":
            return _starts_round(graph.objects.get(buffer.name))
        return buffer.name in inputs

    return frozenset(buffer.name for buffer in graph.buffers.values() if is_aligned(buffer))


def _allocates(node: ExternCall, checked: bool) -> bool:
    """Whether the results of a call start where an allocation does, or are looked at."""
    if isinstance(node, Collective):
        # nobody looks at them before they are complete; these are allocated, or parts of a whole that is
        return node.op.startswith(_ALLOCATING) and set(node.aliases) <= set(node.outputs)
    return not node.aliases and (checked or node.out not in ("single", "tuple"))


def _starts_round(tensor: Any) -> bool:
    try:
        return tensor is not None and tensor.data_ptr() % _ROUND == 0
    except RuntimeError:  # a tensor without memory of its own
        return False
