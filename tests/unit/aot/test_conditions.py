"""What `torch.export` found must be true of sizes is checked when a package is called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sympy
import torch
from torch.export import Dim, export
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from polyfuse.aot import Package, load, package
from polyfuse.base.errors import PackageError
from polyfuse.torch_compat.tracing import shapes


def packaged(folder: Path, model: torch.nn.Module, *args: Any, dynamic: Any) -> Package:
    program = export(model, args, dynamic_shapes=dynamic)
    return load(package(program, path=folder / "model.pf", options={"backends": ["cpp"], "strict": True}))


class EveryThird(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x[2::3] * y


def test_sizes_that_are_related_by_a_division(tmp_path: Path) -> None:
    dynamic = ((Dim.AUTO,), (Dim.AUTO,))
    found = packaged(tmp_path, EveryThird(), torch.randn(14), torch.randn(4), dynamic=dynamic)
    for rows in (14, 15, 16, 30):
        x, y = torch.randn(rows), torch.randn(rows // 3)
        torch.testing.assert_close(found(x, y), x[2::3] * y)
    for rows, others in ((14, 5), (17, 4), (30, 9)):
        with pytest.raises(PackageError, match="compiled for sizes of which"):
            found(torch.randn(rows), torch.randn(others))


class Pooled(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.max_pool2d(x, 2).flatten(1).sum(1) + torch.cat([y, y]).view(3, -1).sum()


@pytest.mark.slow
def test_several_conditions_at_once(tmp_path: Path) -> None:
    dynamic = ({0: Dim.AUTO, 2: Dim.AUTO, 3: Dim.AUTO}, (Dim.AUTO,))
    model = Pooled()
    found = packaged(tmp_path, model, torch.randn(2, 3, 8, 9), torch.randn(6), dynamic=dynamic)
    for shape, count in (((2, 3, 8, 9), 6), ((5, 3, 10, 4), 9)):
        x, y = torch.randn(shape), torch.randn(count)
        torch.testing.assert_close(found(x, y), model(x, y))
    with pytest.raises(PackageError, match="forward: "):
        found(torch.randn(2, 3, 8, 9), torch.randn(7))  # no multiple of 3


def test_conditions_as_text() -> None:
    env = ShapeEnv()
    a, b = (env.create_symintnode(sympy.Symbol(n, integer=True, positive=True), hint=8) for n in "ab")
    assert shapes.condition_texts(None, (a, b)) == ()
    first, second = shapes.expr_of(a), shapes.expr_of(b)
    for condition in (
        sympy.And(first >= 4, sympy.Ne(second, 3)),
        sympy.Or(sympy.Eq(first, 8), second > first),
        sympy.Not(sympy.Or(sympy.Eq(first, 9), second > 2 * first), evaluate=False),
        sympy.Ne(sympy.Symbol("elsewhere"), 1),
    ):
        env.guards.append(type("Guard", (), {"expr": condition})())
    texts = shapes.condition_texts(env, (a, b))
    assert len(texts) == 4 and not any(sign in text for text in texts for sign in "&|~")
    functions = {
        "And": lambda *p: all(p),
        "Or": lambda *p: any(p),
        "Not": lambda p: not p,
        "Eq": lambda p, q: p == q,
        "Ne": lambda p, q: p != q,
    }
    assert all(eval(text, functions, {"a": 8, "b": 8}) for text in texts)
    assert sum(eval(text, functions, {"a": 9, "b": 3}) for text in texts) == 1
