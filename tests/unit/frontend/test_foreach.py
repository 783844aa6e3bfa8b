"""Every list operator, and the fused optimizer steps, against the library."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from polyfuse.frontend.decompositions.decompose import decomposition_table
from polyfuse.frontend.decompositions.foreach import decompositions
from polyfuse.torch_compat import ops

aten = torch.ops.aten
SCALARS = {"Scalar": 2.0, "ScalarList": [2.0, 3.0], "Tensor": torch.tensor(2.0)}


def tensors() -> list[torch.Tensor]:
    return [torch.rand(3) * 0.8 + 0.1, torch.rand(2, 2) * 0.8 + 0.1]


def example(op: Any) -> tuple[list[Any], dict[str, Any]]:
    name, overload = ops.base_name(op).removeprefix("_foreach_"), ops.overload_name(op)
    if name in ("addcmul", "addcdiv"):
        scalars = torch.tensor([2.0, 3.0]) if overload == "Tensor" else SCALARS[overload]
        return [tensors(), tensors(), tensors(), scalars], {}
    if name == "lerp":
        return [tensors(), tensors(), tensors() if overload == "List" else SCALARS[overload]], {}
    if name == "mm":
        return [[torch.rand(2, 3), torch.rand(2, 2)], [torch.rand(3, 3), torch.rand(2, 2)]], {}
    if overload == "ScalarAndTensor":
        return [2.0, tensors()], {}
    if name == "norm":
        return [tensors(), 1], {}
    if overload == "List" or name == "copy":
        return [tensors(), tensors()], {"alpha": 3} if name in ("add", "sub") else {}
    return [tensors(), SCALARS[overload]] if overload in SCALARS else [tensors()], {}


def check(actual: Any, expected: Any) -> None:
    for a, b in zip(actual, expected, strict=True):
        if isinstance(b, torch.Tensor):
            torch.testing.assert_close(a, b, equal_nan=True)
        else:
            check(a, b)


@pytest.mark.parametrize("op", sorted(decompositions(), key=str), ids=str)
def test_list_operator(op: Any) -> None:
    args, kwargs = example(op)
    check(decompositions()[op](*args, **kwargs), op(*args, **kwargs))


@pytest.mark.parametrize("name", ["_fused_adam", "_fused_adamw"])
@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("tensor_lr", [False, True])
def test_fused_adam(name: str, amsgrad: bool, maximize: bool, tensor_lr: bool) -> None:
    lists = [tensors() for _ in range(4)] + [tensors() if amsgrad else []]
    steps = [torch.tensor(3.0), torch.tensor(5.0)]
    options = {"beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "eps": 1e-8}
    options |= {"lr": torch.tensor(0.1) if tensor_lr else 0.1, "amsgrad": amsgrad, "maximize": maximize}
    op = getattr(getattr(aten, name), "tensor_lr" if tensor_lr else "default")
    check(decomposition_table()[op](*lists, steps, **options), op(*lists, steps, **options))


# Nesterov's method is one of momentum.
@pytest.mark.each_value
@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
@pytest.mark.parametrize("first", [False, True])
def test_fused_sgd(momentum: float, first: bool, nesterov: bool) -> None:
    op = aten._fused_sgd.default
    lists = [tensors(), tensors(), tensors() if momentum else []]
    options = {"weight_decay": 0.1, "momentum": momentum, "lr": 0.1, "dampening": 0.0, "nesterov": nesterov}
    options |= {"maximize": False, "is_first_step": first}
    check(decomposition_table()[op](*lists, **options), op(*lists, **options))


def test_half_precision_parameters_stay_with_the_library() -> None:
    halves = [[t.bfloat16() for t in tensors()] for _ in range(2)]
    options = {"weight_decay": 0.0, "momentum": 0.0, "lr": 0.1, "dampening": 0.0, "nesterov": False}
    step = decomposition_table()[aten._fused_sgd.default]
    assert step(*halves, [], **options, maximize=False, is_first_step=True) is NotImplemented
