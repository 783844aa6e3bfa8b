"""Statuses of checks, each lent to one call of a program at a time.

A status is zero until a check fails, so that one which is still zero when its call ends serves the next call
as it is. Making, zeroing and reading a tensor of one number would take longer than a small kernel.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from polyfuse.runtime.checks import raise_failed
from polyfuse.torch_compat.bindings import empty_strided_cpu

_FREE: dict[int, list[torch.Tensor]] = {}
"""Those that no call uses, by their number of elements: as many as calls ran at once."""


def lend_status(count: int) -> torch.Tensor:
    """A tensor of so many i64 that are zero, which no other call knows. Its attribute `words` are the numbers
    themselves.
    """
    try:
        return _FREE[count].pop()
    except (KeyError, IndexError):
        return _made(count)


def return_status(status: torch.Tensor, rows: Sequence[tuple[str, str, int]]) -> None:
    """Raise what a kernel found wrong, as `raise_failed` does; where nothing is, the next call may have the
    status.
    """
    if any(status.words):
        raise_failed(status, rows)
    _FREE[len(rows)].append(status)


def _made(count: int) -> torch.Tensor:
    _FREE.setdefault(count, [])
    status = empty_strided_cpu((count,), (1,), torch.int64)
    words = (ctypes.c_int64 * count).from_address(status.data_ptr())
    words[:] = [0] * count
    status.words = memoryview(words).cast("B").cast("q")
    return status
