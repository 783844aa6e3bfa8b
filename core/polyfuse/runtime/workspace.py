"""Memory for large tensors on the CPU. That of intermediate ones is cached from call to call: memory that
comes fresh from the system costs a fault for each page. Large pages spare faults, and lookups of addresses.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

import torch

from polyfuse.torch_compat.bindings import empty_strided_cpu

LARGE_PAGE: Final = 2 << 20
"""Bytes of a large page on x86-64, and on ARM with pages of 4096 bytes."""

HAS_LARGE_PAGES: Final = hasattr(mmap, "MADV_HUGEPAGE")
"""Whether the system can be asked for them."""

FRESH: Final = 32 << 20
"""Bytes from which memory comes fresh from the system at each request: C libraries cache less."""

_MOST = 16
"""Blocks that are cached: as many calls may run at once and find one."""

_LARGEST = 1 << 30
"""Bytes of the largest block that is cached."""

_BLOCKS: list[torch.Tensor] = []
"""Blocks that no call uses. Programs of one thread run one after the other, so that one block serves all.
That of a call which fails is released."""


def large_block(size: int) -> torch.Tensor:
    """So many bytes, for which the system is asked for large pages where it has some and they fill one."""
    if size < LARGE_PAGE or not HAS_LARGE_PAGES:
        return torch.empty(size, dtype=torch.uint8)
    block = mmap.mmap(-1, size + LARGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    block.madvise(mmap.MADV_HUGEPAGE)
    memory = torch.frombuffer(block, dtype=torch.uint8)
    start = -memory.data_ptr() % LARGE_PAGE
    # rebuilt, not viewed: it is a tensor by itself, with a version of its own
    return torch.empty(0, dtype=torch.uint8).set_(memory.untyped_storage(), start, (size,), (1,))


def empty_strided_cpu_large(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """An uninitialised tensor, on large pages where the system has some and its memory is fresh."""
    tensor, count = empty_strided_cpu(size, stride, dtype), dtype.itemsize
    for number in size:  # a tensor takes longer to say it
        count *= number
    if count >= FRESH and HAS_LARGE_PAGES:
        # elements may share memory, or have some between them
        start, room = tensor.data_ptr(), tensor.untyped_storage().nbytes()
        first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        last = (start + room) // mmap.PAGESIZE * mmap.PAGESIZE
        if room >= FRESH:
            # where the system refuses, its small pages stay
            _advise()(first, last - first, mmap.MADV_HUGEPAGE)
    return tensor


@cache
def _advise() -> Callable[[int, int, int], int]:
    """The system's `madvise` of an address and so many bytes."""
    function: Any = ctypes.CDLL(None).madvise
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return function


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
            return large_block(size)
    return block


def keep_memory(block: torch.Tensor) -> None:
    """Give a block back that nothing reads any more."""
    if len(_BLOCKS) < _MOST and block.numel() <= _LARGEST:
        _BLOCKS.append(block)


def forget_memory() -> None:
    """Release all blocks that no call uses."""
    _BLOCKS.clear()
