"""Calls of the regions of a graph, in order."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import torch

from polyfuse.runtime.regions.calls import RegionCall, in_order


def test_results_and_inputs() -> None:
    double = RegionCall(lambda x: (x * 2,), (0,), (2,), ((1,),), ())
    add = RegionCall(lambda x, y: (x + y, None), (2, 1), (3, 4), ((1,), None), (2,))
    run = in_order((double, add), (3, None, 0), 5)
    x, y = torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0])
    total, nothing, first = run(x, y)
    assert total.tolist() == [12.0, 24.0]
    assert nothing is None
    assert first is x


def test_values_end_with_their_last_reader() -> None:
    made: list[weakref.ref[torch.Tensor]] = []

    def first(x: torch.Tensor) -> tuple[torch.Tensor]:
        y = x + 1
        made.append(weakref.ref(y))
        return (y,)

    def last(x: torch.Tensor) -> tuple[torch.Tensor]:
        gc.collect()
        assert made[0]() is None
        return (x,)

    calls = (
        RegionCall(first, (0,), (1,), ((1,),), ()),
        RegionCall(lambda x: (x * 2,), (1,), (2,), ((1,),), (1,)),
        RegionCall(last, (2,), (3,), ((1,),), (2,)),
    )
    assert in_order(calls, (3,), 4)(torch.ones(2))[0].tolist() == [4.0, 4.0]


def test_other_strides_are_copied_and_gradients_pass() -> None:
    seen: list[Any] = []

    def reader(x: torch.Tensor) -> tuple[torch.Tensor]:
        seen.append(x.stride())
        return (x * 3,)

    calls = (
        RegionCall(lambda x: (x.t() * 1,), (0,), (1,), ((2, 1),), ()),
        RegionCall(reader, (1,), (2,), ((2, 1),), ()),
    )
    x = torch.arange(6.0).reshape(2, 3).requires_grad_()
    (result,) = in_order(calls, (2,), 3)(x)
    result.sum().backward()
    assert seen == [(2, 1)]
    assert torch.equal(result, x.t() * 3)
    assert x.grad is not None
    assert torch.equal(x.grad, torch.full((2, 3), 3.0))
