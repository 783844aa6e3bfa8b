"""Values of groups of neighbouring columns are stored for each column, and vectors run along all of these."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

from polyfuse.plugin import TargetInfo
from polyfuse.schedule import Launch
from polyfuse.symbolic import axis_size
from wide_device import Planned, WideBackend, wide

CHANNELS, GROUPS = 24, 4


class OnThreads(WideBackend):
    """A host that works on strips of columns."""

    chosen = TargetInfo(column_bytes=1 << 16)


def images(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(size).to(dtype).contiguous(memory_format=torch.channels_last)


def inner_sizes(record: Planned, elements: int) -> set[int]:
    """Extents of the innermost parallel axes of kernels that read or write so many elements."""
    kernels = [step.kernel for s in record.schedules for step in s.steps if isinstance(step, Launch)]
    large = [k for k in kernels if any(arg.numel == elements for arg in k.args)]
    return {int(axis_size(k.axes[-1])) for k in large}


def scaled(x: torch.Tensor, g: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    parts = x.unflatten(1, (GROUPS, -1))
    return (
        parts * g.exp()[:, :, None, None, None] * w[:, :, None, None] + g.sin()[:, :, None, None, None]
    ).flatten(1, 2)


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("dynamic", [False, True])
def test_factors_of_groups(dtype: torch.dtype, dynamic: bool) -> None:
    x = images(2, CHANNELS, 12, 20, dtype=dtype)
    g, w = torch.randn(2, GROUPS).to(dtype), torch.randn(GROUPS, CHANNELS // GROUPS).to(dtype)
    run_wide, record = wide(scaled, backend=OnThreads, dynamic=dynamic)
    expected = scaled(x.double(), g.double(), w.double()).to(dtype)
    close = 0.05 if dtype is torch.bfloat16 else 1e-4
    torch.testing.assert_close(run_wide(x, g, w), expected, rtol=close, atol=close)
    if not dynamic:
        assert inner_sizes(record, x.numel()) == {CHANNELS}


STEPS: dict[str, Callable[..., torch.Tensor]] = {
    "group norm": lambda x, w, b: F.group_norm(x, GROUPS, w, b),
    "and SiLU": lambda x, w, b: F.silu(F.group_norm(x, GROUPS, w, b)),
    "of a sum": lambda x, w, b: F.group_norm(x + x.tanh(), GROUPS, w, b) * x,
}


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", STEPS)
def test_steps_of_group_norms(name: str) -> None:
    fn = STEPS[name]
    x, w, b = images(2, CHANNELS, 16, 20), torch.randn(CHANNELS), torch.randn(CHANNELS)
    grad = images(2, CHANNELS, 16, 20)
    run_wide, record = wide(fn, backend=OnThreads)

    def gradients(function: Callable[..., torch.Tensor], dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        given = [t.detach().to(dtype).requires_grad_() for t in (x, w, b)]
        return torch.autograd.grad(function(*given), given, grad.to(dtype))

    for found, wanted in zip(gradients(run_wide, torch.float32), gradients(fn, torch.float64), strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4)
    assert min(inner_sizes(record, x.numel())) == CHANNELS


def test_what_stays_as_it_is() -> None:
    """Groups that fill vectors, rows along memory, and values that are read a few times."""
    wide_groups = torch.randn(1, 4 * 64, 3, 3).contiguous(memory_format=torch.channels_last)
    for x, w in (
        (wide_groups, torch.randn(GROUPS, 64)),
        (torch.randn(2, CHANNELS, 12, 20), torch.randn(GROUPS, CHANNELS // GROUPS)),
        (images(2, CHANNELS, 1, 3), torch.randn(GROUPS, CHANNELS // GROUPS)),
    ):
        g = torch.randn(x.shape[0], GROUPS)
        run_wide, record = wide(scaled, backend=OnThreads)
        torch.testing.assert_close(run_wide(x, g, w), scaled(x, g, w), rtol=1e-4, atol=1e-4)
        assert not record.decisions("columns")


def test_values_of_channels_are_no_values_of_groups() -> None:
    """The channels of a pixel lie in memory as the columns of a group do."""

    def normalised(x: torch.Tensor, y: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> torch.Tensor:
        return F.batch_norm(x.tanh(), mean, var) + y

    x, y = images(2, 16, 8, 10), images(2, 16, 8, 10)
    mean, var = torch.randn(16), torch.rand(16) + 0.5
    run_wide, record = wide(normalised, backend=OnThreads)
    expected = normalised(x.double(), y.double(), mean.double(), var.double()).float()
    torch.testing.assert_close(run_wide(x, y, mean, var), expected, rtol=1e-4, atol=1e-4)
    assert not record.decisions("columns")
