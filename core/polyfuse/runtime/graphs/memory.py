"""The memory that recordings write to, and who holds it.

A recording writes its results to the same addresses at every replay. A caller may still hold what the last
replay put there, and other recordings may use the same memory meanwhile. Three facts keep everybody's data
safe:

* `Slot.alive`: somebody outside holds a tensor in that memory. The storage counts its holders.
* a recording is made while some slots are alive; the pool gives it no part of these, so it can never harm
  them. Those are its `protected` slots.
* a replay is possible if all slots that are alive, in its pool, are protected from it:
  `GraphMemory.blockers`.

The pool takes back memory that nobody holds. So before a new recording is made, the slots that nobody holds
outside are given up here too (`release`), and later recordings share their memory.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from polyfuse.runtime.devices.registry import device_of
from polyfuse.runtime.graphs.guided import Makers
from polyfuse.torch_compat.devices.device_graphs import (
    copy_all,
    forbid_access,
    outside_inference,
    step_number,
    storage_at,
    storage_use,
)

if TYPE_CHECKING:
    from polyfuse.runtime.devices.graphs import DeviceGraph, GraphRecorder
    from polyfuse.runtime.graphs.copied import CopiedResults

_MANY = 16
"""Recordings with results in callers' hands beyond which it is looked who has none any more."""

_MANY_STATIC = 4096
"""Parameters known to stay where they are beyond which it is looked which of them are gone."""

_OVER = (
    "this tensor is a result of a compiled function in an earlier step, and its memory was needed again;"
    " `torch.compiler.cudagraph_mark_step_begin` said that the step is over: clone what is used for longer"
)


@dataclass(frozen=True)
class Window:
    """How one result lies in its storage."""

    position: int
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


@dataclass
class HeldResults:
    """A recording's results at hand, while it has a storage at every one of its addresses.

    Attributes:
        complete: whether it has. If not, the others are empty, so that they keep no memory from the pool.
        ready: all results; None where the caller gets a new tensor.
        fresh: those, as (position, tensor to make it like, size, stride).
    """

    complete: bool = False
    ready: list[Any] = field(default_factory=list)
    fresh: list[tuple[int, torch.Tensor, tuple[int, ...], tuple[int, ...]]] = field(default_factory=list)

    def drop(self) -> None:
        """Some storage is given up."""
        self.complete = False
        self.ready.clear()
        self.fresh.clear()


class Slot:
    """One storage that a recording writes to, with the results that lie in it.

    What only a backward will read is released all at once, so of these slots one is watched for all.

    Attributes:
        address, nbytes: where it is.
        windows: the results in it; `positions` has theirs.
        saved: whether it only carries what a backward needs.
        owned: whether the pool knows that it is in use: what was allocated in the recording, until given up.
        hold: of the recording.
        templates: a tensor for each result.
        copy_needed: whether the last copy was held when this memory was overwritten.
        added: whether the results last went out as they are, since the copies before were held.
    """

    def __init__(
        self,
        storage: torch.UntypedStorage,
        windows: Sequence[Window],
        device: torch.device,
        saved: bool,
        hold: HeldResults,
    ) -> None:
        self.address = storage.data_ptr()
        self.nbytes = storage.nbytes()
        self.windows = tuple(windows)
        self.positions = tuple(window.position for window in windows)
        self.device = device
        self.saved = saved
        self.owned = True
        self.hold = hold
        self.templates: tuple[torch.Tensor, ...] = ()
        self.watched: Slot = self
        self._storage: torch.UntypedStorage | None = None
        self._key = 0
        self._base = 0
        self._copy: StorageWeakRef | None = None
        self.copy_needed = False
        self.added = False
        self._dress(storage)

    def _dress(self, storage: torch.UntypedStorage) -> None:
        with outside_inference():
            self.templates = tuple(
                torch.empty(0, dtype=w.dtype, device=self.device).set_(storage, w.offset, w.size, w.stride)
                for w in self.windows
            )
        self._storage, self._key = storage, storage._cdata

    def reset_baseline(self) -> None:
        """From now on, more holders than there are at this moment are others."""
        if self._storage is not None:
            self._base = storage_use(self._key)

    @property
    def alive(self) -> bool:
        """Whether somebody else holds a tensor in this memory."""
        watched = self.watched
        return watched._storage is not None and storage_use(watched._key) > watched._base

    def contains(self, address: int) -> bool:
        """Whether an address is in this memory."""
        return self.address <= address < self.address + self.nbytes

    def restore(self) -> None:
        """Have a storage at the address again, after it was given up."""
        if self._storage is None:
            storage = storage_at(self.address, self.nbytes, self.device)
            self._dress(storage)
            del storage
            self.reset_baseline()

    def release(self) -> None:
        """Give the memory up: it is the pool's, once others who hold it have let go."""
        self._storage, self.templates, self.owned = None, (), False
        self.hold.drop()

    def expire(self) -> None:
        """Take the memory from those who still hold it; what they do with it is an error from now on."""
        if self._storage is not None:
            forbid_access(self._storage, self.templates[0], _OVER)
            self.release()

    def copies(self) -> tuple[torch.Tensor, torch.Tensor, list[tuple[int, torch.Tensor]]]:
        """New memory for the results, and what is to be copied there: `(target, source, results)`, where
        results that shared memory share it again.
        """
        with outside_inference():
            if len(self.windows) == 1:
                window, source = self.windows[0], self.templates[0]
                target = torch.empty_strided(
                    window.size, window.stride, dtype=window.dtype, device=self.device
                )
                made = [(window.position, target)]
            else:
                assert self._storage is not None
                source = torch.empty(0, dtype=torch.uint8, device=self.device)
                source.set_(self._storage, 0, (self.nbytes,), (1,))
                target = torch.empty_like(source)
                storage = target.untyped_storage()
                made = []
                for w in self.windows:
                    view = torch.empty(0, dtype=w.dtype, device=self.device)
                    made.append((w.position, view.set_(storage, w.offset, w.size, w.stride)))
        self._copy, self.copy_needed = StorageWeakRef(target.untyped_storage()), False
        return target, source, made

    @property
    def copy_held(self) -> bool:
        """Whether somebody holds the last copy."""
        return self._copy is not None and not self._copy.expired()

    def see_copy(self) -> None:
        """This memory is about to be overwritten: if the last copy is held, it was needed."""
        self.copy_needed = self.copy_needed or self.copy_held

    def forget_copy(self) -> None:
        """The last copy, held or not, has nothing to say."""
        self._copy = None


