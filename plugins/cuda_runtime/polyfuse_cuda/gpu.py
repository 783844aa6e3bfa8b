"""GPUs: what code is generated for, and tilings depend on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from polyfuse.base.errors import BackendUnavailableError

OLDEST = 80
"""The oldest compute capability that kernels are made for."""


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU.

    Attributes:
        arch: compute capability as a number: 90 for 9.0.
        multiprocessors: how many there are.
        shared_bytes: most shared memory that one block may ask for.
        l2_bytes: size of the last cache.
        clock: cycles in a second, at most.
        bandwidth: bytes that memory moves in a second, at most.
        model: the chip's name; empty where none is at hand.
    """

    arch: int
    multiprocessors: int
    shared_bytes: int
    l2_bytes: int
    clock: float
    bandwidth: float
    model: str = ""

    @property
    def name(self) -> str:
        """As assemblers spell it."""
        return f"sm_{self.arch}"

    @property
    def matmul_operations(self) -> float:
        """Additions and multiplications of 16-bit matmuls in a second, at most."""
        cycle = next((rate for arch, rate in _TENSOR.items() if arch <= self.arch), 0)
        return float(cycle * self.multiprocessors) * self.clock


# The largest chip of each architecture, for compiling without one at hand; shared memory is a property of the
# architecture.
_KNOWN: Mapping[int, Gpu] = {
    80: Gpu(80, 108, 166912, 40 << 20, 1.41e9, 2.04e12),
    86: Gpu(86, 84, 101376, 6 << 20, 1.86e9, 0.77e12),
    89: Gpu(89, 142, 101376, 72 << 20, 2.52e9, 0.96e12),
    90: Gpu(90, 132, 232448, 50 << 20, 1.98e9, 3.35e12),
    100: Gpu(100, 148, 232448, 126 << 20, 1.97e9, 7.7e12),
    103: Gpu(103, 148, 232448, 126 << 20, 1.97e9, 7.7e12),
    120: Gpu(120, 188, 101376, 96 << 20, 2.62e9, 1.79e12),
}

# Operations on 16 bits that the matrix units of a multiprocessor do in a cycle, since these architectures.
_TENSOR: Mapping[int, int] = {120: 1024, 100: 8192, 90: 4096, 86: 1024, 80: 2048}


def known_gpu(arch: int) -> Gpu:
    """The largest chip of an architecture, or of the newest one before it that is known."""
    nearest = max((known for known in _KNOWN if known <= arch), default=OLDEST)
    return replace(_KNOWN[nearest], arch=arch)


def present_gpus() -> tuple[Gpu, ...]:
    """Those of this machine, in the order of their numbers, of any age.

    Raises `BackendUnavailableError` where there is none.
    """
    import torch

    if torch.version.cuda is None:
        raise BackendUnavailableError("this torch is built without CUDA", "install one that is built with it")
    if not torch.cuda.is_available():
        raise BackendUnavailableError(
            "no NVIDIA GPU can be used here", "check `nvidia-smi` and CUDA_VISIBLE_DEVICES"
        )
    found = []
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        found.append(gpu_of(facts))
    return tuple(found)


def gpu_of(facts: Any) -> Gpu:
    """A GPU from what `torch.cuda.get_device_properties` says. What this torch does not ask of the device is
    taken from the largest chip of its architecture.
    """
    usual = known_gpu(facts.major * 10 + facts.minor)
    # names that torch gave to its properties over time; clocks are in kHz, and memory moves twice in a cycle
    clock = float(getattr(facts, "clock_rate", 0)) * 1e3
    moved = 2e3 * float(getattr(facts, "memory_clock_rate", 0)) * getattr(facts, "memory_bus_width", 0) / 8
    return Gpu(
        usual.arch,
        facts.multi_processor_count,
        int(getattr(facts, "shared_memory_per_block_optin", usual.shared_bytes)),
        int(getattr(facts, "L2_cache_size", usual.l2_bytes)),
        clock or usual.clock,
        moved or usual.bandwidth,
        str(facts.name),
    )
