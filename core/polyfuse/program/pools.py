"""Intermediate tensors laid out in one block of memory for each device, by the option `memory_pools`.

In place of handing whole storages on, every buffer gets a range of bytes in a pool, such that buffers which
live at the same time do not overlap. A program then makes one allocation where it made many, and sizes need
not be equal for memory to be used again; but a pool is held from the first of its buffers to the last.

On the CPU the large buffers lie so without being asked for, in a block that is cached from call to call
(`keep_memory`).

Only buffers take part whose storage nobody else knows: neither results nor what operators share. Those of
known size are packed tightly, at offsets that are numbers. Those whose size follows from the inputs come
behind them, in slots: buffers that never live at the same time share one, which is as large as the largest of
them, whatever the sizes turn out to be.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from polyfuse.ir.nodes import Buffer
from polyfuse.program.memory import Lifetime
from polyfuse.symbolic import IndexLike, bounds, example_value, free_symbols, maximum

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
        extent: bytes, as a function of the sizes of the inputs.
        size: bytes, for the example inputs.
        first, last: the steps between which it is in use.
        cached: whether its memory is cached between calls.
    """

    name: str
    device: str
    extent: IndexLike
    size: int
    first: int
    last: int
    cached: bool = False


@dataclass(frozen=True)
class PoolSlice:
    """Where a buffer lies: so many units of `ALIGNMENT` bytes from the start of a pool."""

    pool: Pool
    units: IndexLike

    @property
    def offset(self) -> IndexLike:
        """The same in bytes."""
        return self.units * ALIGNMENT


@dataclass(frozen=True)
class _Group:
    """Buffers at one offset: each is written over the one before, by decision of the scheduler.

    Attributes:
        units: its size, in units of `ALIGNMENT` bytes.
        size: the same, for the example inputs.
    """

    names: tuple[str, ...]
    units: IndexLike
    size: int
    first: int
    last: int

    def overlaps(self, other: _Group) -> bool:
        """Whether both live at some time."""
        return self.first <= other.last and other.first <= self.last


def cached_pools(
    lifetimes: Sequence[Lifetime], buffers: Mapping[str, Buffer], hints: Mapping[str, int]
) -> dict[str, PoolSlice]:
    """The slices of large buffers, in a pool that is cached between calls; none where that is small.

    Sizes that follow from the inputs count as the largest that the program is for, where there is one.

    Args:
        hints: example values of the symbols that are known when a program begins.
    """
    slices = plan_pools(lifetimes, buffers, hints, _LARGE)
    pools = {part.pool for part in slices.values()}
    large = {pool for pool in pools if _most(pool.extent, pool.size) >= _WORTH_KEEPING}
    cached = {pool: replace(pool, cached=True) for pool in large}
    return {
        name: replace(part, pool=cached[part.pool]) for name, part in slices.items() if part.pool in large
    }


def plan_pools(
    lifetimes: Sequence[Lifetime], buffers: Mapping[str, Buffer], hints: Mapping[str, int], least: int = 0
) -> dict[str, PoolSlice]:
    """The slices of the buffers of at least so many bytes that share pools, by name; a device with a single
    one gets no pool.

    Args:
        hints: example values of the symbols that are known when a program begins.
    """
    slices: dict[str, PoolSlice] = {}
    for number, (device, every) in enumerate(_groups(lifetimes, buffers, hints).items()):
        groups = [group for group in every if _most(group.units, group.size) * ALIGNMENT >= least]
        if len(groups) > 1:
            known = [group for group in groups if isinstance(group.units, int)]
            offsets = _offsets(known)
            extent: IndexLike = max((at + g.size for g, at in zip(known, offsets, strict=True)), default=0)
            found: list[tuple[_Group, IndexLike]] = list(zip(known, offsets, strict=True))
            for slot in _slots([group for group in groups if not isinstance(group.units, int)]):
                found += [(group, extent) for group in slot]
                extent = extent + maximum(*(group.units for group in slot))
            first, last = min(g.first for g in groups), max(g.last for g in groups)
            size = example_value(extent, hints) * ALIGNMENT
            pool = Pool(f"pool_{number}", device, extent * ALIGNMENT, size, first, last)
            for group, units in found:
                slices.update(dict.fromkeys(group.names, PoolSlice(pool, units)))
    return slices


def _most(size: IndexLike, example: int) -> int:
    """The largest that a size may be, or the example where nothing bounds it."""
    _, most = bounds(size)
    return example if most is None else most


def _slots(groups: Sequence[_Group]) -> list[list[_Group]]:
    """Groups of one slot never live at the same time; the largest, for the example inputs, begin."""
    slots: list[list[_Group]] = []
    for group in sorted(groups, key=lambda g: (-g.size, g.first)):
        free = (slot for slot in slots if not any(group.overlaps(other) for other in slot))
        slot = next(free, None)
        if slot is None:
            slots.append([group])
        else:
            slot.append(group)
    return slots


def _groups(
    lifetimes: Sequence[Lifetime], buffers: Mapping[str, Buffer], hints: Mapping[str, int]
) -> dict[str, list[_Group]]:
    """What can lie in a pool, by device."""
    chains: dict[str, list[Lifetime]] = {}
    start: dict[str, str] = {}
    for item in lifetimes:
        start[item.name] = start.get(item.takes, item.takes) if item.takes else item.name
        chains.setdefault(start[item.name], []).append(item)
    found: dict[str, list[_Group]] = {}
    for chain in chains.values():
        sizes = [_units(buffers[item.name], hints) for item in chain]
        fits = all(item.allocated and item.poolable and item.last is not None for item in chain)
        if fits and all(size is not None and size != 0 for size in sizes):
            units = maximum(*(size for size in sizes if size is not None))
            last = max(item.last for item in chain if item.last is not None)
            names = tuple(item.name for item in chain)
            group = _Group(names, units, example_value(units, hints), chain[0].first, last)
            found.setdefault(buffers[chain[0].name].device, []).append(group)
    return found


def _offsets(groups: Sequence[_Group]) -> list[int]:
    """An offset for each group, in units, large ones first: the lowest that is free while the group lives."""
    offsets: dict[int, int] = {}
    for number in sorted(range(len(groups)), key=lambda n: (-groups[n].size, groups[n].first)):
        group = groups[number]
        taken = sorted(
            (offset, offset + groups[other].size)
            for other, offset in offsets.items()
            if groups[other].overlaps(group)
        )
        offsets[number] = _gap(taken, group.size)
    return [offsets[number] for number in range(len(groups))]


def _gap(taken: Iterable[tuple[int, int]], size: int) -> int:
    """The lowest offset of so many free units, where `taken` are ranges in the order of their starts."""
    offset = 0
    for start, end in taken:
        if start - offset >= size:
            break
        offset = max(offset, end)
    return offset


def _units(buffer: Buffer, hints: Mapping[str, int]) -> IndexLike | None:
    """Units of a storage, if they are known when the program begins and kernels know the type."""
    if buffer.dtype is None or not hints.keys() >= set(free_symbols(buffer.storage)):
        return None
    return (buffer.storage * buffer.itemsize + (ALIGNMENT - 1)) // ALIGNMENT