def copies_of(slots: Sequence[Slot]) -> Iterator[tuple[int, torch.Tensor]]:
    """The position of each result in some slots, and the result in memory of its own."""
    made = [slot.copies() for slot in slots]
    # one type at a time is one launch
    pairs: defaultdict[torch.dtype, list[tuple[torch.Tensor, torch.Tensor]]] = defaultdict(list)
    for target, source, _ in made:
        pairs[target.dtype].append((target, source))
    with outside_inference():
        for group in pairs.values():
            copy_all([target for target, _ in group], [source for _, source in group])
    for _, _, results in made:
        yield from results


@dataclass(eq=False)
class Pool:
    """A pool of memory, and the recordings made in it."""

    handle: Any
    recordings: list[Recorded] = field(default_factory=list)


@dataclass(eq=False)
class Recorded:
    """The memory of one recording.

    Attributes:
        graph: the recorded work.
        pool: where its memory comes from.
        slots: what it writes and hands out.
        hold: the results at hand.
        spared: slots of others that it does not harm: it shares no memory with them, or uses their memory
            only after it has read them for the last time.
        owner: knows which results callers hold; None: its program is gone.
        lent: slots whose results last went out as copies.
        exposed: other recording -> its slots that this one may overwrite.
    """

    graph: DeviceGraph
    pool: Pool
    slots: tuple[Slot, ...]
    hold: HeldResults
    spared: frozenset[Slot]
    owner: CopiedResults | None
    lent: tuple[Slot, ...] = field(default=(), kw_only=True)
    exposed: dict[Recorded, tuple[Slot, ...]] = field(default_factory=dict, kw_only=True)

    def may_overwrite(self, other: Recorded) -> tuple[Slot, ...]:
        """The slots of another recording (or its own) that it may overwrite, those of a group once."""
        found = self.exposed.get(other)
        if found is None:
            found = self.exposed[other] = tuple(
                dict.fromkeys(slot.watched for slot in other.slots if slot not in self.spared)
            )
        return found


