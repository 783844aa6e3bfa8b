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
    assert found.matmul_operations(2) == pytest.approx(1070e12, rel=0.01)
    slow = gpu_of(facts(clock_rate=990_000, memory_clock_rate=1_600_500))
    assert slow.bandwidth == found.bandwidth / 2
    assert slow.matmul_operations(2) == found.matmul_operations(2) / 2


def test_peaks_of_what_torch_does_not_ask_are_those_known() -> None:
    old = facts()
    del old.clock_rate, old.memory_clock_rate, old.memory_bus_width, old.L2_cache_size
    found, known = gpu_of(old), known_gpu(90)
    assert (found.clock, found.bandwidth, found.l2_bytes) == (known.clock, known.bandwidth, known.l2_bytes)


@pytest.mark.parametrize(
    ("arch", "itemsize", "rounded", "tera"),
    [
        (80, 2, True, 312),
        (80, 4, True, 156),
        (80, 4, False, 19.5),
        (90, 2, True, 1070),  # at the highest clock, which the data sheet's 989 do not assume
        (90, 1, True, 2140),
        (90, 4, False, 67),
        (90, 8, False, 33.5),
        (86, 2, True, 160),
        (89, 4, False, 91.6),
    ],
)
def test_peaks_by_type(arch: int, itemsize: int, rounded: bool, tera: float) -> None:
    """Near specification; whether float32 may be rounded to TF32 changes them."""
    assert known_gpu(arch).matmul_operations(itemsize, rounded) == pytest.approx(tera * 1e12, rel=0.05)
