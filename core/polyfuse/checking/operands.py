"""Copies of a launch's operands that lie to each other as the operands do.

Operands that share memory share the copy's, at the same distances. Only what the kernel may touch is copied,
to an address with the same remainder by `_ALIGNMENT`, and between known bytes, so that a kernel that writes
beside its buffers is seen to do it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from polyfuse.symbolic import evaluate

if TYPE_CHECKING:
    from polyfuse.ir.kernel import Kernel, KernelArg

_ALIGNMENT = 256
_GUARD = 1024
_PATTERN = 0xA5


@dataclass(frozen=True)
class Span:
    """Where an operand's elements lie: `nbytes` from `offset` on in a block, by the block's number."""

    block: int
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Layout:
    """How operands lie to each other.

    Attributes:
        spans: of each operand; None for sizes.
        blocks: first address and bytes of each range of memory that operands cover.
        sizes: values of the kernel's sizes.
    """

    spans: tuple[Span | None, ...]
    blocks: tuple[tuple[int, int], ...]
    sizes: tuple[tuple[str, int], ...]

    @property
    def alignments(self) -> tuple[int, ...]:
        """The largest power of two, up to 64, that the address of each operand is a multiple of."""
        found = (self.blocks[span.block][0] + span.offset for span in self.spans if span is not None)
        return tuple(min(64, address & -address) if address else 64 for address in found)

    @property
    def aliases(self) -> str:
        """Which operands share memory, and at which distance; empty if none do."""
        shared: dict[int, list[str]] = {}
        for number, span in enumerate(self.spans):
            if span is not None:
                shared.setdefault(span.block, []).append(f"{number}+{span.offset}")
        return " ".join(",".join(names) for names in shared.values() if len(names) > 1)


@dataclass(frozen=True)
class Block:
    """A copy of one range of memory: its bytes within a larger allocation."""

    memory: Tensor
    start: int
    nbytes: int

    @property
    def bytes(self) -> Tensor:
        """The copied bytes."""
        return self.memory[self.start : self.start + self.nbytes]

    def is_intact(self) -> bool:
        """Whether the bytes before and behind it are as they were."""
        before, after = self.memory[: self.start], self.memory[self.start + self.nbytes :]
        return bool((before == _PATTERN).all()) and bool((after == _PATTERN).all())


@dataclass(frozen=True)
class Copied:
    """Operands that can be launched with instead of others."""

    operands: tuple[Tensor | int, ...]
    blocks: tuple[Block, ...]


class HasArguments(Protocol):
    """A kernel, or what stands for one."""

    @property
    def args(self) -> tuple[KernelArg, ...]:
        """What it is called with."""


def layout_of(kernel: HasArguments, operands: Sequence[object]) -> Layout | None:
    """How the operands of a launch lie; None where they are not tensors with memory."""
    sizes = {
        arg.name: int(value)  # type: ignore[call-overload]
        for arg, value in zip(kernel.args, operands, strict=True)
        if arg.kind == "size"
    }
    ranges: list[tuple[int, int, int]] = []
    for number, (arg, value) in enumerate(zip(kernel.args, operands, strict=True)):
        if arg.kind == "size":
            continue
        if not isinstance(value, Tensor) or value.device.type == "meta" or arg.numel is None:
            return None
        nbytes = evaluate(arg.numel, sizes) * value.element_size()
        start = value.storage_offset() * value.element_size()
        if value.element_size() != arg.dtype.itemsize or start + nbytes > value.untyped_storage().nbytes():
            return None
        ranges.append((value.data_ptr(), nbytes, number))
    spans: list[Span | None] = [None] * len(operands)
    blocks: list[list[int]] = []
    for start, nbytes, number in sorted(ranges):
        if not blocks or start >= blocks[-1][1] or not nbytes:
            blocks.append([start, start])
        blocks[-1][1] = max(blocks[-1][1], start + nbytes)
        spans[number] = Span(len(blocks) - 1, start - blocks[-1][0], nbytes)
    return Layout(tuple(spans), tuple((a, b - a) for a, b in blocks), tuple(sizes.items()))


def copied(operands: Sequence[object], layout: Layout) -> Copied:
    """Copies of operands, with the same layout."""
    blocks: list[Block] = []
    devices: dict[int, torch.device] = {}
    for value, span in zip(operands, layout.spans, strict=True):
        if span is not None and isinstance(value, Tensor):
            devices.setdefault(span.block, value.device)
    for number, (address, nbytes) in enumerate(layout.blocks):
        blocks.append(guarded_block(nbytes, address, devices[number]))
    out: list[Tensor | int] = []
    for value, span in zip(operands, layout.spans, strict=True):
        if span is None or not isinstance(value, Tensor):
            out.append(int(value))  # type: ignore[call-overload]
            continue
        block = blocks[span.block]
        bytes_ = block.bytes[span.offset : span.offset + span.nbytes]
        bytes_.copy_(raw(value, span.nbytes))
        out.append(_shaped(bytes_, value))
    return Copied(tuple(out), tuple(blocks))


def guarded_block(nbytes: int, address: int, device: torch.device | str) -> Block:
    """New memory between known bytes, at an address with the same remainder as another one."""
    memory = torch.full((nbytes + 2 * _GUARD + _ALIGNMENT,), _PATTERN, dtype=torch.uint8, device=device)
    start = _GUARD + (address - memory.data_ptr() - _GUARD) % _ALIGNMENT
    return Block(memory, start, nbytes)


def put_back(made: Copied, layout: Layout, operands: Sequence[object], kernel: Kernel) -> None:
    """Write what a kernel made of copies into the operands themselves."""
    for arg, value, span in zip(kernel.args, operands, layout.spans, strict=True):
        if arg.kind in ("out", "inout") and span is not None and isinstance(value, Tensor):
            source = made.blocks[span.block].bytes[span.offset : span.offset + span.nbytes]
            raw(value, span.nbytes).copy_(source)


def raw(tensor: Tensor, nbytes: int) -> Tensor:
    """Bytes of memory from a tensor's first element on."""
    flat = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    start = tensor.storage_offset() * tensor.element_size()
    with torch.no_grad():
        return flat.set_(tensor.untyped_storage(), start, (nbytes,), (1,))


def _shaped(bytes_: Tensor, like: Tensor) -> Tensor:
    """A tensor on a copy's bytes with the sizes and strides of the original, if they fit."""
    flat = bytes_.view(like.dtype)
    extent = 1 + sum((n - 1) * s for n, s in zip(like.shape, like.stride(), strict=True))
    if like.numel() == 0 or extent > flat.numel():
        return flat
    return flat.as_strided(like.shape, like.stride(), flat.storage_offset())
