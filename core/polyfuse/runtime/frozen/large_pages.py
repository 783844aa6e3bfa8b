"""Values that kernels read from end to end at each call, in memory of large pages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

import torch

from polyfuse.runtime.workspace import HAS_LARGE_PAGES, LARGE_PAGE, large_block

_LINE: Final = 64
"""Bytes that each value's address is a multiple of, as torch's allocations are."""


def on_large_pages(values: list[Any], given: Iterable[Any]) -> list[Any]:
    """The same values, where those on the CPU are in one block of memory for which the system is asked for
    large pages; the values as they are, where it has none or they would not fill one. The block lives as
    long as one of its values.

    Args:
        values: tensors, and whatever else a program reads. Each is released once it is copied.
        given: what they were computed from, whose memory is somebody else's.
    """
    own = _owned(values, given)
    sizes = [_rounded(values[number].nbytes) for number in own]
    if sum(sizes) < LARGE_PAGE or not HAS_LARGE_PAGES:
        return values
    memory, at = large_block(sum(sizes)), 0
    for number, size in zip(own, sizes, strict=True):
        value = values[number]
        room = memory[at : at + value.nbytes].view(value.dtype)
        # rebuilt, not viewed: it is a tensor by itself, with a version of its own
        values[number] = torch.empty(0, dtype=value.dtype).set_(
            room.untyped_storage(), room.storage_offset(), value.size(), value.stride()
        )
        values[number].copy_(value)
        at += size
    return values


def _owned(values: Sequence[Any], given: Iterable[Any]) -> list[int]:
    """Which values are dense tensors on the CPU whose memory nothing else has."""
    taken = {_address(value) for value in given if _is_plain(value)}
    shared = Counter(_address(value) for value in values if _is_plain(value))
    return [
        number
        for number, value in enumerate(values)
        if _is_plain(value)
        and _is_dense(value)
        and _address(value) not in taken
        and shared[_address(value)] == 1
    ]


def _is_plain(value: Any) -> bool:
    return type(value) is torch.Tensor and value.device.type == "cpu" and value.layout is torch.strided


def _is_dense(value: torch.Tensor) -> bool:
    """Whether the numbers of a tensor are all that its memory holds."""
    return 0 < value.nbytes == value.untyped_storage().nbytes()


def _address(value: torch.Tensor) -> int:
    return value.untyped_storage().data_ptr()


def _rounded(size: int) -> int:
    return -(-size // _LINE) * _LINE
