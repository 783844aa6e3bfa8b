"""Decompositions of our own at the edges of numbers: as eager mode's kernels, not as torch's chunks."""

from __future__ import annotations

import pytest
import torch

from polyfuse.frontend.decompositions.operators import frac, sigmoid_backward, softshrink

INF, NAN = float("inf"), float("nan")
EDGES = [0.0, -0.0, 0.5, -0.5, 0.3, -0.3, 1e-7, -1e-7, 2.5, -2.5, 3e38, -3e38, INF, -INF, NAN]


def test_zeros_have_eager_modes_sign():
    # as many as eager mode's kernel takes at once
    x = torch.tensor(EDGES * 16)
    for own, eager in ((frac, torch.frac), (softshrink, torch.nn.functional.softshrink)):
        found, wanted = own(x), eager(x)
        assert torch.equal(found.nan_to_num(7), wanted.nan_to_num(7))
        assert torch.equal(found.isnan(), wanted.isnan())
        assert not (torch.signbit(found) & (found == 0)).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_large_numbers_meet_in_eager_modes_order(dtype):
    grad, output = torch.cartesian_prod(*[torch.tensor(EDGES, dtype=dtype)] * 2).unbind(1)
    found = sigmoid_backward(grad, output)
    wanted = torch.ops.aten.sigmoid_backward(grad, output)
    torch.testing.assert_close(found, wanted, equal_nan=True)
    z = torch.randn(64, dtype=torch.complex64)
    torch.testing.assert_close(sigmoid_backward(z, z), torch.ops.aten.sigmoid_backward(z, z))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiled_softshrink_and_its_gradient(dtype):
    x = torch.tensor([*EDGES[:10], 7.0], dtype=dtype)
    results = []
    for function in (torch.compile(torch.nn.functional.softshrink, backend="polyfuse"), softshrink):
        given = x.clone().requires_grad_()
        y = function(given)
        results.append((y, *torch.autograd.grad(y.sum(), given)))
    for got, true in zip(*results, strict=True):
        assert torch.equal(got, true) and torch.equal(torch.signbit(got), torch.signbit(true))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_masked_positions_count_from_the_end(dtype):
    x, mask = torch.randn(4, 5), torch.tensor([[True, False, True], [True, True, False]])
    rows = torch.tensor([[3, 9, -4], [-1, 0, -50]], dtype=dtype)
    columns = torch.tensor([-2, 7, 4], dtype=dtype)
    for indices in ([rows], [rows, columns], [None, columns]):
        masked = mask[0] if indices[0] is None else mask if len(indices) == 2 else mask[..., None]
        expected = torch.ops.aten._unsafe_masked_index(x, masked, indices, -3)
        found = torch.compile(torch.ops.aten._unsafe_masked_index, backend="polyfuse")(x, masked, indices, -3)
        assert torch.equal(found, expected)
