"""Results that are parts of inputs: autograd knows, and refuses what would change an input unseen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

BACKENDS = ["interpreter", "cpp"]


def compiled(fn: Callable[..., Any], backend: str, **more: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    options = {"backends": [backend], "strict": True}
    run: Callable[..., Any] = torch.compile(fn, backend="polyfuse", options=options, **more)
    return run


def halves(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    first, second = x.split(x.shape[0] // 2)
    return first, second, x.sin().sum()


def rows(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    first, second = x.unbind(1)
    return first, second, (first * second).sum()


@pytest.mark.quick(1)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", [halves, rows])
@pytest.mark.parametrize("dynamic", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_writing_to_one_of_several_views_is_refused(backend: str, fn: Any, dynamic: bool) -> None:
    run = compiled(fn, backend, dynamic=dynamic)
    for count in (4, 6):
        x = torch.randn(count, 2, requires_grad=True)
        before = x.detach().clone()
        for call in (fn, run):
            first, second, total = call(x)
            assert first._is_view() and second._is_view()
            assert first.data_ptr() == x.data_ptr()
            with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
                first.add_(1)
            x.grad = None
            (total + (first * 2).sum() + second.exp().sum()).backward()
            if call is fn:
                expected = x.grad
        torch.testing.assert_close(x.grad, expected)
        torch.testing.assert_close(x.detach(), before)


@pytest.mark.quick(1)
@pytest.mark.parametrize("backend", BACKENDS)
def test_an_input_that_begins_within_its_storage(backend: str) -> None:
    run = compiled(rows, backend)
    for offset in (1, 3, 16):  # kernels are given copies of what begins at some addresses
        base = torch.randn(40)
        x = base[offset : offset + 12].view(6, 2).detach().requires_grad_()
        for got, want in zip(run(x), rows(x), strict=True):
            torch.testing.assert_close(got, want)


@pytest.mark.parametrize("backend", BACKENDS)
def test_without_gradients_parts_may_be_written(backend: str) -> None:
    run = compiled(lambda x: x.unbind(0), backend)
    x = torch.randn(2, 3)
    want = x.clone()
    want[1] += 2
    run(x)[1].add_(2)
    torch.testing.assert_close(x, want)
