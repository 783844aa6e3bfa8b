"""Calls that are done once for each parameter."""

from __future__ import annotations

import gc

import torch

from polyfuse.runtime.native import operator
from polyfuse.runtime.once import Once


def counted() -> tuple[Once, list[torch.Tensor]]:
    seen: list[torch.Tensor] = []

    def double(tensor: torch.Tensor, *more: object) -> torch.Tensor:
        seen.append(tensor)
        return tensor * 2

    return Once(double), seen


def test_once_for_each_parameter_and_again_after_each_change():
    once, seen = counted()
    a, b = torch.nn.Parameter(torch.randn(3)), torch.nn.Parameter(torch.randn(3))
    assert once(a) is once(a) and once(b) is once(b) and len(seen) == 2
    before = once(a)
    with torch.no_grad():
        a.add_(1)
    assert torch.equal(once(a), a * 2) and once(a) is not before and len(seen) == 3
    a.data = torch.ones(3)
    assert torch.equal(once(a), torch.full((3,), 2.0)) and not once(a).requires_grad
    assert once(b) is once(b) and len(seen) == 4


def test_other_arguments_are_another_call():
    once, seen = counted()
    a = torch.randn(3)
    assert once(a, [1, 2]) is once(a, (1, 2)) and len(seen) == 1
    assert once(a, (2, 1)) is not once(a, (1, 2)) and len(seen) == 2


def test_nothing_is_kept_of_parameters_that_are_gone():
    once, seen = counted()
    for _ in range(3):
        assert once(torch.nn.Parameter(torch.zeros(3))).sum() == 0
    gc.collect()
    assert len(seen) == 3 and not once._kept


def test_results_are_usable_with_gradients_although_they_were_made_in_inference_mode():
    once, _ = counted()
    a = torch.randn(3)
    with torch.inference_mode():
        made = once(a)
    assert not made.is_inference()
    made.add_(1)


def test_by_name():
    call = operator("once.aten.neg.default")
    a = torch.randn(3)
    assert isinstance(call, Once) and torch.equal(call(a), -a) and call(a) is call(a)
    assert operator("aten.neg.default") is not call
