"""Products of groups in tried: calls that plugins may take over, on groups of equal shares."""

from __future__ import annotations

import pytest
import torch

from polyfuse.autotune.benchmark import _filled
from polyfuse.autotune.candidate import Storage
from polyfuse.autotune.segments import Operands
from polyfuse.ir.graph import Graph
from polyfuse.ir.nodes import Buffer, ExternCall, View
from polyfuse.ir.types import DType


def buffer(name: str, *size: int, dtype: DType = DType.f32) -> Buffer:
    stride = tuple(int(torch.tensor(size[i + 1 :]).prod()) for i in range(len(size)))
    return Buffer(name, dtype, "cpu", size, stride, str(dtype.torch).removeprefix("torch."), "input")


@pytest.mark.parametrize(
    ("left", "right", "whole"),
    (((12, 8), (4, 8, 16), 12), ((4, 6, 8), (8, 20), 20), ((6, 24), (24, 16), 24)),
    ids=("rows", "columns", "depths"),
)
@pytest.mark.parametrize("named", (False, True))
def test_groups_share_what_is_divided(left, right, whole, named):
    held = {b.name: b for b in (buffer("a", *left), buffer("b", *right), buffer("e", 4, dtype=DType.i32))}
    held["o"] = buffer("o", 1)
    views = [View(name, held[name].size, held[name].stride) for name in "abe"]
    args, kwargs = (views[:2], (("offs", views[2]),)) if named else (views, ())
    node = ExternCall("n", "aten._grouped_mm.default", tuple(args), kwargs, ("o",))
    operands = Operands({})
    operands.call(Graph("g", "inference", (), (), held, (node,), {}, {}), node)
    assert [storage.fill for storage in operands.storages if storage.dtype == "int32"] == [f"ends {whole}"]


def test_ends_are_in_memory():
    (held,) = _filled([Storage("int32", "cpu", 4, "ends 10")])
    assert held.dtype is torch.int32 and held.tolist() == [3, 7, 7, 10]


def test_it_is_a_call_that_plugins_may_take_over():
    from polyfuse.lowering.families import registry

    lowering = registry().get("aten._grouped_mm.default")
    assert lowering is not None and lowering.library


def test_compiled_it_gives_what_eager_mode_gives():
    rows, matrices = torch.randn(16, 32), torch.randn(3, 32, 64)
    ends = torch.tensor([4, 4, 16], dtype=torch.int32)

    def grouped(rows: torch.Tensor, matrices: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        return torch._grouped_mm(rows.bfloat16() * 2, matrices.bfloat16(), offs=ends).relu()

    try:
        wanted = grouped(rows, matrices, ends)
    except (RuntimeError, NotImplementedError) as error:
        pytest.skip(f"this torch has no products of groups on the CPU, which the test compares with: {error}")
    for options in ({}, {"gemm": "fastest", "tune_in_process": True}):
        found = torch.compile(grouped, backend="polyfuse", options={**options, "strict": True})(
            rows, matrices, ends
        )
        torch.testing.assert_close(found, wanted)
        torch.compiler.reset()
