"""Functions of numbers, as plugins have them lowered into a graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from polyfuse.base.errors import UnsupportedError
from polyfuse.base.settings import Settings
from polyfuse.frontend.graph import AtenGraph
from polyfuse.ir.expr import index_value, loads
from polyfuse.ir.types import DType
from polyfuse.lowering import lower as lowering
from polyfuse.lowering.report import LoweringReport
from polyfuse.symbolic import axis, free_axes


def context() -> Any:
    """The context of a graph that returns its one input."""
    module = make_fx(lambda x: x.clone(), tracing_mode="fake")(torch.zeros(8))
    aten = AtenGraph.__new__(AtenGraph)
    fields = {
        "module": module,
        "shape_env": None,
        "name": "g",
        "kind": "inference",
        "inputs": (),
        "outputs": (),
    }
    for name, value in fields.items():
        object.__setattr__(aten, name, value)
    return lowering._Lowerer(aten, Settings(), LoweringReport()).ctx


def traced(function: Any, *examples: torch.Tensor) -> torch.fx.GraphModule:
    return make_fx(function, tracing_mode="fake")(*examples)


def along(ctx: Any, name: str = "q") -> Any:
    """The position along an axis as a number."""
    return ctx.lazy(ctx.temporary(DType.i64, "cpu", ()), index_value(axis(name, 8)))


def test_numbers_become_an_expression_of_indices():
    ctx = context()
    module = traced(lambda a, b: torch.tanh(a * 2.0 - b), torch.tensor(1), torch.tensor(2))
    found = ctx.inline(module, [along(ctx, "q"), along(ctx, "k")])
    body = found.at(())
    assert body.op == "tanh" and body.dtype is DType.f32
    assert not loads(body) and not ctx.nodes


def test_captured_tensors_are_read_at_an_index():
    ctx = context()
    table = ctx.stored(ctx.temporary(DType.f32, "cpu", (8,)))
    module = traced(lambda t, a: torch.ops.aten.index.Tensor(t, [a]), torch.zeros(8), torch.tensor(1))
    (read,) = loads(ctx.inline(module, [table, along(ctx)]).at(()))
    assert free_axes(read.index) == ("q",)


def test_what_is_no_scalar_expression_is_refused():
    ctx = context()
    module = traced(lambda a: torch.linalg.det(a.expand(2, 2)), torch.tensor(1.0))
    given = ctx.lazy(ctx.temporary(DType.f32, "cpu", ()), index_value(axis("q", 8)))
    with pytest.raises(UnsupportedError):
        ctx.inline(module, [given])
    with pytest.raises(UnsupportedError, match="no traced function"):
        ctx.inline(len, [given])


def test_objects_have_names_of_their_own():
    ctx = context()
    names = [ctx.add_object("thing", print) for _ in range(2)]
    assert len(set(names)) == 2 and all(name.startswith("object.") for name in names)
    assert list(ctx.objects.values()) == [print, print]
