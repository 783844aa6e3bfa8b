"""Where work runs: on the CPU, or on an accelerator whose work goes on after the call returned."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

CPU = "cpu"
_COPIED = 1 << 30


def moved(tree: Any, device: str) -> Any:
    """A tree of tensors on `device`; leaves that require gradients stay leaves that do."""

    def move(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return leaf.detach().to(device).requires_grad_(leaf.requires_grad)

    return pytree.tree_map(move, tree)


def waiter(device: str) -> Callable[[], None]:
    """A call that returns when everything handed to `device` is done."""
    if device == CPU:
        return lambda: None
    return torch.get_device_module(device).synchronize


def copy_rate(device: str) -> float:
    """Bytes read and written per second by the device's own copy of a gibibyte.

    The roof for kernels that only move data.
    """
    source = torch.randint(0, 255, (_COPIED,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    wait = waiter(device)
    samples = []
    for _ in range(20):
        wait()
        began = time.perf_counter()
        for _ in range(5):
            target.copy_(source)
        wait()
        samples.append((time.perf_counter() - began) / 5)
    return 2 * _COPIED / statistics.median(samples)


def read_rate() -> float:
    """Bytes read per second by the CPU: the sum of half a gibibyte, in eager mode."""
    numbers = torch.ones(_COPIED >> 3)
    samples = []
    for _ in range(20):
        began = time.perf_counter()
        numbers.sum()
        samples.append(time.perf_counter() - began)
    return numbers.nbytes / statistics.median(samples)


def device_name(device: str) -> str:
    """What the device is called by its maker; empty for the CPU, which has facts of its own."""
    return "" if device == CPU else torch.get_device_module(device).get_device_name()
