"""Matmuls with a depth of one as multiplications, against the operators that they replace."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import polyfuse
from polyfuse.frontend.decompositions.decompose import decomposition_table

aten = torch.ops.aten

_TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", _TYPES)
@pytest.mark.parametrize("batch", [(), (3,)])
def test_each_product_is_rounded_once(dtype: torch.dtype, batch: tuple[int, ...]) -> None:
    op = aten.bmm.default if batch else aten.mm.default
    left, right = torch.randn(*batch, 5, 1, dtype=dtype), torch.randn(*batch, 1, 7, dtype=dtype)
    # channels of a permuted batch: the result lies in the order of its sizes all the same
    apart = torch.randn(7, 1, *batch, dtype=dtype).movedim(0, -1).movedim(0, -2)
    for other in (right, apart):
        actual, expected = decomposition_table("fast")[op](left, other), op(left, other)
        assert torch.equal(actual, expected)
        assert actual.stride() == expected.stride() and actual.dtype == dtype


@pytest.mark.parametrize("dtype", _TYPES)
@pytest.mark.parametrize("factors", [{}, {"alpha": 2.0}, {"beta": 0.0}, {"alpha": 0.5, "beta": -3.0}])
def test_terms_are_added_before_rounding(dtype: torch.dtype, factors: dict[str, float]) -> None:
    term = torch.randn(7, dtype=dtype)
    if factors.get("beta") == 0:
        term[0] = torch.nan  # counts for nothing
    left, right = torch.randn(5, 1, dtype=dtype), torch.randn(1, 7, dtype=dtype)
    actual = decomposition_table("fast")[aten.addmm.default](term, left, right, **factors)
    expected = torch.addmm(term.double(), left.double(), right.double(), **factors)
    torch.testing.assert_close(actual.double(), expected, rtol=torch.finfo(dtype).eps, atol=1e-6)
    assert actual.dtype == dtype
    batches = term.expand(2, 5, 7), left.expand(2, 5, 1), right.expand(2, 1, 7)
    actual = decomposition_table("fast")[aten.baddbmm.default](*batches, **factors)
    torch.testing.assert_close(actual[1].double(), expected, rtol=torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (torch.randn(5, 2), torch.randn(2, 7)),
        (torch.ones(5, 1, dtype=torch.int64), torch.ones(1, 7, dtype=torch.int64)),
        (torch.randn(5, 1, dtype=torch.complex64), torch.randn(1, 7, dtype=torch.complex64)),
        (torch.randn(5, 1), torch.randn(1, 7, dtype=torch.float64)),
        (torch.randn(5, 1), torch.randn(2, 7)),
        (torch.randn(5, 1), torch.randn(1)),
    ],
)
def test_other_products_stay_whole(left: Any, right: Any) -> None:
    """Also those that eager mode refuses, which must raise what it raises."""
    assert decomposition_table("fast")[aten.mm.default](left, right) is NotImplemented
    assert aten.mm.default not in decomposition_table("eager")


def test_infinities_meet_zeros_as_in_eager_mode() -> None:
    left = torch.tensor([[torch.inf], [0.0], [-0.0], [torch.nan]])
    right = torch.tensor([[0.0, torch.inf, 1.0]])
    actual = decomposition_table("fast")[aten.mm.default](left, right)
    torch.testing.assert_close(actual, left @ right, equal_nan=True)


@pytest.mark.usefixtures("interpreted_kernels")
@pytest.mark.quick(1)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("sizes", [(6, 1), (1, 6)])
def test_a_layer_with_one_row_or_column_trains_without_a_call_for_it(
    sizes: tuple[int, int], dynamic: bool
) -> None:
    rows, columns = sizes
    layer = torch.nn.Linear(33, columns)
    compiled = torch.compile(layer, backend="polyfuse", dynamic=dynamic, options={"strict": True})
    x = torch.randn(rows, 33, requires_grad=True)
    inputs = (x, *layer.parameters())
    expected = torch.autograd.grad(layer(x).square().sum(), inputs)
    _, code = polyfuse.run_and_get_code(lambda: compiled(x).square().sum().backward())
    backward = next(str(graph) for graph in code if "(backward)" in str(graph))
    assert backward.count("aten_mm_out(") == 1  # of two products, that which adds up something
    torch.testing.assert_close((x.grad, *(p.grad for p in layer.parameters())), expected)
