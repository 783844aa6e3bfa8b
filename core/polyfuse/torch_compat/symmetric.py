"""Collectives in memory that the GPUs of a host map from each other (`torch.distributed._symmetric_memory`).

An operator here is a collective, or a collective with the matmul beside it, that is complete when it returns.
On GPUs torch copies chunks between devices itself while it multiplies others; elsewhere the operators are the
plain collective and the plain matmul, by which they are tested. Multicast is never asked for.

A group takes part if the program enabled it by torch's `enable_symm_mem_for_group`, as for Inductor.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from polyfuse.torch_compat.groups import group_of, symmetric_groups

_SPACE: Final = "polyfuse_symmetric"

LARGEST_SUM: Final = 512 << 10
"""Bytes up to which each process reads the operands of all others and adds them up itself."""

_ALIGNED: Final = 16
"""Bytes of which a message is a multiple."""

_LIBRARY: Final = torch.library.Library(_SPACE, "DEF")
_LIBRARY.define("all_gather_matmul(Tensor shard, Tensor[] weights, bool whole, str group) -> Tensor[]")
_LIBRARY.define("matmul_reduce_scatter(Tensor x, Tensor weight, str kind, str group) -> Tensor")
_LIBRARY.define("all_reduce(Tensor x, str kind, str group) -> Tensor")

_OURS: Any = getattr(torch.ops, _SPACE)
ALL_GATHER_MATMUL: Final = _OURS.all_gather_matmul.default
"""(rows, depth) of each process by weights (depth, columns): the matmuls of the rows of all, each
(ranks * rows, columns); with `whole`, these rows too, behind the matmuls."""
MATMUL_REDUCE_SCATTER: Final = _OURS.matmul_reduce_scatter.default
"""The sum (`kind` "sum") or mean ("avg") over processes of a matmul (rows, columns), of which each gets
(rows / ranks, columns)."""
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


def _ranks(group: str) -> int:
    found = group_of(group)
    assert found is not None, f"this process is in no group {group!r}"
    return len(found.ranks)


def _gathered(shard: Tensor, weights: list[Tensor], whole: bool, group: str) -> list[Tensor]:
    plain: Any = torch.ops._c10d_functional
    rows = plain.wait_tensor(plain.all_gather_into_tensor(shard.contiguous(), _ranks(group), group))
    return [*(rows @ weight for weight in weights), *((rows,) if whole else ())]


def _gathered_by_copies(shard: Tensor, weights: list[Tensor], whole: bool, group: str) -> list[Tensor]:
    symmetric: Any = torch.ops.symm_mem
    rows, matmuls = symmetric.fused_all_gather_matmul(shard, weights, 0, group, return_A=whole)
    return [*matmuls, *((rows,) if whole else ())]


def _gathered_fake(shard: Tensor, weights: list[Tensor], whole: bool, group: str) -> list[Tensor]:
    rows = shard.new_empty((shard.shape[0] * _ranks(group), shard.shape[1]))
    made = [rows.new_empty((rows.shape[0], weight.shape[1])) for weight in weights]
    return [*made, *((rows,) if whole else ())]


def _scattered(x: Tensor, weight: Tensor, kind: str, group: str) -> Tensor:
    plain: Any = torch.ops._c10d_functional
    made: Tensor = plain.wait_tensor(plain.reduce_scatter_tensor(x @ weight, kind, _ranks(group), group))
    return made


def _scattered_by_copies(x: Tensor, weight: Tensor, kind: str, group: str) -> Tensor:
    symmetric: Any = torch.ops.symm_mem
    made: Tensor = symmetric.fused_matmul_reduce_scatter(x, weight, kind, 0, group)
    return made


def _scattered_fake(x: Tensor, weight: Tensor, kind: str, group: str) -> Tensor:
    return x.new_empty((x.shape[0] // _ranks(group), weight.shape[1]))


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


for _name, _plain, _on_gpu, _fake in (
    ("all_gather_matmul", _gathered, _gathered_by_copies, _gathered_fake),
    ("matmul_reduce_scatter", _scattered, _scattered_by_copies, _scattered_fake),
    ("all_reduce", _summed, _summed_by_reading, _summed_fake),
):
    _LIBRARY.impl(_name, _plain, "CPU")
    _LIBRARY.impl(_name, _on_gpu, "CUDA")
    torch.library.register_fake(f"{_SPACE}::{_name}", _fake, lib=_LIBRARY)
