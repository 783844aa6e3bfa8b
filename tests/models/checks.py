"""What it means that a model family compiles: one graph, eager's numbers, no second graph for other sizes."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from polyfuse_bench.backends import resolved
from polyfuse_bench.models import (
    FAMILIES,
    MAIN_FAMILIES,
    Family,
    Prepared,
    Size,
    family,
    flatten_outputs,
    prepare,
)
from polyfuse_bench.models.family import make_inputs
from polyfuse_bench.tensors import relative_error
from torch import nn
from torch._dynamo.utils import counters

# Another backend's name here tells a fault of the tests from a fault of Polyfuse.
BACKEND = os.environ.get("POLYFUSE_TEST_BACKEND", "polyfuse")

# The largest difference, as a part of the largest value of the same output or gradient.
TOLERANCE = 1e-4

# A gradient that is zero in exact arithmetic (a key's bias, say) is noise in both; it is measured against
# this part of the model's largest gradient.
NOISE_FLOOR = 1e-3

DYNAMIC_SIZES = ((2, 16), (3, 24), (5, 12))


def family_parameters() -> list[Any]:
    """Every family; those beyond one of each architecture are slow tests."""
    return [
        pytest.param(name, marks=() if name in MAIN_FAMILIES else (pytest.mark.slow,)) for name in FAMILIES
    ]


def compile_function(function: Callable[..., Any], **options: Any) -> Any:
    """`fullgraph` makes a graph break an error."""
    torch.compiler.reset()
    counters.clear()
    return torch.compile(function, backend=resolved(BACKEND), fullgraph=True, **options)


def graphs_captured() -> int:
    return counters["stats"]["unique_graphs"]


def assert_close(actual: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], what: str) -> None:
    assert len(actual) == len(expected)
    for position, (a, e) in enumerate(zip(actual, expected, strict=True)):
        error = relative_error(a, e)
        assert error <= TOLERANCE, (
            f"{what} {position} of shape {tuple(e.shape)} is off by {error:.2e} of its scale"
        )


def check_forward(name: str) -> None:
    """Static sizes, inference: eager's outputs from one graph."""
    prepared = prepare(family(name), Size.TINY, batch=2)
    with torch.no_grad():
        expected = flatten_outputs(prepared.model(**prepared.inputs))
        actual = flatten_outputs(compile_function(prepared.model, dynamic=False)(**prepared.inputs))
    assert graphs_captured() == 1
    assert_close(actual, expected, "output")


def check_gradients(name: str) -> None:
    """Training mode: eager's outputs, gradients of every parameter, and buffers (running statistics).

    Where a gradient or a statistic differs from eager's by more than the tolerance, both are measured against
    float64: sums whose exact value is nearly zero are rounding noise in eager mode too.
    """
    prepared = prepare(family(name), Size.TINY, batch=2, train=True)
    reference, exact = copy.deepcopy(prepared.model), copy.deepcopy(prepared.model).double()
    expected = flatten_outputs(reference(**prepared.inputs))
    prepared.loss(expected).backward()

    model = prepared.model
    actual = flatten_outputs(compile_function(model, dynamic=False)(**prepared.inputs))
    prepared.loss(actual).backward()
    assert graphs_captured() == 1
    assert_close(actual, expected, "output")
    _assert_state_agrees(prepared, reference, exact, prepared.inputs)


def _assert_state_agrees(
    prepared: Prepared, reference: nn.Module, exact: nn.Module, inputs: dict[str, torch.Tensor]
) -> None:
    """Gradients and buffers of the compiled model are eager's, or as good when measured against float64."""
    if _differing(_state(prepared.model), _state(reference)):
        wide = {
            name: value.double() if value.is_floating_point() else value for name, value in inputs.items()
        }
        prepared.loss(flatten_outputs(exact(**wide))).backward()
        _assert_no_farther(_state(prepared.model), _state(reference), _state(exact))


def _state(model: nn.Module) -> dict[str, torch.Tensor]:
    """Gradients and buffers by name."""
    found = {f"gradient of {n}": p.grad for n, p in model.named_parameters() if p.grad is not None}
    return {**found, **{f"buffer {n}": b for n, b in model.named_buffers()}}


def _differing(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> list[str]:
    """Names of values that are off by more than the tolerance."""
    assert list(actual) == list(expected)
    gradients = [value for name, value in expected.items() if name.startswith("gradient")]
    largest = max((value.abs().max().item() for value in gradients), default=0.0)
    out = []
    for name, value in expected.items():
        if value.numel() == 0:
            continue
        floor = NOISE_FLOOR * largest if name.startswith("gradient") else 0.0
        scale = max(value.abs().max().item(), floor, 1e-30)
        if (actual[name].double() - value.double()).abs().max().item() > TOLERANCE * scale:
            out.append(name)
    return out


def _assert_no_farther(
    actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], exact: dict[str, torch.Tensor]
) -> None:
    """No value is farther from the exact one than the tolerance and four times eager's own distance allow."""
    for name in _differing(actual, expected):
        ours = (actual[name].double() - exact[name]).abs().max().item()
        eagers = (expected[name].double() - exact[name]).abs().max().item()
        scale = exact[name].abs().max().item()
        assert ours <= TOLERANCE * scale + 4 * eagers, (
            f"{name} is off by {ours:.2e} from float64, eager mode by {eagers:.2e}, at a scale of {scale:.2e}"
        )


def check_dynamic(name: str) -> None:
    """Batch and sequence marked dynamic: one graph serves several sizes."""
    entry = family(name)
    prepared = prepare(entry, Size.TINY, batch=2)
    compiled = compile_function(prepared.model)
    for batch, seq in DYNAMIC_SIZES:
        inputs = make_inputs(entry, prepared.model, Size.TINY, batch=batch, seq=seq)
        _mark_dynamic(entry, inputs)
        with torch.no_grad():
            actual = flatten_outputs(compiled(**inputs))
            expected = flatten_outputs(prepared.model(**inputs))
        assert_close(actual, expected, f"batch {batch}, sequence {seq}: output")
    assert graphs_captured() == 1


def check_dynamic_training(name: str) -> None:
    """Gradients too, with batch and sequence marked dynamic."""
    entry = family(name)
    prepared = prepare(entry, Size.TINY, batch=2, train=True)
    reference, exact = copy.deepcopy(prepared.model), copy.deepcopy(prepared.model).double()
    compiled = compile_function(prepared.model)
    for batch, seq in DYNAMIC_SIZES[:2]:
        inputs = make_inputs(entry, prepared.model, Size.TINY, batch=batch, seq=seq)
        _mark_dynamic(entry, inputs)
        for model, function in ((reference, reference), (prepared.model, compiled)):
            model.zero_grad()
            prepared.loss(function(**inputs)).backward()
        exact.zero_grad()
        _assert_state_agrees(prepared, reference, exact, inputs)
    assert graphs_captured() == 1


def _mark_dynamic(entry: Family, inputs: dict[str, torch.Tensor]) -> None:
    for name, value in inputs.items():
        torch._dynamo.mark_dynamic(value, 0)
        if name in entry.sequence_dims:
            torch._dynamo.mark_dynamic(value, entry.sequence_dims[name])
