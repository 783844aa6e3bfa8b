"""One recording of a compiled program: how its inputs get in (`inputs`) and its results out.

Recorded work reads and writes fixed addresses. Results are handed out as new tensors on the recording's
memory, or as copies.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from polyfuse.base.errors import UnsupportedError
from polyfuse.runtime.devices.graphs import allocations_of
from polyfuse.runtime.graphs.guided import Guide, run_guided
from polyfuse.runtime.graphs.memory import GraphMemory, HeldResults, Recorded, Slot, Window, copies_of
from polyfuse.torch_compat import bindings
from polyfuse.torch_compat.devices.device_graphs import (
    backward_may_repeat,
    copy_all,
    memory_like,
    outside_inference,
    same_addresses,
    storage_at,
    storage_size,
)

if TYPE_CHECKING:
    from polyfuse.runtime.devices.graphs import Program
    from polyfuse.runtime.graphs.addresses import Run
    from polyfuse.runtime.graphs.copied import CopiedResults
    from polyfuse.runtime.graphs.guided import Text
    from polyfuse.runtime.graphs.inputs import GraphFacts, InputPlan


def _once(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor with repeated elements (a stride of zero) taken once, so that it can be written."""
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if size > 1 and stride == 0:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


@dataclass(frozen=True)
class PassedThrough:
    """A result that is an input, or a view of one.

    Attributes:
        position, number: of the result, and of the input.
        window: how it lies in the input's storage, from where the input begins; None if it is the input
            itself.
        as_copy: whether the caller gets a copy, since the input is in memory that only backwards know of.
    """

    position: int
    number: int
    window: Window | None
    as_copy: bool


@dataclass(eq=False)
class Recording(Recorded):
    """A recording with its inputs and results.

    Attributes:
        plan: of the inputs.
        addresses: for every input, the one that it must have; None if it may have any.
        buffers: one for each copied input; `targets` are the same with repeated elements taken once. But for
            those that are copied back, the recording writes there once it has read them.
        repeated: whether some input has repeated elements.
        constants: the results; None where a slot or an input gives them.
        passed: results that are inputs or views of them.
        consumes: whether it uses the memory of what its forward saved, so that it can only run once for it.
        replays: how often it ran.
    """

    plan: InputPlan
    addresses: list[int | None]
    buffers: tuple[torch.Tensor, ...]
    targets: tuple[torch.Tensor, ...]
    repeated: bool
    constants: tuple[Any, ...]
    passed: tuple[PassedThrough, ...]
    consumes: bool
    replays: int = 0

    def _prepare(self) -> None:
        """Have all results at hand. Callers get new tensors, since they may do with them what they like; what
        only a backward reads may be the same tensor every time, but for the one that is watched.
        """
        hold = self.hold
        hold.drop()
        hold.ready.extend(self.constants)
        for slot in self.slots:
            slot.restore()
            for window, template in zip(slot.windows, slot.templates, strict=True):
                if slot.watched is slot:
                    hold.fresh.append((window.position, template, window.size, window.stride))
                else:
                    hold.ready[window.position] = template
        hold.complete = True

    def fits(self, args: list[Any]) -> bool:
        """Whether every input that is read where it is, is there."""
        plan = self.plan
        if not same_addresses(args, self.addresses, plan.fixed):
            return False
        for i, generator in plan.generators:
            if args[i] is not generator:
                return False
        return not self.consumes or not backward_may_repeat()

    def misfit(self, args: list[Any], facts: GraphFacts) -> str:
        """Why it does not fit; empty if it does."""
        for i, address in zip(self.plan.fixed, self.plan.addresses, strict=True):
            if args[i].data_ptr() != address:
                return f"{facts.name_of(i)} is at another address"
        for i, generator in self.plan.generators:
            if args[i] is not generator:
                return f"{facts.name_of(i)} is another generator"
        if self.consumes and backward_may_repeat():
            return "its backward may run again"
        return ""

    def replay(self, args: list[Any], copied: CopiedResults) -> tuple[Any, ...]:
        """Do the recorded work on `args`, which is emptied; results called for come as copies."""
        plan = self.plan
        if plan.copied:
            copy_all(self.targets, [_once(args[i]) if self.repeated else args[i] for i in plan.copied])
        held = {p.number: args[p.number] for p in self.passed} if self.passed else {}
        returned = [args[i] for i in plan.returned]
        for i in plan.copied:
            args[i] = None
        self.graph.replay()
        # not before: who lets go of an input that is read where it is lets others write there
        args.clear()
        self.replays += 1
        if returned:
            position = {i: k for k, i in enumerate(plan.copied)}
            copy_all(returned, [self.buffers[position[i]] for i in plan.returned])
        return self._results(held, copied)

    def _results(self, held: dict[int, torch.Tensor], copied: CopiedResults) -> tuple[Any, ...]:
        if not self.hold.complete:
            self._prepare()
        results = list(self.hold.ready)
        self.lent = _lent(self.slots, copied) if copied.positions else ()
        made = dict(copies_of(self.lent)) if self.lent else {}
        for position, template, size, stride in self.hold.fresh:
            copy = made.get(position)
            results[position] = (
                bindings.reinterpret_tensor(template, size, stride, 0) if copy is None else copy
            )
        for passed in self.passed:
            base = held[passed.number]
            result = base if passed.window is None else _view_of(base, passed.window)
            results[passed.position] = _copy_of(result) if passed.as_copy else result
        return tuple(results)


