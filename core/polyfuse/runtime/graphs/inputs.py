"""What becomes of the inputs of a recording: read where they are, or copied into its buffers.

Recorded work reads fixed addresses. An input whose tensor is at the same address in every call (a parameter,
what another recording computes) is read where it is, and the address is compared at each call; any other is
copied. The buffers are memory of the recording's pool, which serves the recording again once it has read
them.

A gradient is copied however large it is. An allocator puts it where the last one was in most steps, but
where it does not, the backward would be recorded once more, and in a pool of its own, since the memory of
what its forward saved is its own no longer: as much memory again, where a copy takes none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from polyfuse.torch_compat.strides import has_overlaps

if TYPE_CHECKING:
    from polyfuse.runtime.graphs.memory import GraphMemory, Slot

COPY_LIMIT = 256 << 20
"""Bytes of inputs beyond which copying them costs more than launching kernel by kernel. Gradients do not
count: a backward reads them more than once, and all that it computes is of the size of what was saved.
"""

IN_PLACE = 64 << 20
"""Bytes from which an input is read where it is until it is somewhere else: a cache of keys and values stays,
and copying it takes as long as computing with it."""

MOVING_LIMIT = 32 << 20
"""Bytes of parameters and buffers that are copied at every call because they do not stay where they are."""


@dataclass(frozen=True)
class GraphFacts:
    """What must be known of a program to record it.

    Attributes:
        device: where it computes, as text.
        fixed: positions of tensor inputs that are at the same address in every call.
        varying: positions of the other tensor inputs that it reads.
        mutated: positions of inputs that it writes to.
        carried: positions of inputs that a forward computed for this backward.
        gradients: positions of inputs that are gradients of the forward's results.
        saved: positions of results that are saved for a backward, which the caller never sees.
        objects: positions of inputs that are neither tensors nor numbers.
        refused: why it is not to be recorded; empty if it may be.
        limit: how many different sizes are recorded.
        names: of all inputs, for messages.
    """

    device: str
    fixed: tuple[int, ...] = ()
    varying: tuple[int, ...] = ()
    mutated: tuple[int, ...] = ()
    carried: tuple[int, ...] = ()
    gradients: tuple[int, ...] = ()
    saved: tuple[int, ...] = ()
    objects: tuple[int, ...] = ()
    refused: str = ""
    limit: int = 32
    names: tuple[str, ...] = ()

    def name_of(self, position: int) -> str:
        """What to call an input."""
        name = self.names[position] if position < len(self.names) else ""
        return f"input {position} ({name})" if name else f"input {position}"

    def unrecordable(self, args: Sequence[Any]) -> str:
        """What among the inputs nobody can record, in words; empty if there is nothing. Random number
        generators the device knows.
        """
        for i in self.objects:
            if not isinstance(args[i], torch.Generator):
                return f"{self.name_of(i)} is not a plain tensor"
        return ""


@dataclass(frozen=True)
class InputPlan:
    """What becomes of each tensor input of a recording.

    Attributes:
        fixed: read where they are; `addresses` says where.
        copied: copied into buffers.
        returned: those of the copied ones that are copied back, since the program writes to them. Their
            buffers are memory of their own.
        slots: fixed input -> the slot of another recording that it is in.
        generators: inputs that are random number generators, which are the same in every call.
        refused: why it is better not to record this call; empty if nothing speaks against it.
    """

    fixed: list[int]
    addresses: list[int]
    copied: tuple[int, ...]
    returned: tuple[int, ...]
    slots: dict[int, Slot] = field(default_factory=dict)
    generators: tuple[tuple[int, torch.Generator], ...] = ()
    refused: str = ""


def plan_inputs(
    facts: GraphFacts,
    args: Sequence[Any],
    memory: GraphMemory,
    earlier: Sequence[InputPlan],
    brief: Sequence[InputPlan] = (),
) -> InputPlan:
    """Decide what becomes of the inputs, given what became of them in recordings that do not fit.

    An input that should stay where it is, but was elsewhere in two recordings that hardly served (`brief`),
    is copied as if nothing were known of it.
    """
    where = {i: args[i].data_ptr() for i in (*facts.fixed, *facts.varying)}
    moved = {i for t in earlier for i, a in zip(t.fixed, t.addresses, strict=True) if where[i] != a}
    slots: dict[int, Slot] = {}
    moving = _moving(facts, args, where, brief)
    fixed = [i for i in facts.fixed if i not in moving]
    # a training step gets another batch and another gradient
    staying = not (facts.saved or facts.carried or facts.gradients)
    for i in facts.varying:
        slot = memory.slot_at(where[i]) if where[i] else None
        if slot is not None:
            slots[i] = slot
            fixed.append(i)
        elif i not in moved and (
            memory.is_static(args[i])
            or i in facts.mutated
            or (staying and args[i].nbytes >= IN_PLACE and not memory.is_recorded(where[i]))
        ):
            # a seed that a recorded forward left on the CPU is among these
            fixed.append(i)
    for i in facts.fixed:
        memory.stays(args[i])
    copied = tuple(i for i in (*moving, *facts.varying) if i not in fixed)
    return InputPlan(
        fixed,
        [where[i] for i in fixed],
        copied,
        tuple(i for i in copied if i in facts.mutated),
        slots,
        tuple((i, args[i]) for i in facts.objects),
        _refusal(facts, args, copied, slots, earlier),
    )


def _moving(
    facts: GraphFacts, args: Sequence[Any], where: dict[int, int], brief: Sequence[InputPlan]
) -> tuple[int, ...]:
    """Parameters and buffers that do not stay where they are, if they are small enough to be copied."""
    moves = Counter(i for t in brief for i, a in zip(t.fixed, t.addresses, strict=True) if where[i] != a)
    found = tuple(i for i in facts.fixed if moves[i] > 1 and not _uncopyable(facts, args[i]))
    return found if sum(args[i].nbytes for i in found) <= MOVING_LIMIT else ()


def _refusal(
    facts: GraphFacts,
    args: Sequence[Any],
    copied: Sequence[int],
    slots: dict[int, Slot],
    earlier: Sequence[InputPlan],
) -> str:
    if facts.carried and not slots and any(i in copied for i in facts.carried):
        return "what the forward saved is not in recorded memory"
    if any(t.slots[i].saved for t in earlier for i in t.slots if i in copied):
        return "what the forward saved is not in recorded memory"
    total = sum(args[i].numel() * args[i].element_size() for i in copied if i not in facts.gradients)
    if total > COPY_LIMIT:
        return f"{total >> 20} MiB of inputs would be copied at every call"
    for i in copied:
        fault = _uncopyable(facts, args[i])
        if not fault and i in facts.mutated and _shared(facts, args, i):
            fault = "is written to and shares memory with another input"
        if fault:
            return f"{facts.name_of(i)} {fault}"
    return ""


def _shared(facts: GraphFacts, args: Sequence[Any], number: int) -> bool:
    storage = args[number].untyped_storage()._cdata
    others = (i for i in (*facts.fixed, *facts.varying) if i != number)
    return any(args[i].untyped_storage()._cdata == storage for i in others)


def _uncopyable(facts: GraphFacts, tensor: torch.Tensor) -> str:
    """Why an input cannot be copied into a buffer of a recording; empty if it can."""
    if tensor.device != torch.device(facts.device):
        return f"is on {tensor.device}"
    if has_overlaps(tensor.shape, tensor.stride()):
        return "has elements that share memory"
    if tensor.is_conj() or tensor.is_neg():
        return "is a lazily conjugated or negated tensor"
    return ""
