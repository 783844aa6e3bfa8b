"""A device that records, made of ordinary memory and plain Python.

A replay calls the program again on what is at the recorded addresses, and writes the results to the recorded
addresses. It also does the harm that the real thing may do: memory that the pool was free to use when the
recording was made, and memory of results that were recorded later (which may lie over what this recording
computes on the way), is filled with nonsense. Only correct bookkeeping keeps anybody's data alive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from polyfuse.runtime.devices.host import HostDevice
from polyfuse.runtime.devices.registry import use_device
from polyfuse.runtime.graphs.memory import forget_graph_memory
from polyfuse.torch_compat.devices.device_graphs import storage_at, storage_use

NONSENSE = 0x7F  # a byte of which floating-point numbers are NaN or huge


@dataclass(eq=False)
class Block:
    """Memory of a pool, which the pool's recordings see through storages that do not own it."""

    memory: torch.Tensor
    number: int
    storage: int = 0
    base: int = 0

    @property
    def in_use(self) -> bool:
        return storage_use(self.storage) > self.base

    def scribble(self) -> None:
        self.memory.fill_(NONSENSE)


@dataclass(eq=False)
class FakePool:
    blocks: list[Block] = field(default_factory=list)
    storages: list[torch.UntypedStorage] = field(default_factory=list)

    def free(self) -> list[Block]:
        """Blocks in memory that nobody uses."""
        used = {block.memory.data_ptr() for block in self.blocks if block.in_use}
        return [block for block in self.blocks if block.memory.data_ptr() not in used]

    def take(self, nbytes: int, taken: Sequence[Block]) -> torch.Tensor:
        """Memory that nobody uses if there is some of this size, new memory otherwise."""
        addresses = {block.memory.data_ptr() for block in taken}
        for block in self.free():
            if block.memory.numel() == nbytes and block.memory.data_ptr() not in addresses:
                return block.memory
        return torch.empty(nbytes, dtype=torch.uint8)


class Arguments(list[Any]):
    """The inputs of a program, which a program that begins may replace. `give` makes what comes to be at a
    position of what is there and what was to be.
    """

    def __init__(self, values: Sequence[Any], give: Callable[[int, Any, Any], Any]) -> None:
        super().__init__(values)
        self.give = give

    def __setitem__(self, position: Any, value: Any) -> None:
        super().__setitem__(position, self.give(position, self[position], value))


@dataclass(eq=False)
class FakeGraph:
    device: FakeDevice
    program: Any
    args: list[Any]
    targets: list[torch.Tensor | None]
    pool: FakePool
    number: int
    harmed: list[Block]
    spared: set[int]
    own: list[Block]
    live: bool = True

    def replay(self) -> None:
        assert self.live, "a recording that was forgotten is replayed"
        self.device.replays += 1
        # its buffers are where they were
        results = self.program(Arguments(self.args, lambda _, there, new: there))
        values = [r.clone() if isinstance(r, torch.Tensor) else r for r in results]
        later = [
            b for b in self.pool.blocks if b.number > self.number and b.memory.data_ptr() not in self.spared
        ]
        for block in (*self.harmed, *later):
            block.scribble()
        for target, value in zip(self.targets, values, strict=True):
            if target is not None:
                target.copy_(value)

    def reset(self) -> None:
        self.live = False
        self.device.forgotten += 1


