"""The norm of a single row is computed again by each thread block of the products that read it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from wide_device import WIDE, WideBackend, wide

DEPTH, RESULTS = 48, 300


class Repeating(WideBackend):
    """Multiplies matrices by rows that each block normalises."""

    chosen = replace(WIDE, repeated_row=64)


def rms_norm(x: Tensor, g: Tensor) -> Tensor:
    return g * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6))


def product(w: Tensor, row: Tensor) -> Tensor:
    return (w * row).sum(-1)


def residual(x: Tensor, g: Tensor, w: Tensor, v: Tensor) -> Tensor:
    y = x + product(w[:DEPTH], rms_norm(x, g))
    return product(v, rms_norm(y, g))


REPEATED: dict[str, tuple[Callable[..., Any], int]] = {  # kernels
    "rms norm": (lambda x, g, w, v: product(w, rms_norm(x, g)), 1),
    "layer norm": (lambda x, g, w, v: product(w, F.layer_norm(x, (DEPTH,), g)), 1),
    "softmax": (lambda x, g, w, v: product(w, torch.softmax(x, -1)), 1),
    "two products of a row": (
        lambda x, g, w, v: product(w, rms_norm(x, g)) * torch.sigmoid(product(v, rms_norm(x, g))),
        1,
    ),
    "a row that is a sum of two": (lambda x, g, w, v: product(w, rms_norm(x + g, g)), 1),
}
UNCHANGED: dict[str, Callable[..., Any]] = {
    "it is a result": lambda x, g, w, v: (product(w, y := rms_norm(x, g)), y),
    "something else reads it": lambda x, g, w, v: product(w, y := rms_norm(x, g)) + y.flip(0).cumsum(-1)[-1],
    "few results": lambda x, g, w, v: product(w[:200], rms_norm(x, g)),
    "no reduction": lambda x, g, w, v: product(w, torch.sigmoid(x) * g),
    "several rows": lambda x, g, w, v: (w[:, None] * rms_norm(torch.stack((x, g)), g)).sum(-1),
}


def arguments() -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(DEPTH), torch.randn(DEPTH), torch.randn(RESULTS, DEPTH), torch.randn(RESULTS, DEPTH)]


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", REPEATED)
def test_a_row_has_no_kernel(name: str) -> None:
    fn, kernels = REPEATED[name]
    args = arguments()
    run, record = wide(fn, backend=Repeating)
    torch.testing.assert_close(run(*args), fn(*args))
    assert len(record.kernels()) == kernels and len(record.decisions("repeat")) == 1


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", UNCHANGED)
def test_a_row_stays(name: str) -> None:
    fn, args = UNCHANGED[name], arguments()
    run, record = wide(fn, backend=Repeating)
    torch.testing.assert_close(run(*args), fn(*args))
    assert not record.decisions("repeat")


def test_a_residual_is_no_part_of_it() -> None:
    """What has no reduction of the row in it is read, not computed again through all layers."""
    args = arguments()
    run, record = wide(residual, backend=Repeating)
    torch.testing.assert_close(run(*args), residual(*args))
    # the first product has too few results
    assert len(record.decisions("repeat")) == 1 and len(record.kernels()) == 3


def test_a_row_that_changes_later_stays() -> None:
    def fn(x: Tensor, g: Tensor, w: Tensor, v: Tensor) -> Tensor:
        y = rms_norm(x, g)
        x.mul_(2)
        return product(w, y)

    args = arguments()
    given = [a.clone() for a in args]
    run, record = wide(fn, backend=Repeating)
    torch.testing.assert_close(run(*given), fn(*args))
    torch.testing.assert_close(given[0], args[0])
    assert not record.decisions("repeat")


def test_matrices_of_unknown_size_keep_the_row() -> None:
    fn, args = REPEATED["rms norm"][0], arguments()
    run, record = wide(fn, backend=Repeating, dynamic=True)
    torch.testing.assert_close(run(*args), fn(*args))
    assert not record.decisions("repeat")


@pytest.mark.quick(1)
@pytest.mark.parametrize("longest", [0, DEPTH - 1])
def test_rows_that_are_too_long_stay(longest: int) -> None:
    class Shorter(WideBackend):
        chosen = replace(WIDE, repeated_row=longest)

    fn, args = REPEATED["rms norm"][0], arguments()
    run, record = wide(fn, backend=Shorter)
    torch.testing.assert_close(run(*args), fn(*args))
    assert not record.decisions("repeat") and len(record.kernels()) == 2