def _lent(slots: Sequence[Slot], copied: CopiedResults) -> tuple[Slot, ...]:
    """The slots whose results go out as copies this time."""
    lent = []
    for slot in slots:
        if not copied.positions.isdisjoint(slot.positions):
            slot.added = slot.copy_held and copied.are_added(slot.positions, slot.nbytes)
            if not slot.added:
                lent.append(slot)
    return tuple(lent)


def _copy_of(tensor: torch.Tensor) -> torch.Tensor:
    with outside_inference():
        copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
        _once(copy).copy_(_once(tensor))
        return copy


def _view_of(base: torch.Tensor, window: Window) -> torch.Tensor:
    if base.dtype == window.dtype:
        return bindings.reinterpret_tensor(base, window.size, window.stride, window.offset)
    with torch.no_grad():
        start = base.storage_offset() * base.element_size() // window.dtype.itemsize
        made = torch.empty(0, dtype=window.dtype, device=base.device)
        return made.set_(base.untyped_storage(), start + window.offset, window.size, window.stride)


def make_recording(
    program: Program,
    facts: GraphFacts,
    memory: GraphMemory,
    args: list[Any],
    plan: InputPlan,
    generators: Sequence[torch.Generator],
    owner: CopiedResults,
    text: Text | None = None,
    run: Run | None = None,
) -> Recording:
    """Record `program` for `args`, which stay as they are. Nothing is computed: replay it.

    Args:
        text: of the program.
        run: what a run of it allocated; None: nothing is known of that.

    Raises whatever the program or the device raises; `args` can be used all the same.
    """
    given = list(args)
    own = {i: _copy_of(args[i]) for i in plan.copied if i in plan.returned or not args[i].nbytes}
    for i, buffer in own.items():
        given[i] = buffer
    pooled = [i for i in plan.copied if i not in own]
    layouts = {i: _layout_of(given[i]) for i in (*facts.fixed, *facts.varying) if i not in pooled}

    def begun(arguments: list[Any]) -> Sequence[Any]:
        # now all memory is the pool's, and of that none which holds something that is yet to be read
        def give(i: int) -> None:
            arguments[i] = memory_like(arguments[i])
            layouts[i] = _layout_of(arguments[i])

        guide = None
        if run is not None and allocations is not None:
            sizes = {i: storage_size(arguments[i]) for i in pooled}
            guide = Guide(run, sizes, pool.handle, _released(layouts, consumed, run), allocations)
        return run_guided(program, arguments, guide, text, pooled, give)

    allocations = allocations_of(memory.device)
    pool, protected = memory.pool_for_recording()
    consumed = _consume(facts, args, plan)
    drawn = (*generators, *(generator for _, generator in plan.generators))
    try:
        graph, results = memory.device.record(begun, given, pool.handle, drawn)
    except BaseException:
        memory.abandon(pool)
        raise
    finally:
        _restore_inputs(args, layouts, consumed)
    hold = HeldResults()
    saved_inputs = frozenset(i for i, slot in plan.slots.items() if slot.saved)
    constants, passed, slots = _sort_results(results, layouts, saved_inputs, facts, hold)
    for position in facts.saved:
        if isinstance(constants[position], torch.Tensor):
            memory.stays(constants[position])
    del results
    buffers = tuple(own[i] if i in own else _tensor_at(layouts[i]) for i in plan.copied)
    with outside_inference():
        targets = tuple(_once(buffer) for buffer in buffers)
    for slot in slots:
        slot.reset_baseline()
    where = dict(zip(plan.fixed, plan.addresses, strict=True))
    recording = Recording(
        graph,
        pool,
        slots,
        hold,
        protected,
        owner,
        plan,
        [where.get(i) for i in range(len(args))],
        buffers,
        targets,
        any(t is not b for t, b in zip(targets, buffers, strict=True)),
        constants,
        passed,
        bool(consumed),
    )
    memory.add(recording)
    return recording


