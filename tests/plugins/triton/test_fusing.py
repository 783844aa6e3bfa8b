"""Long rows that registers must keep."""

from __future__ import annotations

from dataclasses import replace

import pytest

from requirements import TRITON

pytest.importorskip("triton", reason=TRITON)

from polyfuse.ir.expr import apply, load
from polyfuse.ir.nodes import Node, Pointwise, Reduction
from polyfuse.ir.types import DType
from polyfuse.plugin import FusionPair, TargetInfo
from polyfuse.symbolic import axis
from polyfuse_triton.fusion_rules import few_long_rows

ROWS, COLUMNS = 64, 16384
I = axis("i0", ROWS)


def normalized(name: str, source: str, columns: int = COLUMNS) -> tuple[Node, ...]:
    """A row divided by its sum."""
    j = axis("i1", columns)
    index = I * columns + j
    value = load(source, index, DType.f32)
    total = Reduction(f"r_{name}", (I,), (j,), (f"sum_{name}",), I, "sum", (value,))
    divided = apply("div", value, load(f"sum_{name}", I, DType.f32))
    return total, Pointwise(f"p_{name}", (I, j), (), name, index, divided)


def pair(first: tuple[Node, ...], second: tuple[Node, ...]) -> FusionPair:
    size = ROWS * COLUMNS * 4
    target = TargetInfo()
    return FusionPair(first, second, "cuda:0", "triton", target, ROWS, COLUMNS, size, 8 * size, 8, 8)


def test_many_long_rows_stay_apart():
    many = pair(normalized("a", "x"), normalized("b", "x"))
    claim = few_long_rows(many)
    assert not claim and "rows of 8 arrays, 16384 elements" in claim.reason
    assert few_long_rows(replace(many, streams=6))
    assert few_long_rows(replace(many, shared_bytes=many.touched_bytes // 4))


def test_short_rows_are_fused():
    assert few_long_rows(pair(normalized("a", "x", 1024), normalized("b", "x", 1024)))


def test_parts_of_which_the_rows_were_reduced_before_count_too():
    assert not few_long_rows(pair(normalized("a", "x")[1:], normalized("b", "x")[1:]))


def test_rows_that_are_only_reduced_are_not_stored():
    assert few_long_rows(pair(normalized("a", "x")[:1], normalized("b", "x")))


def test_what_needs_the_other_is_fused():
    assert few_long_rows(pair(normalized("a", "x"), normalized("b", "a")))
