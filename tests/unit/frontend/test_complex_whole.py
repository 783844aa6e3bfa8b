"""Operators on complex tensors, of which no kernel computes the steps, stay whole."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import polyfuse
from polyfuse.frontend.decompositions.decompose import decomposition_table

aten = torch.ops.aten


def test_steps_are_for_real_tensors() -> None:
    table = decomposition_table("fast")
    x = torch.randn(4, 6)
    z = torch.complex(x, x)
    assert table[aten.sgn.default](z) is NotImplemented
    assert torch.equal(table[aten.slice_backward.default](x, [4, 9], 1, 0, 6, 1)[:, :6], x)
    assert table[aten.slice_backward.default](z, [4, 9], 1, 0, 6, 1) is NotImplemented
    assert table[aten.lerp.Tensor](z, z, x) is NotImplemented  # one complex tensor among others


def test_halves_of_complex_numbers_stay_whole() -> None:
    x = torch.randn(3, 4)
    options = {"backends": ("interpreter",)}
    found = torch.compile(lambda x: (x * 2).chalf(), backend="polyfuse", options=options)(x)
    assert found.dtype == torch.complex32
    torch.testing.assert_close(torch.view_as_real(found), torch.view_as_real((x * 2).chalf()))


@pytest.mark.quick(1)
@pytest.mark.parametrize("dynamic", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("function", "calls"),
    [
        (lambda x: torch.fft.rfft(x).abs(), ("sgn", "constant_pad_nd")),
        (lambda x: torch.fft.irfft(torch.fft.rfft(x) * 2), ("slice_scatter", "constant_pad_nd")),
        (
            # the magnitude and its gradient are computed in pairs
            lambda x: torch.stft(x, 8, return_complex=True, window=torch.ones(8)).abs(),
            ("constant_pad_nd", "view_as_complex"),
        ),
        (lambda x: torch.view_as_complex(x.view(x.shape[0], -1, 2))[:, 1:5].abs(), ("slice_backward",)),
    ],
)
def test_gradients_of_transforms(
    function: Callable[[torch.Tensor], torch.Tensor], calls: tuple[str, ...], dynamic: bool
) -> None:
    x = torch.randn(3, 32, requires_grad=True)
    (expected,) = torch.autograd.grad(function(x).square().sum(), x)
    compiled = torch.compile(function, backend="polyfuse", dynamic=dynamic)
    _, code = polyfuse.run_and_get_code(lambda: compiled(x).square().sum().backward())
    torch.testing.assert_close(x.grad, expected, rtol=1e-4, atol=1e-4)
    if not dynamic:
        backward = next(str(graph) for graph in code if "(backward)" in str(graph))
        assert all(f"aten_{name}" in backward for name in calls)
        assert "aten_where" not in backward and "aten_copy_" not in backward


@pytest.mark.quick(1)
@pytest.mark.parametrize("value", [0.0, -0.0, float("inf"), float("nan")])
def test_edges_of_a_magnitude_have_eager_modes_gradients(value: float) -> None:
    x = torch.tensor([[value, 1.0], [0.0, -2.0]], requires_grad=True)

    def magnitude(x: torch.Tensor) -> torch.Tensor:
        return torch.view_as_complex(x).abs()

    (expected,) = torch.autograd.grad(magnitude(x).sum(), x)
    (actual,) = torch.autograd.grad(torch.compile(magnitude, backend="polyfuse")(x).sum(), x)
    torch.testing.assert_close(actual, expected, equal_nan=True)


def test_one_and_zero_are_not_neutral_beside_infinite_complex_numbers() -> None:
    def steps(z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return 1 / z, z.exp() * 1, z.exp() / 1, z.exp() + -0.0

    inf = float("inf")
    z = torch.tensor([0.0, complex(-0.0, 0), 1 - 2j, complex(inf, 1), complex(0, inf)])
    for results in zip(torch.compile(steps, backend="polyfuse")(z), steps(z), strict=True):
        actual, expected = map(torch.view_as_real, results)
        torch.testing.assert_close(actual, expected, equal_nan=True)
        assert torch.equal(actual.nan_to_num().signbit(), expected.nan_to_num().signbit())
