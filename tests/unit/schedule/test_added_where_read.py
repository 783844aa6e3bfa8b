"""Parts of a split GEMM are added up by loops that read their sum at several positions."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from polyfuse.ir.expr import apply, cast, const, index_value, load
from polyfuse.ir.nodes import Pointwise
from polyfuse.ir.types import DType
from polyfuse.plugin import TargetInfo
from polyfuse.schedule import Launch
from schedule_builder import Anything, Maker, axes, reasons, run

ROWS, COLUMNS, DEPTH = 3, 8, 16


class Costly(Anything):
    """Where a launch takes the time of 4 KiB."""

    def target_info(self, device: str) -> TargetInfo:
        return dataclasses.replace(super().target_info(device), launch_bytes=1 << 12)


def rotated(backend: type[Anything] = Costly, rows: int = ROWS, second: str = "parts") -> Maker:
    """A product whose depth is in two parts, and its rows with their halves exchanged, the first negated. The
    second part is read in the buffer `second`.
    """
    m = Maker(backend=backend)
    m.buffer("x", rows, DEPTH, kind="input")
    m.buffer("w", COLUMNS, DEPTH, kind="input")
    (p, i, j), (r,) = axes(2, rows, COLUMNS), axes(DEPTH // 2, prefix="r")
    inside = p * (DEPTH // 2) + r
    for parts in dict.fromkeys(("parts", second)):
        m.buffer(parts, 2, rows, COLUMNS)
        m.reduce(parts, (p, i, j), (r,), "dot", m.load("x", i, inside), m.load("w", j, inside))
    m.buffer("y", rows, COLUMNS, dtype=DType.bf16)
    i, j = axes(rows, COLUMNS)
    m.pointwise(
        "y", (i, j), cast(apply("add", m.load("parts", 0, i, j), m.load(second, 1, i, j)), DType.bf16)
    )
    m.buffer("z", rows, COLUMNS)
    half, at = COLUMNS // 2, m.at("y", i, j)
    left = apply("lt", index_value(j), const(half, DType.i64))
    right = apply("ge", index_value(j), const(half, DType.i64))
    ahead, behind = (
        cast(load("y", at + step, DType.bf16, (), mask, const(0.0, DType.bf16)), DType.f32)
        for step, mask in ((half, left), (-half, right))
    )
    swapped = apply("where", left, apply("neg", ahead), behind)
    m.pointwise("z", (i, j), apply("add", cast(m.load("y", i, j), DType.f32), swapped))
    return m


def test_the_sum_has_no_launch() -> None:
    m = rotated()
    schedule = m.schedule("z")
    assert len(schedule.steps) == 2 and len(reasons(schedule, "inline")) == 1
    given = {"x": torch.randn(ROWS, DEPTH), "w": torch.randn(COLUMNS, DEPTH)}
    found = run(schedule, given)
    y = (given["x"] @ given["w"].t()).bfloat16().float()
    wanted = y + torch.cat((-y[:, 4:], y[:, :4]), 1)
    torch.testing.assert_close(found["z"], wanted, rtol=1e-2, atol=2e-2)
    assert "y" not in found


@pytest.mark.parametrize(
    "kind",
    ["cheap launches", "a result", "read by a call", "written again", "another written again", "large"],
)
def test_a_sum_that_stays(kind: str) -> None:
    second = "others" if kind == "another written again" else "parts"
    m = rotated(Anything if kind == "cheap launches" else Costly, 256 if kind == "large" else ROWS, second)
    results = ["z"]
    if kind == "a result":
        results.append("y")
    if kind == "read by a call":
        m.buffer("c", ROWS, COLUMNS, dtype=DType.bf16)
        m.call("aten.sin.default", ("c",), "y")
        results.append("c")
    if kind.endswith("written again"):
        i, j = axes(ROWS, COLUMNS)
        m.nodes.insert(
            len(m.nodes) - 1,
            Pointwise("again", (i, j), (), second, m.at(second, 1, i, j), const(0.0, DType.f32)),
        )
        results.append(second)
    schedule = m.schedule(*results)
    assert not reasons(schedule, "inline")
    assert sum(isinstance(step, Launch) for step in schedule.steps) >= 3
