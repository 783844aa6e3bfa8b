"""Memory for large intermediate tensors on the CPU, cached from call to call: memory that comes fresh
from the system costs a fault for each page.
"""

from __future__ import annotations

import torch

_MOST = 16
"""Blocks that are cached: as many calls may run at once and find one."""

_LARGEST = 1 << 30
"""Bytes of the largest block that is cached."""

_BLOCKS: list[torch.Tensor] = []
"""Blocks that no call uses. Programs of one thread run one after the other, so that one block serves all.
That of a call which fails is released."""


def cached_memory(size: int) -> torch.Tensor:
    """A block of at least so many bytes for one call, of which no other call knows."""
    try:
        block = _BLOCKS.pop()
    except IndexError:
        block = None
    if block is None or block.numel() < size:
        del block
        # operators write to parts of it both in inference mode and outside
        with torch.inference_mode(False):
            return torch.empty(size, dtype=torch.uint8)
    return block


def keep_memory(block: torch.Tensor) -> None:
    """Give a block back that nothing reads any more."""
    if len(_BLOCKS) < _MOST and block.numel() <= _LARGEST:
        _BLOCKS.append(block)


def forget_memory() -> None:
    """Release all blocks that no call uses."""
    _BLOCKS.clear()
