"""How the tensors of a call lie in memory."""

from __future__ import annotations

from polyfuse.ir.nodes import Buffer, Pointwise, View
from polyfuse.plugin import CallSite
from polyfuse.symbolic import contiguous_strides


def target(site: CallSite) -> Buffer:
    """Where the reader puts its result."""
    reader: Pointwise | None = site.reader
    return site.output if reader is None else site.buffers[reader.output]


def contiguous(buffer: Buffer) -> bool:
    """Whether elements follow each other row by row, without gaps."""
    return buffer.stride == contiguous_strides(buffer.size)


def order(tensor: Buffer | View) -> frozenset[str]:
    """How a tensor lies without gaps: with its channels "second", "last", both where there is no difference,
    or neither.
    """
    batch, channels, *extents = tensor.size
    outer, *inner, step = contiguous_strides((batch, *extents, channels))
    orders = {"second": contiguous_strides(tensor.size), "last": (outer, step, *inner)}
    if not extents[1:]:  # the library knows no such order of images with one extent
        del orders["last"]
    return frozenset(name for name, stride in orders.items() if tensor.stride == stride)
