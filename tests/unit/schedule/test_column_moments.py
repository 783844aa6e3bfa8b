"""Mean and variance of long columns: parts of these are read once, around a mean of few elements."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

from polyfuse.plugin import TargetInfo
from polyfuse.schedule import Launch
from wide_device import WideBackend, wide

CHANNELS = 32


class OnThreads(WideBackend):
    """A host whose caches hold few rows."""

    chosen = TargetInfo(column_bytes=2 << 10)


class InOnePass(WideBackend):
    """The same, where columns are too long for two passes."""

    chosen = TargetInfo(column_bytes=2 << 10, two_pass_row=64)


def images(*size: int) -> torch.Tensor:
    return torch.randn(size).contiguous(memory_format=torch.channels_last)


MOMENTS: dict[str, Callable[[torch.Tensor], object]] = {
    "var_mean": lambda x: torch.var_mean(x, (0, 2, 3)),
    "std": lambda x: x.std((0, 2, 3), correction=0),
    "group norm": lambda x: F.group_norm(x, 4),
    "batch norm": lambda x: F.batch_norm(x, None, None, training=True),
    "of a sum": lambda x: torch.var_mean(x * 2 + x.sigmoid(), (0, 2, 3), keepdim=True),
}


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", MOMENTS)
@pytest.mark.parametrize("backend", [OnThreads, InOnePass])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_parts_give_what_columns_give(name: str, backend: type[WideBackend], dtype: torch.dtype) -> None:
    fn = MOMENTS[name]
    run_wide, record = wide(fn, backend=backend)
    x = (images(2, CHANNELS, 16, 24) * 3 + 5).to(dtype)
    expected = fn(x.double())
    close = (0.03, 0.03) if dtype is torch.bfloat16 else (1e-5, 1e-5)
    torch.testing.assert_close(
        run_wide(x), expected, rtol=close[0], atol=close[1], check_dtype=False, check_stride=False
    )
    assert any("parts of each column are read once" in d.reason for d in record.schedules[0].decisions)


@pytest.mark.parametrize("backend", [OnThreads, InOnePass])
def test_one_kernel_reads_the_matrix(backend: type[WideBackend]) -> None:
    """Also what corrects the mean is made of the sums of parts."""
    run_wide, record = wide(MOMENTS["var_mean"], backend=backend)
    x = images(2, CHANNELS, 16, 24)
    run_wide(x)
    kernels = [step.kernel for s in record.schedules for step in s.steps if isinstance(step, Launch)]
    assert sum(any(arg.numel == x.numel() for arg in kernel.args) for kernel in kernels) == 1


@pytest.mark.parametrize("start", [0.0, 1e4, -3e3])
def test_a_part_with_an_element_far_from_the_others(start: float) -> None:
    """Little precision is lost where the number near the mean is made of it."""
    x = images(1, CHANNELS, 32, 32)
    x[:, :, 0, 0] = start
    run_wide, _ = wide(lambda x: torch.var_mean(x, (0, 2, 3)), backend=OnThreads)
    variance, mean = run_wide(x)
    exact = torch.var_mean(x.double(), (0, 2, 3))
    torch.testing.assert_close(variance.double(), exact[0], rtol=1e-5, atol=0)
    torch.testing.assert_close(mean.double(), exact[1], rtol=1e-5, atol=1e-5)


def test_a_large_mean_cancels_out() -> None:
    x = images(1, CHANNELS, 32, 32) + 1000
    run_wide, _ = wide(lambda x: x.var((0, 2, 3)), backend=OnThreads)
    torch.testing.assert_close(run_wide(x).double(), x.double().var((0, 2, 3)), rtol=1e-4, atol=0)


@pytest.mark.quick(3)
@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("at", [0, 7])
def test_means_with_an_infinity_are_eager_modes(value: float, at: int) -> None:
    """No number: eager mode moves a mean from number to number."""
    x = images(1, CHANNELS, 32, 32)
    x[:, ::2, 0, at] = value
    run_wide, _ = wide(lambda x: torch.var_mean(x, (0, 2, 3)), backend=OnThreads)
    expected = torch.var_mean(x, (0, 2, 3))
    torch.testing.assert_close(run_wide(x), expected, rtol=1e-4, atol=1e-4, equal_nan=True)


def test_what_stays_whole() -> None:
    """Rows, short columns, few columns, columns without near divisors, sizes that are not known."""
    for x, dynamic in (
        (torch.randn(2, CHANNELS, 16, 24), False),
        (images(1, CHANNELS, 8, 8), False),
        (images(2, 4, 32, 32), False),
        (images(1, CHANNELS, 1, 397), False),
        (images(3, CHANNELS, 16, 24), True),
    ):
        fn = MOMENTS["var_mean"]
        run_wide, record = wide(fn, backend=OnThreads, dynamic=dynamic)
        torch.testing.assert_close(run_wide(x), fn(x), rtol=1e-4, atol=1e-4)
        assert not any("read once" in d.reason for s in record.schedules for d in s.decisions)
