"""Rows that add to shared sums stay whole."""

from __future__ import annotations

import pytest

from requirements import TRITON

pytest.importorskip("triton", reason=TRITON)

from polyfuse.ir.expr import load
from polyfuse.ir.nodes import Pointwise, Reduction, Scatter
from polyfuse.ir.types import DType
from polyfuse.symbolic import axis
from polyfuse_triton.fusion_rules import keeps_groups

ROWS, COLUMNS = 60, 300
I, J = axis("i0", ROWS), axis("i1", COLUMNS)
B, S = axis("i2", 4), axis("i3", 15)
PLACE = I * COLUMNS + J
SPLIT = (B * 15 + S) * COLUMNS + J


def scatter(index=None, mode: str = "add") -> Scatter:
    target = (I // 5) * COLUMNS + J if index is None else index
    return Scatter("s", (I, J), (), "part", target, (), load("x", PLACE, DType.f32), mode)


def pointwise(*axes, place, also=None) -> Pointwise:
    value = load("x", place, DType.f32)
    return Pointwise("p", axes, (), "y", place, value if also is None else load("m", also, DType.f32))


def test_rows_as_one_axis_or_several_that_count_as_one():
    for other in (
        pointwise(I, J, place=PLACE),
        pointwise(B, S, J, place=SPLIT),
        pointwise(B, S, J, place=SPLIT, also=J),
        Reduction("r", (B, S), (J,), ("z",), B * 15 + S, "sum", (load("x", SPLIT, DType.f32),)),
        Pointwise("q", (I,), (), "z", I, load("z0", I, DType.f32)),
    ):
        assert keeps_groups([scatter()], [other])
        assert keeps_groups([other], [scatter()])


def test_rows_that_are_taken_apart():
    for other in (
        pointwise(B, S, J, place=SPLIT, also=B * COLUMNS + J),
        pointwise(B, S, J, place=SPLIT, also=S),
        pointwise(J, I, place=J * ROWS + I),
    ):
        assert not keeps_groups([scatter()], [other])
        assert keeps_groups([scatter(PLACE)], [other]) and keeps_groups([scatter(mode="max")], [other])
    assert not keeps_groups([scatter()], [scatter(PLACE)])
    assert keeps_groups([scatter()], [scatter()]) and keeps_groups([scatter()], [scatter(PLACE, "set")])
    assert keeps_groups([pointwise(B, S, J, place=SPLIT)], [pointwise(I, J, place=PLACE)])
