"""Facts about GPUs: asked of the device where there is one, else those of the largest chip known."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from polyfuse_cuda.gpu import gpu_of, known_gpu

H200 = {
    "name": "NVIDIA H200",
    "major": 9,
    "minor": 0,
    "multi_processor_count": 132,
    "shared_memory_per_block_optin": 232448,
    "L2_cache_size": 60 << 20,
    "clock_rate": 1_980_000,
    "memory_clock_rate": 3_201_000,
    "memory_bus_width": 6144,
}


def facts(**changes: Any) -> SimpleNamespace:
    return SimpleNamespace(**{**H200, **changes})


def test_peaks_are_those_of_the_device() -> None:
    found = gpu_of(facts())
    assert found.bandwidth == pytest.approx(4.92e12, rel=0.01)
    assert found.matmul_operations == pytest.approx(1070e12, rel=0.01)
    slow = gpu_of(facts(clock_rate=990_000, memory_clock_rate=1_600_500))
    assert slow.bandwidth == found.bandwidth / 2
    assert slow.matmul_operations == found.matmul_operations / 2


def test_peaks_of_what_torch_does_not_ask_are_those_known() -> None:
    old = facts()
    del old.clock_rate, old.memory_clock_rate, old.memory_bus_width, old.L2_cache_size
    found, known = gpu_of(old), known_gpu(90)
    assert (found.clock, found.bandwidth, found.l2_bytes) == (known.clock, known.bandwidth, known.l2_bytes)


# 90: at the highest clock, which the data sheet's 989 do not assume
@pytest.mark.parametrize(("arch", "tera"), [(80, 312), (90, 1070), (86, 160)])
def test_peaks_by_architecture(arch: int, tera: float) -> None:
    """Near specification."""
    assert known_gpu(arch).matmul_operations == pytest.approx(tera * 1e12, rel=0.05)
