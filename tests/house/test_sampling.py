"""Quick runs have a sample of what many parameters combine to."""

from __future__ import annotations

import pytest

A, B, ROWS = range(4), range(3), ((1, 2), (1, 3), (2, 2))


@pytest.mark.each_value
@pytest.mark.parametrize("a", A)
@pytest.mark.parametrize("b", B)
@pytest.mark.parametrize(("c", "d"), ROWS)
def test_product(a: int, b: int, c: int, d: int) -> None:
    assert (c, d) in ROWS and a in A and b in B


@pytest.mark.quick(2)
@pytest.mark.parametrize("a", A)
def test_some(a: int) -> None:
    assert a in A


def test_each_value_is_in_a_quick_combination(request: pytest.FixtureRequest) -> None:
    items = [item for item in request.session.items if isinstance(item, pytest.Function)]
    named = {
        name: [
            item.callspec.params
            for item in items
            if item.function.__name__ == name
            and item.path == request.node.path
            and not item.get_closest_marker("slow")
        ]
        for name in ("test_product", "test_some")
    }
    product = named["test_product"]
    if product:  # else this test was asked for alone
        assert {row["a"] for row in product} == set(A) and {row["b"] for row in product} == set(B)
        assert {(row["c"], row["d"]) for row in product} == set(ROWS)
        assert len(product) < 12
        assert len(named["test_some"]) == 2
