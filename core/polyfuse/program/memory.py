"""Where an intermediate tensor's memory comes from: which dead storage a new buffer takes over.

Two buffers may share storage if device, element type and the size of the storage agree, compared as symbolic
expressions and never by example values. A freed storage waits for its next owner only as long as that does
not raise the program's peak: what nobody takes, or would be held at the wrong moment, is released at its last
use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from polyfuse.ir.nodes import Buffer
from polyfuse.schedule.kernels.lifetimes import StorageKey
from polyfuse.symbolic import example_value


def storage_bytes(buffer: Buffer, hints: Mapping[str, int]) -> int:
    """Bytes of a buffer's storage for the example inputs."""
    return example_value(buffer.storage, hints) * buffer.itemsize


@dataclass(frozen=True)
class Lifetime:
    """When a buffer's storage is in use.

    Attributes:
        name: the buffer.
        key: what it may be shared with.
        size: bytes, for the example inputs.
        first: step that writes it first.
        last: step after which it is dead; None if it outlives the program.
        poolable: whether its storage may go to another buffer: nobody else knows it.
        allocated: whether the program allocates it (an operator may have made it instead).
        takes: the dying buffer whose storage it writes over, by decision of the scheduler; ``""`` if none.
    """

    name: str
    key: StorageKey
    size: int
    first: int
    last: int | None
    poolable: bool
    allocated: bool
    takes: str = ""


@dataclass(frozen=True)
class MemoryPlan:
    """The outcome, in bytes for the example inputs; inputs themselves are not counted.

    Attributes:
        takes: buffer -> the dead buffer whose storage it takes over.
        peak: most bytes in use at once.
        allocated: bytes allocated anew, all allocations together.
    """

    takes: dict[str, str]
    peak: int
    allocated: int


class Block(Protocol):
    """Memory that is held for some steps besides that of single buffers."""

    @property
    def size(self) -> int:
        """Bytes."""

    @property
    def first(self) -> int:
        """The step in which it is allocated."""

    @property
    def last(self) -> int:
        """The step after which it is released."""


def plan_memory(
    lifetimes: Sequence[Lifetime],
    steps: int,
    reuse: bool = True,
    blocks: Sequence[Block] = (),
    inputs: Sequence[Block] = (),
) -> MemoryPlan:
    """Decide reuse for buffers in the order of their first writes.

    Args:
        lifetimes: in the order in which the buffers come into being.
        steps: number of steps of the program.
        reuse: whether storage is shared other than where the scheduler decided so.
        blocks: other memory that the program holds.
        inputs: those that it releases, which say when its peak really is.
    """
    live = _live_bytes(lifetimes, steps)
    _hold(live, blocks)
    peak = max(live, default=0)
    takes = {b.name: b.takes for b in lifetimes if b.takes}
    if reuse:
        _hold(live, inputs)
        _share(lifetimes, live, max(live, default=0), takes)
    fresh = sum(b.size for b in lifetimes if b.allocated and b.name not in takes)
    fresh += sum(block.size for block in blocks)
    return MemoryPlan(takes, peak, fresh)


def _hold(live: list[int], blocks: Sequence[Block]) -> None:
    for block in blocks:
        for step in range(block.first, block.last + 1):
            live[step] += block.size


def _live_bytes(lifetimes: Sequence[Lifetime], steps: int) -> list[int]:
    """Bytes in use during each step when every buffer is released right after its last use."""
    change = [0] * (steps + 1)
    for buffer in lifetimes:
        # a storage that is handed over in a step is counted there once, for its new owner's sake
        start = buffer.first + 1 if buffer.takes else buffer.first
        end = steps - 1 if buffer.last is None else buffer.last
        if start <= end:
            change[start] += buffer.size
            change[end + 1] -= buffer.size
    return list(accumulate(change))[:steps]


def _share(lifetimes: Sequence[Lifetime], live: list[int], peak: int, takes: dict[str, str]) -> None:
    gone = set(takes.values())
    dying: dict[int, list[Lifetime]] = {}
    for buffer in lifetimes:
        if buffer.last is not None and buffer.poolable and buffer.name not in gone:
            dying.setdefault(buffer.last, []).append(buffer)
    pool: dict[StorageKey, list[Lifetime]] = {}
    freed_up_to = 0
    for buffer in sorted(lifetimes, key=lambda b: b.first):
        for step in range(freed_up_to, buffer.first):
            for dead in dying.get(step, ()):
                pool.setdefault(dead.key, []).append(dead)
        freed_up_to = max(freed_up_to, buffer.first)
        waiting = pool.get(buffer.key)
        if not buffer.allocated or buffer.takes or not waiting:
            continue
        dead = waiting[-1]
        held = range((dead.last or 0) + 1, buffer.first)
        if all(live[step] + dead.size <= peak for step in held):
            waiting.pop()
            takes[buffer.name] = dead.name
            for step in held:
                live[step] += dead.size
