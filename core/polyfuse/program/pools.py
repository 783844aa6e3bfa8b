"""Intermediate tensors laid out in one block of memory for each device, by the option `memory_pools`.

In place of handing whole storages on, every buffer gets a range of bytes in a pool, such that buffers which
live at the same time do not overlap. A program then makes one allocation where it made many, and sizes need
not be equal for memory to be used again; but a pool is held from the first of its buffers to the last.

On the CPU the large buffers lie so without being asked for, in a block that is kept from call to call
(`keep_memory`).

Only buffers of known size take part whose storage nobody else knows: neither results nor what operators
share.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from polyfuse.ir.nodes import Buffer
from polyfuse.program.memory import Lifetime, itemsize, storage_size

__all__ = ["ALIGNMENT", "PoolSlice", "Pool", "plan_pools"]

ALIGNMENT = 64
"""Of every buffer in a pool, in bytes: a cache line, and more than any vector load needs."""

_LARGE, _WORTH_KEEPING = 128 << 10, 4 << 20
"""Bytes from which on the C library takes memory from the system, and from which on it may give it back when
it is free, so that the next call gets fresh pages."""


@dataclass(frozen=True)
class Pool:
    """One block of memory.

    Attributes:
        name: its variable.
        device: where it is.
        size: bytes.
        first, last: the steps between which it is in use.
        kept: whether its memory is kept between calls.
    """

    name: str
    device: str
    size: int
    first: int
    last: int
    kept: bool = False


@dataclass(frozen=True)
class PoolSlice:
    """Where a buffer lies: `offset` bytes from the start of a pool."""

    pool: Pool
    offset: int


@dataclass(frozen=True)
class _Group:
    """Buffers at one place: each is written over the one before, by decision of the scheduler."""

    names: tuple[str, ...]
    size: int
    first: int
    last: int


def kept_pools(lifetimes: Sequence[Lifetime], buffers: Mapping[str, Buffer]) -> dict[str, PoolSlice]:
    """The slices of large buffers, in a pool whose memory is kept between calls; none where that is small."""
    slices = plan_pools(lifetimes, buffers, _LARGE)
    large = {part.pool for part in slices.values() if part.pool.size >= _WORTH_KEEPING}
    kept = {pool: replace(pool, kept=True) for pool in large}
    return {name: replace(part, pool=kept[part.pool]) for name, part in slices.items() if part.pool in large}


def plan_pools(
    lifetimes: Sequence[Lifetime], buffers: Mapping[str, Buffer], least: int = 0
) -> dict[str, PoolSlice]:
    """The slices of the buffers of at least so many bytes that share pools, by name; a device with a single
    one gets no pool.
    """
    slices: dict[str, PoolSlice] = {}
    for number, (device, found) in enumerate(_groups(lifetimes, buffers).items()):
        groups = [group for group in found if group.size >= least]
        if len(groups) > 1:
            offsets = _offsets(groups)
            size = max(offset + group.size for group, offset in zip(groups, offsets, strict=True))
            first, last = min(g.first for g in groups), max(g.last for g in groups)
            pool = Pool(f"pool_{number}", device, size, first, last)
            for group, offset in zip(groups, offsets, strict=True):
                slices.update(dict.fromkeys(group.names, PoolSlice(pool, offset)))
    return slices


def _groups(lifetimes: Sequence[Lifetime], buffers: Mapping[str, Buffer]) -> dict[str, list[_Group]]:
    """What can lie in a pool, by device."""
    chains: dict[str, list[Lifetime]] = {}
    start: dict[str, str] = {}
    for item in lifetimes:
        start[item.name] = start.get(item.takes, item.takes) if item.takes else item.name
        chains.setdefault(start[item.name], []).append(item)
    found: dict[str, list[_Group]] = {}
    for chain in chains.values():
        sizes = [_bytes(buffers[item.name]) for item in chain]
        fits = all(item.allocated and item.poolable and item.last is not None for item in chain)
        if fits and all(size is not None and size > 0 for size in sizes):
            size = max(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes if size is not None)
            last = max(item.last for item in chain if item.last is not None)
            group = _Group(tuple(item.name for item in chain), size, chain[0].first, last)
            found.setdefault(buffers[chain[0].name].device, []).append(group)
    return found


def _offsets(groups: Sequence[_Group]) -> list[int]:
    """An offset for each group, large ones first: the lowest that is free while the group lives."""
    offsets: dict[int, int] = {}
    for number in sorted(range(len(groups)), key=lambda n: (-groups[n].size, groups[n].first)):
        group = groups[number]
        taken = sorted(
            (offset, offset + groups[other].size)
            for other, offset in offsets.items()
            if groups[other].first <= group.last and group.first <= groups[other].last
        )
        offsets[number] = _gap(taken, group.size)
    return [offsets[number] for number in range(len(groups))]


def _gap(taken: Iterable[tuple[int, int]], size: int) -> int:
    """The lowest offset of so many free bytes, where `taken` are ranges in the order of their starts."""
    offset = 0
    for start, end in taken:
        if start - offset >= size:
            break
        offset = max(offset, end)
    return offset


def _bytes(buffer: Buffer) -> int | None:
    """Bytes of a storage, if they are known before the program runs and kernels know the type."""
    elements = storage_size(buffer.size, buffer.stride)
    known = isinstance(elements, int) and buffer.dtype is not None
    return elements * itemsize(buffer) if known and isinstance(elements, int) else None
