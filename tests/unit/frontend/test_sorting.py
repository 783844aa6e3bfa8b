"""Sorting that is decomposed, where a device has no library that sorts."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from polyfuse.frontend.decompositions import sorting


@pytest.fixture(autouse=True)
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU as a device that only computes, whose rows are long when they have more than eight numbers."""
    monkeypatch.setattr(sorting, "device_of", lambda kind: SimpleNamespace(is_host=False))
    monkeypatch.setattr(sorting, "_WHOLE", 8)
    monkeypatch.setattr(sorting, "_RUN", 4)


def numbers(dtype: torch.dtype, *size: int) -> torch.Tensor:
    """Equal ones, both zeros, infinities, NaN of both signs and the extremes of integers."""
    if not dtype.is_floating_point:
        x = torch.randint(-3 if dtype.is_signed else 0, 2 if dtype is torch.bool else 4, size).to(dtype)
        if x.numel() > 3 and dtype is not torch.bool:
            x.view(-1)[1:3] = torch.tensor([torch.iinfo(dtype).min, torch.iinfo(dtype).max], dtype=dtype)
        return x
    odd = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, -torch.nan, 1e-40], dtype=dtype)
    x = torch.randn(size).mul(3).round().to(dtype)
    return torch.where(torch.rand(size) < 0.4, odd[torch.randint(7, size)], x)


TYPES = [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.int16, torch.uint8, torch.bool]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_order_and_positions_are_eager_modes(dtype: torch.dtype) -> None:
    for size, dim in (((), 0), ((0,), 0), ((1,), 0), ((3, 8), 1), ((9, 2), 0), ((2, 13), -1), ((4, 0), 1)):
        x = numbers(dtype, *size)
        for descending in (False, True):
            actual = sorting.sort(x, dim, descending)
            expected = torch.sort(x, dim=dim, descending=descending, stable=True)
            torch.testing.assert_close(actual, tuple(expected), rtol=0, atol=0, equal_nan=True)
            length = x.shape[dim] if x.dim() else 1
            for k in {0, min(1, length), min(2, length), min(5, length), length}:
                found = sorting.topk(x, k, dim, descending)
                wanted = tuple(t.narrow(dim, 0, k) if x.dim() else t for t in expected)
                torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)


def test_the_host_sorts_with_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorting, "device_of", lambda kind: SimpleNamespace(is_host=True))
    assert sorting.sort(torch.randn(3)) is NotImplemented
    assert sorting.topk(torch.randn(3), 2) is NotImplemented
