"""Private names of torch that ending a failed recording needs, by the type of device."""

from __future__ import annotations

from typing import Any

import torch


def end_allocation_to_pool(device_type: str, index: int, pool: Any) -> None:
    """Let an allocator serve the streams of a recording as before. Raises RuntimeError if it already does."""
    getattr(torch._C, f"_{device_type}_endAllocateToPool")(index, pool)


def release_pool(device_type: str, index: int, pool: Any) -> None:
    """Let an allocator forget one user of a pool. Raises RuntimeError if there is none."""
    getattr(torch._C, f"_{device_type}_releasePool")(index, pool)


def clear_workspaces(device_type: str) -> None:
    """Free the memory that the library of matmuls keeps for its next call."""
    clear = getattr(torch._C, f"_{device_type}_clearCublasWorkspaces", None)
    if clear is not None:
        clear()