class FakeDevice:
    """Counts what it is asked for. `fail` is raised by the next recording."""

    def __init__(self) -> None:
        self.pools: list[FakePool] = []
        self.recorded = 0
        self.replays = 0
        self.forgotten = 0
        self.followed = 0
        self.recording = False
        self.at_work = False
        """Whether a program runs in order to be recorded."""
        self.fail: Exception | None = None
        self.generators: list[torch.Generator] = []
        self.graphs: list[FakeGraph] = []

    def new_pool(self) -> FakePool:
        self.pools.append(FakePool())
        return self.pools[-1]

    def is_recording(self) -> bool:
        return self.recording

    def follow(self) -> None:
        self.followed += 1

    def record(
        self, program: Any, args: list[Any], pool: FakePool, generators: Sequence[torch.Generator]
    ) -> tuple[FakeGraph, Sequence[Any]]:
        self.generators += generators
        # what it reads is whatever will be at these addresses
        seen = [_alias(a) if isinstance(a, torch.Tensor) else a for a in args]
        before = [_spread(a).clone() if isinstance(a, torch.Tensor) else a for a in seen]
        if self.fail is not None:
            error, self.fail = self.fail, None
            args.clear()
            raise error
        self.at_work = True

        def give(position: int, there: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
            made, seen[position] = self._buffer(new, there, pool)
            return made

        given_to = Arguments(args, give)
        args.clear()
        try:
            results = program(given_to)
        except Exception:
            self._undo(seen, before)
            raise
        finally:
            self.at_work = False
        inputs = {a.untyped_storage().data_ptr() for a in seen if isinstance(a, torch.Tensor)}
        # what inputs let go of while the program ran, the pool could use as well
        free = pool.free()
        spared = {b.memory.data_ptr() for b in pool.blocks} - {b.memory.data_ptr() for b in free}
        with torch.inference_mode(False):
            own, given, targets = self._laid_out(results, inputs, pool)
        self._undo(seen, before)
        self.recorded += 1
        graph = FakeGraph(self, program, seen, targets, pool, self.recorded, free, spared, own)
        self.graphs.append(graph)
        return graph, given

    def _buffer(
        self, like: torch.Tensor, content: torch.Tensor, pool: FakePool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Memory of the pool that a program asked for before it did anything, as it holds it and as replays
        find it.
        """
        with torch.inference_mode(False):
            memory = pool.take(like.untyped_storage().nbytes(), [])
            storage = storage_at(memory.data_ptr(), memory.numel(), torch.device("cpu"))
            block = Block(memory, self.recorded + 1, storage._cdata)
            pool.storages.append(storage)
            pool.blocks.append(block)
            block.base = storage_use(storage._cdata)
            made = _window(storage, like)
            _spread(made).copy_(_spread(content))
            return made, _alias(made)

    def _undo(self, seen: Sequence[Any], before: Sequence[Any]) -> None:
        """Nothing was computed."""
        for alias, value in zip(seen, before, strict=True):
            if isinstance(alias, torch.Tensor):
                _spread(alias).copy_(value)

    def _laid_out(
        self, results: Sequence[Any], inputs: set[int], pool: FakePool
    ) -> tuple[list[Block], list[Any], list[torch.Tensor | None]]:
        """Results in blocks of the pool, a block for each storage; inputs passed on stay what they are."""
        own: dict[int, tuple[Block, torch.UntypedStorage]] = {}
        given: list[Any] = []
        targets: list[torch.Tensor | None] = []
        for result in results:
            if not isinstance(result, torch.Tensor) or result.untyped_storage().data_ptr() in inputs:
                given.append(result)
                targets.append(None)
                continue
            source = result.untyped_storage()
            if source.data_ptr() not in own:
                memory = pool.take(source.nbytes(), [block for block, _ in own.values()])
                storage = storage_at(memory.data_ptr(), source.nbytes(), torch.device("cpu"))
                block = Block(memory, self.recorded + 1)
                own[source.data_ptr()] = block, storage
            block, storage = own[source.data_ptr()]
            given.append(_window(storage, result))
            mine = storage_at(block.memory.data_ptr(), source.nbytes(), torch.device("cpu"))
            targets.append(_window(mine, result))
        for block, storage in own.values():
            # the block only watches who holds the storage
            block.storage = storage._cdata
            pool.storages.append(storage)
            pool.blocks.append(block)
            holders = [g for g in given if isinstance(g, torch.Tensor)]
            block.base = storage_use(storage._cdata) - sum(
                1 for g in holders if g.untyped_storage()._cdata == storage._cdata
            )
        return [block for block, _ in own.values()], given, targets


def _window(storage: torch.UntypedStorage, like: torch.Tensor) -> torch.Tensor:
    made = torch.empty(0, dtype=like.dtype)
    return made.set_(storage, like.storage_offset(), like.shape, like.stride())


def _alias(tensor: torch.Tensor) -> torch.Tensor:
    """Whatever is at the tensor's address."""
    storage = tensor.untyped_storage()
    return _window(storage_at(storage.data_ptr(), storage.nbytes(), tensor.device), tensor)


def _spread(tensor: torch.Tensor) -> torch.Tensor:
    for dim, (n, s) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if n > 1 and s == 0:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


class RecordingHost(HostDevice):
    """The host, with a recorder."""

    def __init__(self, made: FakeDevice) -> None:
        super().__init__("cpu")
        self.made = made

    def recorder(self, index: int | None = None) -> FakeDevice:
        return self.made


@contextmanager
def fake_graph_device() -> Iterator[FakeDevice]:
    """Let the CPU record, with a memory of its own."""
    device = FakeDevice()
    use_device("cpu", RecordingHost(device))
    forget_graph_memory("cpu")
    try:
        yield device
    finally:
        use_device("cpu", None)
        forget_graph_memory("cpu")
