"""Private names of torch that recording needs: ending one that failed, and the memory of all. By the type of
device.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_ENTRIES = 200_000
"""Allocations that are recorded at most; of more, the last ones are."""

_ACTIONS = {"alloc": True, "free_completed": False}

_GROWS = re.compile(r"(?:^|,)\s*expandable_segments\s*:\s*(\w+)")


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


def grows_in_ranges(device_type: str) -> bool:
    """Whether `growing_segments` has an effect, or the process's settings already have it."""
    return _allocator_settings(device_type) is not None


def pool_blocks(device_type: str, index: int, pool: Any) -> list[tuple[int, int, bool]]:
    """Address and bytes of the blocks that large allocations in a pool come from, and whether each is in use;
    by address. Raises RuntimeError or TypeError where this torch does not say.
    """
    snapshot: Any = getattr(torch._C, f"_{device_type}_memorySnapshot")
    found = []
    for segment in snapshot((pool[0], pool[1], False))["segments"]:
        if segment["device"] == index and segment["segment_type"] == "large":
            for block in segment["blocks"]:
                found.append((block["address"], block["size"], block["state"] != "inactive"))
    return sorted(found)


@contextmanager
def allocation_history(
    device_type: str, index: int, stream: int
) -> Iterator[list[tuple[bool, int, int]] | None]:
    """A list that, once this is over, has (whether allocated or taken back, address, bytes) for each of a
    stream's allocations meanwhile. None where this torch records none, or somebody has it record already.
    """
    is_on: Any = getattr(torch._C, f"_{device_type}_isHistoryEnabled", None)
    module: Any = getattr(torch, device_type).memory
    if is_on is None or is_on() or torch.version.hip or not hasattr(module, "_record_memory_history"):
        yield None
        return
    found: list[tuple[bool, int, int]] = []
    module._record_memory_history("all", context=None, stacks="python", max_entries=_ENTRIES)
    try:
        yield found
        snapshot: Any = getattr(torch._C, f"_{device_type}_memorySnapshot")
        for entry in snapshot(None)["device_traces"][index]:
            if entry["stream"] == stream and entry["action"] in _ACTIONS:
                found.append((_ACTIONS[entry["action"]], entry["addr"], entry["size"]))
    finally:
        module._record_memory_history(None)


@contextmanager
def growing_segments(device_type: str) -> Iterator[None]:
    """Let an allocator take memory in ranges of addresses that grow where they end.

    Otherwise each large tensor has a segment of its own size, which in a pool serves nothing that is larger,
    and of which smaller ones leave parts that nothing fits in. The setting is the process's, so for this time
    it is that of all threads. Nothing changes where the allocator is not torch's own or cannot do that.
    """
    known = _allocator_settings(device_type)
    if known is None or (_GROWS.findall(known) or ["False"])[-1] == "True":
        yield
        return
    _let_grow(known, True)
    try:
        yield
    finally:
        # what another thread has set meanwhile stays
        now = _allocator_settings(device_type)
        _let_grow(known if now is None else now, False)


def _let_grow(known: str, grows: bool) -> None:
    # an option that is not named goes back to what it is without settings
    others = _GROWS.sub("", known).strip(", ")
    torch._C._accelerator_setAllocatorSettings(f"{others},expandable_segments:{grows}".lstrip(","))


def _allocator_settings(device_type: str) -> str | None:
    """The text that sets the options of an allocator; None where its segments do not grow."""
    backend: Any = getattr(torch._C, f"_{device_type}_getAllocatorBackend", None)
    if sys.platform != "linux" or torch.version.hip or backend is None or backend() != "native":
        return None
    if not hasattr(torch._C, "_accelerator_setAllocatorSettings"):
        return None
    get: Any = getattr(torch._C, "_accelerator_getAllocatorSettings", None)  # from torch 2.12 on
    if get is not None:
        return str(get())
    snapshot: Any = getattr(torch._C, f"_{device_type}_memorySnapshot", None)
    try:
        found = snapshot((0, 0, False))["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"]
    except (TypeError, KeyError, RuntimeError):
        return None
    return str(found)
