"""Decompositions of our own at the edges of numbers: as eager mode's kernels, not as torch's chunks."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

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


@pytest.mark.quick(1)
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


@pytest.mark.usefixtures("interpreted_kernels")
@pytest.mark.quick(1)
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


# Fewer elements than a vector of eager mode holds: its gradients of NaN depend on what lies beside it.
CASES = {
    "elu with an infinite alpha": lambda x: F.elu(x, INF),
    "elu with a negative alpha": lambda x: F.elu(x, -1.0),
    "elu with NaN": lambda x: F.elu(x, NAN),
    "elu": lambda x: F.elu(x, 0.7),
    "celu with an infinite alpha": lambda x: F.celu(x, INF),
    "celu": lambda x: F.celu(x, 1.3),
    "logit": lambda x: torch.logit(x, 0.1),
    "logit without bounds": torch.logit,
    "smooth_l1": lambda x: F.smooth_l1_loss(x, x * 2, reduction="none"),
    "smooth_l1, mean": lambda x: F.smooth_l1_loss(x, x * 2, beta=0.4),
    "smooth_l1, infinite beta": lambda x: F.smooth_l1_loss(x, x * 2, beta=INF, reduction="sum"),
}


@pytest.mark.parametrize("dynamic", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_values_and_gradients_at_edges(dynamic):
    """All functions in one graph, each of its own input."""

    def function(given):
        return [case(x) for case, x in zip(CASES.values(), given, strict=True)]

    options = {"strict": True, "backends": ("interpreter",)}
    compiled = torch.compile(function, backend="polyfuse", dynamic=dynamic, options=options)
    parts = (EDGES[:5], EDGES[5:10], EDGES[10:], [1.0, 2.0, -1.0, 0.7])
    for some in (*parts, []) if dynamic else (EDGES, []):
        results = []
        for run in (compiled, function):
            given = [torch.tensor(some).requires_grad_() for _ in CASES]
            found = run(given)
            gradients = torch.autograd.grad([y.sum() for y in found], given)
            results.append(zip([y.detach() for y in found], gradients, strict=True))
        for name, mine, true in zip(CASES, *results, strict=True):
            torch.testing.assert_close(
                mine, true, equal_nan=True, msg=lambda text, name=name: f"{name}: {text}"
            )
            if "elu" in name:
                assert torch.equal(*(torch.signbit(y.nan_to_num()) for y, _ in (mine, true))), name


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", ["elu", "celu", "smooth_l1"])
def test_the_same_in_half_precision(name):
    function, results = CASES[name], []
    options = {"strict": True, "backends": ("interpreter",)}
    for run in (torch.compile(function, backend="polyfuse", options=options), function):
        given = torch.linspace(-4, 4, 41).bfloat16().requires_grad_()
        y = run(given)
        results.append((y.detach(), *torch.autograd.grad(y, given, torch.ones_like(y))))
    for got, true in zip(*results, strict=True):
        torch.testing.assert_close(got, true)
