"""Sums over processes in memory that the GPUs of a host map from each other.

The operator here is an all-reduce that is complete when it returns. On GPUs each process reads the operands
of all others (`torch.distributed._symmetric_memory`); elsewhere it is the plain collective, by which it is
tested. Multicast is never asked for.

A group takes part if the program enabled it by torch's `enable_symm_mem_for_group`, as for Inductor.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from polyfuse.torch_compat.groups import symmetric_groups

_SPACE: Final = "polyfuse_symmetric"

LARGEST_SUM: Final = 512 << 10
"""Bytes up to which each process reads the operands of all others and adds them up itself."""

_ALIGNED: Final = 16
"""Bytes of which a message is a multiple."""

_LIBRARY: Final = torch.library.Library(_SPACE, "DEF")
_LIBRARY.define("all_reduce(Tensor x, str kind, str group) -> Tensor")

_OURS: Any = getattr(torch.ops, _SPACE)
ALL_REDUCE: Final = _OURS.all_reduce.default
"""The sum over processes, in new memory. Every process adds in an order of its own: for two of them that is
the same sum."""

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

        found = memory.empty(LARGEST_SUM, dtype=torch.uint8, device=device)
        memory.rendezvous(found, group)
        _staged[group, device] = found
    return found


def _summed_fake(x: Tensor, kind: str, group: str) -> Tensor:
    return x.new_empty(x.shape)


_LIBRARY.impl("all_reduce", _summed, "CPU")
_LIBRARY.impl("all_reduce", _summed_by_reading, "CUDA")
torch.library.register_fake(f"{_SPACE}::all_reduce", _summed_fake, lib=_LIBRARY)