def _released(
    layouts: Mapping[int, _Layout], consumed: Sequence[int], run: Run
) -> dict[tuple[int, int], int]:
    """(address, bytes) of each input that a program consumes -> when it lets go of it."""
    found: dict[tuple[int, int], int] = {}
    for i in consumed:
        where = layouts[i].address, layouts[i].nbytes
        found[where] = max(found.get(where, 0), run.released.get(i, run.end))
    return found


@dataclass(frozen=True)
class _Layout:
    """Where a tensor is, without the tensor. As long as its storage is referred to, no other one is taken for
    it, even if it has the same address.
    """

    dtype: torch.dtype
    device: torch.device
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    storage: StorageWeakRef
    address: int
    nbytes: int


def _layout_of(tensor: torch.Tensor) -> _Layout:
    storage = tensor.untyped_storage()
    layout = tuple(tensor.shape), tuple(tensor.stride()), tensor.storage_offset()
    memory = storage.data_ptr(), storage.nbytes()
    return _Layout(tensor.dtype, tensor.device, *layout, StorageWeakRef(storage), *memory)


def _consume(facts: GraphFacts, args: list[Any], plan: InputPlan) -> tuple[int, ...]:
    """Let go of saved inputs that only this backward will ever read, so that their memory can serve it once
    it has read them; returns which. The list no longer holds them.
    """
    saved = {i: slot for i, slot in plan.slots.items() if slot.saved}
    if not facts.carried or backward_may_repeat() or not all(slot.owned for slot in saved.values()):
        return ()
    for i, slot in saved.items():
        slot.release()
        args[i] = None
    return tuple(saved)


def _restore_inputs(args: list[Any], layouts: dict[int, _Layout], consumed: Sequence[int]) -> None:
    """Nothing was computed yet, so what was let go is still where it was."""
    for i in consumed:
        args[i] = _tensor_at(layouts[i])


def _tensor_at(at: _Layout) -> torch.Tensor:
    """A tensor in memory that somebody else owns."""
    with outside_inference():
        made = torch.empty(0, dtype=at.dtype, device=at.device)
        return made.set_(storage_at(at.address, at.nbytes, at.device), at.offset, at.size, at.stride)


def _sort_results(
    results: Sequence[Any],
    layouts: dict[int, _Layout],
    saved_inputs: Collection[int],
    facts: GraphFacts,
    hold: HeldResults,
) -> tuple[tuple[Any, ...], tuple[PassedThrough, ...], tuple[Slot, ...]]:
    """Constants, inputs passed on, and the slots of everything else.

    What an operator leaves on the CPU for its backward (seeds) is as constant as the recorded launches.
    Inputs in `saved_inputs` are not to be seen by callers.
    """
    inputs = {layout.storage.cdata: i for i, layout in layouts.items()}
    constants: list[Any] = []
    passed: list[PassedThrough] = []
    storages: dict[int, tuple[torch.UntypedStorage, list[Window]]] = {}
    device = torch.device(facts.device)
    for position, result in enumerate(results):
        is_tensor = isinstance(result, torch.Tensor)
        if not is_tensor or (result.device != device and position in facts.saved):
            constants.append(result)
            continue
        _check_result(result, position, device)
        constants.append(None)
        storage = result.untyped_storage()
        window = Window(
            position,
            result.dtype,
            tuple(result.shape),
            tuple(result.stride()),
            result.storage_offset(),
        )
        number = inputs.get(storage._cdata)
        if number is None:
            storages.setdefault(storage._cdata, (storage, []))[1].append(window)
            continue
        moved = _moved(window, layouts[number])
        passed.append(PassedThrough(position, number, moved, number in saved_inputs))
    slots = tuple(
        Slot(storage, windows, device, all(w.position in facts.saved for w in windows), hold)
        for storage, windows in storages.values()
    )
    saved = [slot for slot in slots if slot.saved]
    for slot in saved:
        slot.watched = saved[0]
    return tuple(constants), tuple(passed), slots


def _check_result(result: torch.Tensor, position: int, device: torch.device) -> None:
    """Raise `UnsupportedError` for a tensor whose memory a replay does not fill."""
    if result.device != device:
        raise UnsupportedError(f"result {position} is on {result.device}", "move it to the device")
    if result.is_conj() or result.is_neg():
        raise UnsupportedError(f"result {position} is lazily conjugated or negated", "resolve it")


def _moved(window: Window, base: _Layout) -> Window | None:
    """A result's window counted from the start of the input it lies in; None where it is the whole input."""
    if (base.dtype, base.size, base.stride, base.offset) == (
        window.dtype,
        window.size,
        window.stride,
        window.offset,
    ):
        return None
    start = base.offset * base.dtype.itemsize // window.dtype.itemsize
    return Window(window.position, window.dtype, window.size, window.stride, window.offset - start)
