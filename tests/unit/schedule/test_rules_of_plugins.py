"""Fusion rules of the shipped plugins: what they keep apart, and what they leave alone."""

from __future__ import annotations

import pytest

from polyfuse.ir.expr import Expr, apply
from polyfuse.plugin import FusionPair, FusionRule, FusionRules, No, TargetInfo, Yes
from polyfuse_cpp.fusion_rules import few_streams
from polyfuse_cutlass.fusion_rules import RULES as CUTLASS_RULES
from polyfuse_halide.fusion_rules import RULES
from schedule_builder import Maker, axes

MB = 1 << 20


def pair(streams: int, shared: int, touched: int) -> FusionPair:
    return FusionPair(
        (), (), "cpu", "cpp", TargetInfo(), streams=streams, shared_bytes=shared, touched_bytes=touched
    )


@pytest.mark.parametrize(
    ("streams", "shared", "touched", "allowed"),
    [
        (16, 0, 64 * MB, True),
        (17, 4 * MB, 64 * MB, False),
        (17, 16 * MB, 64 * MB, True),  # it reads a quarter less
        (49, 0, MB - 1, True),  # all stays in a cache
    ],
)
def test_many_arrays_are_one_kernel_only_where_they_share_much(streams, shared, touched, allowed):
    answer = few_streams(pair(streams, shared, touched))
    assert isinstance(answer, Yes if allowed else No)
    if isinstance(answer, No):
        assert f"{streams} arrays" in answer.reason


def reasons(m: Maker, rule: FusionRule, *outputs: str) -> list[str]:
    """What a rule refuses of a graph."""
    m.rules = FusionRules([("mine", rule)])
    found = m.schedule(*outputs).decisions
    return [d.reason for d in found if d.kind == "refuse" and f"(rule mine.{rule.name})" in d.reason]


def matrix(rows: int, columns: int, over_rows: bool, outer: bool = True) -> Maker:
    """A matrix of which something is stored for each element, and sums of rows or of columns."""
    m = Maker()
    i, j = axes(rows, columns)
    m.buffer("x", rows, columns, kind="input")
    m.buffer("y", rows, columns)
    m.buffer("s", rows if over_rows else columns)
    left, added = ((i,), (j,)) if over_rows else ((j,), (i,))
    value = m.load("x", i, j)
    m.reduce("s", left, added, "sum", value)
    if outer:
        m.pointwise("y", (i, j), apply("exp", value))
    else:
        m.buffer("t", columns)
        m.pointwise("t", left, apply("exp", m.load("s", *left)))
    return m


(_, COLUMNS) = RULES


@pytest.mark.parametrize(
    ("made", "outputs", "refused"),
    [
        (lambda: matrix(1024, 1024, over_rows=False), ("s", "y"), True),
        (lambda: matrix(1024, 1024, over_rows=True), ("s", "y"), False),
        (lambda: matrix(64, 64, over_rows=False), ("s", "y"), False),
        (lambda: matrix(1024, 1024, over_rows=False, outer=False), ("s", "t"), False),
    ],
    ids=["columns", "rows", "in a cache", "what follows the sums"],
)
def test_sums_of_columns_share_no_loop_with_what_is_stored_for_each_element(made, outputs, refused):
    assert bool(reasons(made(), COLUMNS, *outputs)) == refused


def test_a_mean_of_rows_makes_no_reduction_one_of_columns():
    m = matrix(1024, 1024, over_rows=True)
    i, j = axes(1024, 1024)
    m.buffer("v", 1024)
    moved: Expr = apply("sub", m.load("x", i, j), m.load("s", i))
    m.reduce("v", (i,), (j,), "sum", moved)
    assert not reasons(m, COLUMNS, "v", "y")


@pytest.mark.parametrize(("operands", "refused"), [(4, False), (5, True)])
def test_an_epilogue_reads_few_matrices(operands, refused):
    m = Maker()
    i, j, k = axes(256, 256, 256)
    for name in ("a", "b", "bias", *(f"m{n}" for n in range(operands))):
        m.buffer(name, *((256,) if name == "bias" else (256, 256)), kind="input")
    for name in ("c", "d"):
        m.buffer(name, 256, 256)
    m.reduce("c", (i, j), (k,), "dot", m.load("a", i, k), m.load("b", k, j))
    value = apply("add", m.load("c", i, j), m.load("bias", j))
    for n in range(operands):
        value = apply("mul", value, m.load(f"m{n}", i, j))
    m.pointwise("d", (i, j), value)
    (rule,) = CUTLASS_RULES
    assert bool(reasons(m, rule, "d")) == refused
