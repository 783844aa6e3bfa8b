"""Sums over processes in memory that the GPUs of a host map from each other.

Operators that are complete when they return. Two processes exchange: the result is the operand of the other
one where it lies, for whoever adds them up; whoever makes an operand can do so in memory that `operand`
gives. More processes have an all-reduce for short messages. On GPUs each process reads what the others have
(`torch.distributed._symmetric_memory`); elsewhere they are plain collectives, by which they are tested.
Multicast is never asked for.

A group takes part if the program enabled it by torch's `enable_symm_mem_for_group`, as for Inductor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor

from polyfuse.torch_compat.groups import group_of, symmetric_groups

_SPACE: Final = "polyfuse_symmetric"

LARGEST_SUM: Final = 512 << 10
"""Bytes up to which each of more than two processes reads the operands of all others and adds them up
itself."""

LARGEST_EXCHANGE: Final = 64 << 20
"""Bytes up to which two processes exchange. Memory of two messages of each size stays in use, rounded up to a
power of two."""

EXCHANGING: Final = 2
"""Processes of a group that exchanges: each byte passes a link as often as in a sum by messages. More would
read all that each of the others has."""

_SMALLEST_SLOT: Final = 1 << 20

_ALIGNED: Final = 16
"""Bytes of which a message is a multiple."""

_LIBRARY: Final = torch.library.Library(_SPACE, "DEF")
_LIBRARY.define("all_reduce(Tensor x, str kind, str group) -> Tensor")
_LIBRARY.define("exchange(Tensor x, int slot, bool first, str group) -> Tensor")
_LIBRARY.define(
    "operand(int[] size, ScalarType dtype, Device device, int slot, bool first, str group) -> Tensor"
)

_OURS: Any = getattr(torch.ops, _SPACE)
ALL_REDUCE: Final = _OURS.all_reduce.default
"""The sum over processes, in new memory. Every process adds in an order of its own: for two of them that is
the same sum."""

EXCHANGE: Final = _OURS.exchange.default
"""The operand of the other process, which nobody may write to. It holds that until the next exchange of the
group. Exchanges of a graph use two slots in turn; the `first` one also waits until both processes have come
to it, so that nobody writes over what the other one still reads from an earlier graph."""

OPERAND: Final = _OURS.operand.default
"""Memory for the operand of the next exchange of a group, in the same slot; where that would be `first`,
this is."""

_staged: dict[tuple[str, torch.device], Tensor] = {}
"""Memory of a group in which operands of sums lie."""


def is_supported(value: Tensor, group: str) -> bool:
    """Whether operands like `value` may go through symmetric memory of a group: 16-bit numbers on a GPU, in
    rows of whole units of 16 bytes.
    """
    if value.device.type != "cuda" or value.dtype not in (torch.bfloat16, torch.float16):
        return False
    if group not in symmetric_groups() or not all(isinstance(size, int) for size in value.shape):
        return False
    return value.numel() > 0 and value.shape[-1] * value.element_size() % _ALIGNED == 0


def _summed(x: Tensor, kind: str, group: str) -> Tensor:
    plain: Any = torch.ops._c10d_functional
    made: Tensor = plain.wait_tensor(plain.all_reduce(x, kind, group))
    return made


def _summed_by_reading(x: Tensor, kind: str, group: str) -> Tensor:
    symmetric: Any = torch.ops.symm_mem
    staged = _staging(group, x.device).view(x.dtype)[: x.numel()].view(x.shape)
    made: Tensor = symmetric.one_shot_all_reduce_copy(staged, x.contiguous(), kind, group)
    return made


def _staging(group: str, device: torch.device) -> Tensor:
    """Bytes for the largest sum, made once: recorded graphs go on to use them."""
    found = _staged.get((group, device))
    if found is None:
        from torch.distributed import _symmetric_memory as memory

        with torch.inference_mode(False):  # who computes without it writes there, too
            found = memory.empty(LARGEST_SUM, dtype=torch.uint8, device=device)
            memory.rendezvous(found, group)
        _staged[group, device] = found
    return found


def _summed_fake(x: Tensor, kind: str, group: str) -> Tensor:
    return x.new_empty(x.shape)


@dataclass(frozen=True)
class _Slots:
    """Memory of a group for exchanges of messages of up to some size, two of them.

    Attributes:
        handle: torch's, by which processes wait for each other.
        own, other: this process's and the other one's, as bytes, twice the size.
        parts: what was returned of both, by slot, type and shape: it is the same each time.
    """

    handle: Any
    own: Tensor
    other: Tensor
    parts: dict[tuple[int, torch.dtype, torch.Size], tuple[Tensor, Tensor]] = field(default_factory=dict)

    def at(self, slot: int, size: torch.Size, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """What this process and the other one have in a slot, row-major."""
        key = (slot, dtype, size)
        found = self.parts.get(key)
        if found is None:
            first = slot * (self.own.numel() // 2)
            span = slice(first, first + size.numel() * dtype.itemsize)
            with torch.inference_mode(False):
                own, other = (memory[span].view(dtype).view(size) for memory in (self.own, self.other))
            found = self.parts[key] = own, other
        return found


_slots: dict[tuple[str, torch.device, int], _Slots] = {}
"""By group, device and bytes of a slot; recorded graphs go on to use them."""


def _exchanged(x: Tensor, slot: int, first: bool, group: str) -> Tensor:
    plain: Any = torch.ops._c10d_functional
    made: Tensor = plain.wait_tensor(plain.all_gather_into_tensor(x.contiguous().view(-1), EXCHANGING, group))
    found = group_of(group)
    own = found.handle.rank() if found is not None else 0
    return made.chunk(EXCHANGING)[1 - own].view(x.shape).clone()


def _exchanged_by_mapping(x: Tensor, slot: int, first: bool, group: str) -> Tensor:
    slots = _slots_for(group, x.device, x.numel() * x.element_size())
    own, other = slots.at(slot, x.shape, x.dtype)
    if first:
        slots.handle.barrier(channel=0)
    if own.data_ptr() != x.data_ptr():
        own.copy_(x)
    slots.handle.barrier(channel=0)
    return other


def _operand(
    size: Sequence[int], dtype: torch.dtype, device: torch.device, slot: int, first: bool, group: str
) -> Tensor:
    if device.type != "cuda":
        return torch.empty(size, dtype=dtype, device=device)
    slots = _slots_for(group, device, math.prod(size) * dtype.itemsize)
    if first:
        slots.handle.barrier(channel=0)
    return slots.at(slot, torch.Size(size), dtype)[0]


def _slots_for(group: str, device: torch.device, nbytes: int) -> _Slots:
    """Slots of at least so many bytes, made by both processes of the group at once when the first message
    needs them.
    """
    each = max(_SMALLEST_SLOT, 1 << (nbytes - 1).bit_length())
    found = _slots.get((group, device, each))
    if found is None:
        from torch.distributed import _symmetric_memory as memory

        with torch.inference_mode(False):
            own = memory.empty(2 * each, dtype=torch.uint8, device=device)
            handle = memory.rendezvous(own, group)
            other = handle.get_buffer(1 - handle.rank, own.shape, own.dtype)
        found = _slots[group, device, each] = _Slots(handle, own, other)
    return found


def _exchanged_fake(x: Tensor, slot: int, first: bool, group: str) -> Tensor:
    return x.new_empty(x.shape)


def _operand_fake(
    size: Sequence[int], dtype: torch.dtype, device: torch.device, slot: int, first: bool, group: str
) -> Tensor:
    return torch.empty(size, dtype=dtype, device=device)


_LIBRARY.impl("operand", _operand, "CompositeExplicitAutograd")
torch.library.register_fake(f"{_SPACE}::operand", _operand_fake, lib=_LIBRARY)

_LIBRARY.impl("exchange", _exchanged, "CPU")
_LIBRARY.impl("exchange", _exchanged_by_mapping, "CUDA")
torch.library.register_fake(f"{_SPACE}::exchange", _exchanged_fake, lib=_LIBRARY)

_LIBRARY.impl("all_reduce", _summed, "CPU")
_LIBRARY.impl("all_reduce", _summed_by_reading, "CUDA")
torch.library.register_fake(f"{_SPACE}::all_reduce", _summed_fake, lib=_LIBRARY)
