"""Activations in the epilogue of the library's matmuls: what is recognised, and what is left alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polyfuse.compiler.reports.report import last_reports, reset_reports
from polyfuse.plugin import Manifest, Rewrite, hookimpl, register, unregister
from polyfuse_triton.activations import REWRITES

NAME = "activations-on-the-host"


class _Plugin:
    """Offers the rewrites on every device."""

    @hookimpl
    def polyfuse_manifest(self) -> Manifest:
        return Manifest(
            name=NAME, version="1", distribution=NAME, api=(2, 0), device_types=(), priority={}, load=""
        )

    @hookimpl
    def polyfuse_rewrites(self, device_type: str) -> Sequence[Rewrite]:
        return REWRITES


@pytest.fixture(autouse=True)
def _on_the_host() -> Iterator[None]:
    register(_Plugin())
    try:
        yield
    finally:
        unregister(NAME)


def _count(function: Callable[..., Tensor | list[Tensor]], *operands: Tensor, **options: object) -> int:
    """How many activations became the library's; results are compared with eager mode's."""
    torch.compiler.reset()
    reset_reports()
    compiled = torch.compile(function, backend="polyfuse", options={"backends": ["interpreter"], **options})
    with torch.no_grad():
        # on a CPU the library computes GELU itself instead of tanh's approximation
        torch.testing.assert_close(compiled(*operands), function(*operands), rtol=2e-2, atol=2e-2)
    (report,) = last_reports()
    return dict(report.rewrites).get(f"{NAME}.activation-in-epilogue", 0)


def _spelled(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


def _fast(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x)))


def _by_sigmoid(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))


def _tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def _operands(rows: int = 65, dtype: torch.dtype = torch.bfloat16) -> tuple[Tensor, nn.Module]:
    torch.manual_seed(0)
    return torch.randn(rows, 16, dtype=dtype), nn.Linear(16, 24, dtype=dtype)


@pytest.mark.quick(1)
@pytest.mark.parametrize("shape", [(65, 16), (3, 30, 16)])
def test_every_spelling(shape: tuple[int, ...]) -> None:
    _, linear = _operands()
    x = torch.randn(shape, dtype=torch.bfloat16)
    spellings = (_tanh, _spelled, _fast, _by_sigmoid, F.relu)
    found = _count(lambda x: torch.cat([gelu(linear(x * n)) * 2 for n, gelu in enumerate(spellings, 1)]), x)
    assert found == len(spellings)


def test_not_other_functions_nor_what_something_else_reads() -> None:
    x, linear = _operands()

    def others(x: Tensor) -> list[Tensor]:
        read_twice = linear(x * 5)
        return [
            F.gelu(linear(x)),
            F.silu(linear(x * 2)),
            torch.tanh(linear(x * 3)),
            0.5 * linear(x * 4) * (1 + torch.tanh(0.8 * linear(x * 4))),
            _tanh(read_twice) + read_twice,
        ]

    assert _count(others, x) == 0


def test_not_without_a_bias_nor_in_f32_nor_of_few_rows() -> None:
    x, linear = _operands()
    weight = linear.weight
    assert _count(lambda x: _tanh(x @ weight.T), x) == 0
    assert _count(lambda x: _tanh(linear(x)), x[:64]) == 0
    x, linear = _operands(dtype=torch.float32)
    assert _count(lambda x: _tanh(linear(x)), x) == 0


@pytest.mark.quick(1)
@pytest.mark.parametrize("options", [{"gemm": "fastest"}, {"numerics": "eager"}])
def test_not_where_matmuls_are_tuned_or_rounded_as_eager_mode_does(options: dict[str, str]) -> None:
    x, linear = _operands()
    assert _count(lambda x: _tanh(linear(x)), x, **options) == 0


def test_training_keeps_what_the_gradient_needs() -> None:
    x, linear = _operands()
    compiled = torch.compile(
        lambda x: _tanh(linear(x)), backend="polyfuse", options={"backends": ["interpreter"]}
    )
    compiled(x).float().square().sum().backward()
    found = [p.grad.clone() for p in linear.parameters() if p.grad is not None]
    linear.zero_grad()
    _tanh(linear(x)).float().square().sum().backward()
    expected = [p.grad for p in linear.parameters() if p.grad is not None]
    assert len(found) == 2
    torch.testing.assert_close(found, expected, rtol=5e-2, atol=5e-1)
