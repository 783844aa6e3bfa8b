"""Watching what a program allocates, and having its recording allocate at planned addresses (`addresses`).

The device's allocator stays the owner of all memory. While a recording is made, all that is free in its pool
is held, and before each call that allocates, the range where the plan has it is let go: it is the only one
that fits. What libraries allocate by themselves is guided like what the program asks for. Where a plan does
not come true, an allocation is elsewhere; that costs memory, and can do nothing to values.
"""

from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from polyfuse.runtime.graphs.addresses import (
    BEFORE,
    Busy,
    Call,
    Group,
    Outcome,
    Request,
    Run,
    aligned,
    landed,
    least_mapped,
    make_plan,
    opened,
)
from polyfuse.torch_compat.devices.device_graphs import SeenCalls, storage_use

if TYPE_CHECKING:
    from polyfuse.runtime.devices.graphs import Allocations, Event, PoolMemory, Program

Allocate = Callable[[Sequence[int], Sequence[int], torch.dtype], torch.Tensor]

_UNKNOWN = 8
"""Calls one after the other that a run did not make, behind which it does not say what follows."""

Makers = dict[int, tuple[StorageWeakRef, Run, int]]
"""Storages that runs made, by what they are known by: the run, and which of its requests."""


@dataclass(frozen=True)
class Text:
    """The text of a program: its globals, and the names there of the functions by which it allocates."""

    namespace: dict[str, Any]
    names: tuple[str, ...]

    @classmethod
    def of(cls, namespace: dict[str, Any], device: str) -> Text:
        """That of a program for a device."""
        on_host = torch.device(device).type == "cpu"
        names = (name for name in namespace if name.startswith("empty_strided_"))
        return cls(namespace, tuple(n for n in names if n.startswith("empty_strided_cpu") == on_host))

    @contextmanager
    def seen(self, before: Callable[[Any], None]) -> Iterator[None]:
        """Let `before` see each call of the program that may allocate, before it is made: torch's operators,
        and the functions by which the text allocates.
        """

        def watched(allocate: Allocate) -> Allocate:
            def seen(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
                before((tuple(size), tuple(stride), dtype))
                return allocate(size, stride, dtype)

            return seen

        functions = {name: self.namespace[name] for name in self.names}
        self.namespace.update({name: watched(function) for name, function in functions.items()})
        try:
            with SeenCalls(before):
                yield
        finally:
            self.namespace.update(functions)


class _Inputs:
    """When a program lets go of its inputs, which others may hold as well.

    Attributes:
        released: input -> number of the call before which it had let go.
    """

    def __init__(self, args: list[Any], positions: Sequence[int]) -> None:
        self.released: dict[int, int] = {}
        self._waiting: dict[int, tuple[weakref.ref[torch.Tensor], StorageWeakRef, int, int]] = {}
        for i in positions:
            tensor = args[i]
            storage = StorageWeakRef(tensor.untyped_storage())
            use = storage_use(storage.cdata)
            self._waiting[i] = weakref.ref(tensor), storage, use, sys.getrefcount(tensor)

    def look(self, call: int) -> None:
        """Notice what it let go of before a call."""
        for i, (ref, storage, use, count) in list(self._waiting.items()):
            tensor = ref()
            if storage.expired():
                gone = True
            elif tensor is None:
                gone = storage_use(storage.cdata) < use
            else:
                # a view of it counts as the input
                gone = sys.getrefcount(tensor) < count and storage_use(storage.cdata) <= use
            if gone:
                self.released[i] = call
                del self._waiting[i]


def watch(
    program: Program,
    args: list[Any],
    text: Text,
    positions: Sequence[int],
    allocations: Allocations,
    makers: Makers,
) -> tuple[Sequence[Any], Run | None]:
    """Run a program, and see what it allocates and when it lets go of the inputs at some positions.

    Args:
        makers: of what earlier runs made, which learn what this one reads; and then of its results.

    Returns its results, and None where the device's allocator lets nobody watch it.
    """
    for key in [key for key, (storage, _, _) in makers.items() if storage.expired()]:
        del makers[key]
    made_by = {i: found for i in positions if (found := makers.get(args[i].untyped_storage()._cdata))}
    sizes = {i: args[i].untyped_storage().nbytes() for i in positions if i not in made_by}
    inputs = _Inputs(args, positions)
    ops: list[Any] = []
    with allocations.watch() as watched:
        if watched is None:
            return program(args), None

        def before(op: Any) -> None:
            inputs.look(len(ops))
            ops.append(op)
            watched.mark()

        with text.seen(before):
            results = program(args)
        inputs.look(len(ops))
    run, addresses = _run_of(watched.events, ops, inputs.released, sizes, allocations.least)
    if run is None:
        return results, None
    for i, (_, other, number) in made_by.items():
        other.needed[number] = max(other.needed.get(number, 0), run.released.get(i, run.end))
        if all(run is not reader for reader in other.readers):
            other.readers.append(run)
    for result in results:
        if isinstance(result, torch.Tensor):
            storage = result.untyped_storage()
            made = addresses.get(storage.data_ptr())
            if made is not None:
                makers[storage._cdata] = StorageWeakRef(storage), run, made
    return results, run


def _run_of(
    events: Sequence[Event],
    ops: Sequence[Any],
    released: Mapping[int, int],
    sizes: dict[int, int],
    least: int,
) -> tuple[Run | None, dict[int, int]]:
    """What events say, and the request that is at each address in the end; None if calls are missing."""
    calls: list[list[int]] = []
    times: list[int] = []
    found: list[list[int]] = []
    there: dict[int, int] = {}
    time = BEFORE
    for event in events:
        time += 1
        if event.kind == "call":
            calls.append([])
            times.append(time)
        elif event.kind == "allocation" and event.nbytes >= least and calls:
            calls[-1].append(len(found))
            there[event.address] = len(found)
            found.append([event.nbytes, time, 0])
        elif event.kind == "release" and event.address in there:
            found[there.pop(event.address)][2] = time
    end = time + 1
    if len(calls) != len(ops):
        return None, {}
    requests = tuple(Request(nbytes, first, last or end) for nbytes, first, last in found)
    made = tuple(Call(op, tuple(own)) for op, own in zip(ops, calls, strict=True))
    times.append(end)
    when = {position: times[call] for position, call in released.items()}
    return Run(requests, made, when, end, sizes), there


class Guide:
    """Has a recording allocate at planned addresses.

    Args:
        run: what a run of the program allocated.
        buffers: input -> bytes of the buffer that the recording begins with.
        pool: where it is recorded, as the device knows it.
        released: (address, bytes) -> when what is there, which is in use now, is free for the program.
        allocations: of the device.

    Attributes:
        limit: bytes that were planned; 0: all is the allocator's.
        expected: bytes that the pool then has when the recording is made.
        strayed: whether the program did not make the calls that were watched.
        missed: calls whose ranges were not free, or do not fit one after the other.
    """

    def __init__(
        self,
        run: Run,
        buffers: Mapping[int, int],
        pool: Any,
        released: Mapping[tuple[int, int], int],
        allocations: Allocations,
    ) -> None:
        self._run = run
        self._pool: PoolMemory = allocations.pool(pool)
        self._least = allocations.least
        self._held: dict[int, tuple[int, Any]] = {}
        self._base: int | None = None
        self._next = 0
        self._unknown = 0
        self.limit = self.expected = 0
        self.strayed = False
        self.missed = 0
        self._buffers: dict[int, list[tuple[int, int]]] = {}
        self._calls: dict[int, list[tuple[int, int]]] = {}
        self._make_plan(buffers, released, allocations)

    def _make_plan(
        self,
        buffers: Mapping[int, int],
        released: Mapping[tuple[int, int], int],
        allocations: Allocations,
    ) -> None:
        run, least, step = self._run, self._least, allocations.step
        blocks = self._pool.blocks()
        if any(a + n != b for (a, n, _), (b, _, _) in itertools.pairwise(blocks)):
            # not one range of addresses
            return
        base = blocks[0][0] if blocks else 0
        busy = [
            Busy(a - base, a - base + n, BEFORE, _last_of(a, n, released, run.end))
            for a, n, used in blocks
            if used
        ]
        large = [i for i, nbytes in buffers.items() if nbytes >= least]
        groups = _groups_of(run, buffers, least)
        others = [one for one in busy if one.last == run.end]

        mapped = sum(n for _, n, _ in blocks)
        judge, bound = None, 0
        if run.readers:
            next_groups = _groups_of(run.readers[-1], run.readers[-1].inputs, least)

            def judge(outcome: Outcome) -> int:
                own = outcome.ranges[len(large) :]
                saved = [Busy(*own[k], BEFORE, last) for k, last in run.needed.items()]
                found = make_plan(next_groups, [*others, *saved], outcome.mapped, step, least)
                return outcome.mapped if found is None else found.mapped

            saved = [Busy(0, aligned(run.requests[k].nbytes), BEFORE, n) for k, n in run.needed.items()]
            bound = max(
                least_mapped(groups, busy, mapped, step),
                least_mapped(next_groups, [*others, *saved], mapped, step),
            )
        outcome = make_plan(groups, busy, mapped, step, least, judge, bound)
        if outcome is None or outcome.plan is None:
            return
        ranges = [
            [(start, aligned(request.nbytes)) for start, request in zip(starts, group, strict=True)]
            for starts, group in zip(outcome.plan.starts, groups, strict=True)
        ]
        self._base = base if blocks else None
        self.limit, self.expected = outcome.plan.limit, outcome.mapped
        self._buffers = dict(zip(large, ranges, strict=False))
        calls = [k for k, call in enumerate(run.calls) if call.requests]
        self._calls = dict(zip(calls, ranges[len(large) :], strict=True))

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Hold all that is free of the pool, and let it grow to what is planned. Nothing of it was used."""
        if not self.limit:
            yield
            return
        blocks = self._pool.blocks()
        missing = self.limit - sum(n for _, n, _ in blocks)
        if missing > 0:
            tail = blocks[-1][1] if blocks and not blocks[-1][2] else 0
            self._hold_free(blocks[:-1] if tail else blocks)
            if missing + tail >= self._least:
                address = self._take(missing + tail)
                if self._base is None:
                    self._base = address
        try:
            self._hold_free(self._pool.blocks())
            yield
        finally:
            self._held.clear()

    def buffer(self, position: int) -> None:
        """The buffer of an input is about to be allocated."""
        if position in self._buffers:
            self._open(self._buffers[position])

    def before(self, op: Any) -> None:
        """A call is about to be made."""
        if not self.limit or self.strayed:
            return
        k = self._number_of(op)
        if k is None:
            self._unknown += 1
            if self._unknown > _UNKNOWN:
                # this is another program than the one that was watched
                self.strayed = True
                self._held.clear()
        else:
            self._next, self._unknown = k + 1, 0
            if k in self._calls:
                self._open(self._calls[k])

    def _number_of(self, op: Any) -> int | None:
        """Which call of the run this is. The first run of a program makes some more, without large requests:
        kernels are loaded, libraries prepare themselves.
        """
        calls = self._run.calls
        for k in range(self._next, len(calls)):
            if calls[k].op == op:
                return k
            if calls[k].requests:
                break
        return None

    def _take(self, nbytes: int) -> int:
        address, holder = self._pool.take(nbytes)
        self._held[address] = nbytes, holder
        return address

    def _hold_free(self, blocks: Sequence[tuple[int, int, bool]]) -> None:
        """Hold what is free. The largest of it is the only one that it fits, and then the next one is."""
        for nbytes in sorted((n for _, n, used in blocks if not used and n >= self._least), reverse=True):
            self._take(nbytes)

    def _open(self, planned: Sequence[tuple[int, int]]) -> None:
        """Let ranges be free, and nothing else that is as large."""
        if self._base is None:
            return
        wanted = [(self._base + start, size) for start, size in planned]
        blocks = self._pool.blocks()
        gaps = self._gaps(blocks)
        holes = opened(wanted, gaps, self._least)
        if holes is None or landed([size for _, size in planned], holes) is None:
            self.missed += 1
            size = sum(size for _, size in wanted)
            fitting = [(high - low, low) for low, high in gaps if high - low >= size]
            if fitting:
                holes = [(min(fitting)[1], min(fitting)[1] + size)]
            else:
                # the pool grows, from the end of what is in use
                last = blocks[-1][0] + blocks[-1][1]
                holes = [gap for gap in gaps if gap[1] == last]
        self._hold_free(blocks)
        between = [self._between(low, high) for low, high in holes]
        between.clear()

    def _between(self, low: int, high: int) -> Any:
        """Hold what is before and behind a range, and the range as long as the result lives."""
        for address in [a for a, (n, _) in self._held.items() if a < high and low < a + n]:
            del self._held[address]
        for start, nbytes, used in self._pool.blocks():
            if not used and start <= low and high <= start + nbytes:
                # what is taken is the beginning of what is free
                if low - start >= self._least:
                    self._take(low - start)
                _, holder = self._pool.take(high - low)
                rest = start + nbytes - max(low, start) - (high - low)
                if rest >= self._least:
                    self._take(rest)
                return holder
        return None

    def _gaps(self, blocks: Sequence[tuple[int, int, bool]]) -> list[tuple[int, int]]:
        """What is free or held here, as ranges (from, to)."""
        gaps: list[tuple[int, int]] = []
        for address, size, used in blocks:
            if used and address not in self._held:
                continue
            if gaps and gaps[-1][1] == address:
                gaps[-1] = gaps[-1][0], address + size
            else:
                gaps.append((address, address + size))
        return gaps


def _groups_of(run: Run, buffers: Mapping[int, int], least: int) -> list[Group]:
    """The requests of large buffers of inputs, and those of each call."""
    groups: list[Group] = [
        [Request(nbytes, BEFORE, run.released.get(i, run.end))]
        for i, nbytes in buffers.items()
        if nbytes >= least
    ]
    for call in run.calls:
        if call.requests:
            first = run.requests[call.requests[0]].first
            own = ((run.requests[r], run.needed.get(r, 0)) for r in call.requests)
            groups.append([Request(r.nbytes, first, r.last, needed) for r, needed in own])
    return groups


def run_guided(
    program: Program,
    arguments: list[Any],
    guide: Guide | None,
    text: Text | None,
    buffers: Sequence[int],
    give: Callable[[int], None],
) -> Sequence[Any]:
    """What a program returns, in a recording.

    Args:
        guide, text: of the program; without either, all is the allocator's.
        buffers: inputs that get buffers first.
        give: gives one.
    """
    if guide is None or text is None or not guide.limit:
        for i in buffers:
            give(i)
        return program(arguments)
    with guide.holding():
        for i in buffers:
            guide.buffer(i)
            give(i)
        with text.seen(guide.before):
            return program(arguments)


def _last_of(address: int, nbytes: int, released: Mapping[tuple[int, int], int], end: int) -> int:
    """When what is in a block is free: all that is known to be there."""
    times = [last for (a, n), last in released.items() if a < address + nbytes and address < a + n]
    return max(times, default=end)