class GraphMemory:
    """All recordings of one device.

    Attributes:
        makers: of what programs allocated before they were recorded.
    """

    def __init__(self, device: GraphRecorder) -> None:
        self.device = device
        self.lock = threading.RLock()
        self.makers: Makers = {}
        self._static: dict[int, StorageWeakRef] = {}
        self._many_static = _MANY_STATIC
        self._pools: list[Pool] = []
        self._live: dict[Recorded, None] = {}
        self._leaving: deque[Recorded] = deque()
        self._retired: list[Recorded] = []
        self._step = step_number()

    def begin(self) -> None:
        """Before a recording is made or replayed: take notice of what happened since the last time."""
        if self._leaving or self._retired:
            self._drop_retired()
        number = step_number()
        if number != self._step:
            self._step = number
            for recorded in self._live:
                # of a group, the watched one would be gone before the others are asked
                for slot in [slot for slot in recorded.slots if slot.alive]:
                    slot.expire()
                for slot in recorded.lent:
                    slot.forget_copy()
            self._live.clear()
        self.device.follow()

    def blockers(self, wanted: Recorded) -> list[tuple[Recorded, Slot]]:
        """The slots that somebody holds and a replay of `wanted` would destroy."""
        found: list[tuple[Recorded, Slot]] = []
        for other in self._live:
            if other.pool is wanted.pool:
                for slot in wanted.may_overwrite(other):
                    if slot.alive:
                        found.append((other, slot))
        return found

    def overwriting(self, wanted: Recorded) -> None:
        """A recording is about to be replayed: see which copies there were good for something."""
        for other in (*self._live, wanted):
            if other.lent and other.pool is wanted.pool:
                for slot in other.lent:
                    if slot not in wanted.spared:
                        slot.see_copy()

    def handed_out(self, recorded: Recorded) -> None:
        """Results of a recording went to a caller."""
        if len(self._live) > _MANY:
            for other in [r for r in self._live if not any(slot.alive for slot in r.slots)]:
                del self._live[other]
        self._live[recorded] = None

    def slot_at(self, address: int) -> Slot | None:
        """The slot in somebody's hands that an address is in."""
        for recorded in self._live:
            for slot in recorded.slots:
                if slot.contains(address) and slot.alive:
                    return slot
        return None

    def is_recorded(self, address: int) -> bool:
        """Whether recordings write, or wrote, results at an address."""
        every = (slot for pool in self._pools for recorded in pool.recordings for slot in recorded.slots)
        return any(slot.contains(address) for slot in every)

    def stays(self, tensor: torch.Tensor) -> None:
        """A tensor is a parameter, a buffer or a constant: as long as it lives, it is where it is."""
        if len(self._static) > self._many_static:
            self._static = {a: ref for a, ref in self._static.items() if not ref.expired()}
            self._many_static = max(_MANY_STATIC, 2 * len(self._static))
        self._static[tensor.data_ptr()] = StorageWeakRef(tensor.untyped_storage())

    def is_static(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is one of those, and not another one that came to lie at the address of one."""
        found = self._static.get(tensor.data_ptr())
        return found is not None and found.cdata == tensor.untyped_storage()._cdata and not found.expired()

    def pool_for_recording(self) -> tuple[Pool, frozenset[Slot]]:
        """A pool to make a recording in, and the slots that are protected from it.

        The pool must know of every slot that somebody holds. What nobody holds is given up first.
        """
        for pool in self._pools:
            slots = [slot for recorded in pool.recordings for slot in recorded.slots]
            alive = frozenset(slot for slot in slots if slot.alive)
            if all(slot.owned for slot in alive):
                for slot in slots:
                    if slot.owned and slot not in alive:
                        slot.release()
                return pool, alive
        pool = Pool(self.device.new_pool())
        self._pools.append(pool)
        return pool, frozenset()

    def abandon(self, pool: Pool) -> None:
        """A recording in a pool failed: what is recorded from now on is in another one."""
        self._pools.remove(pool)

    def add(self, recorded: Recorded) -> None:
        """A recording was made."""
        recorded.pool.recordings.append(recorded)

    def retire(self, recordings: Sequence[Recorded]) -> None:
        """Recordings whose program is gone. Called while objects are collected, perhaps under the lock."""
        self._leaving.extend(recordings)

    def _drop_retired(self) -> None:
        """Forget retired recordings whose results nobody holds; memory goes with a pool's last one."""
        while self._leaving:
            recorded = self._leaving.popleft()
            recorded.owner = None
            self._retired.append(recorded)
        waiting = [r for r in self._retired if any(slot.alive and not slot.owned for slot in r.slots)]
        for recorded in self._retired:
            if recorded not in waiting:
                self._live.pop(recorded, None)
                recorded.pool.recordings.remove(recorded)
                for other in recorded.pool.recordings:
                    other.exposed.pop(recorded, None)
                recorded.graph.reset()
                if not recorded.pool.recordings and recorded.pool in self._pools:
                    self._pools.remove(recorded.pool)
        self._retired = waiting


_memories: dict[str, GraphMemory] = {}
_lock = threading.Lock()


def graph_memory(device: str) -> GraphMemory | None:
    """The recordings of a device; None if its work cannot be recorded."""
    with _lock:
        found = _memories.get(device)
        if found is None:
            where = torch.device(device)
            made = device_of(where.type).recorder(where.index)
            if made is None:
                return None
            found = _memories[device] = GraphMemory(made)
        return found


def forget_graph_memory(device: str) -> None:
    """Let recordings made from now on share nothing with those made before."""
    with _lock:
        _memories.pop(device, None)
