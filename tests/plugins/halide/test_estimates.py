"""What the Halide backend guesses of schedules: sane orders, not seconds."""

from __future__ import annotations

import torch

from gemm_kernels import kernels_of
from polyfuse.plugin import Config
from polyfuse_halide.schedules.estimates import estimate


def test_orders_of_schedules():
    (small,) = kernels_of(lambda x: x.sin() + 1, torch.randn(64, 512))
    (large,) = kernels_of(lambda x: x.sin() + 1, torch.randn(1024, 512))
    default = Config()
    assert estimate(large, default, 16) > estimate(small, default, 16) > 0
    assert estimate(large, Config.of(lanes=8), 16) > estimate(large, default, 16)
    assert estimate(large, Config.of(serial=1), 16) > estimate(large, default, 16)
    # shares so small that handing them out is all there is, and so large that most threads have none
    assert estimate(large, Config.of(grain=16), 16) > estimate(large, default, 16)
    assert estimate(large, Config.of(grain=1 << 20), 16) > estimate(large, default, 16)


def test_one_sum_at_a_time_waits_for_itself():
    (kernel,) = kernels_of(lambda x: x.sum(1), torch.randn(64, 512))
    assert estimate(kernel, Config.of(unroll=1), 16) > estimate(kernel, Config.of(unroll=4), 16)
