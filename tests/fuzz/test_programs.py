"""Random programs agree with eager mode, however they are fused and wherever their values are kept."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from polyfuse.base.settings import Settings
from polyfuse.compiler.session import session_for
from polyfuse.compiler.stages import compile_aten
from polyfuse.frontend.decompose import decomposition_table
from polyfuse.frontend.traced import compile_traced

sys.path.insert(0, str(Path(__file__).parent))
from random_programs import Program, random_program

OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"fusion": False},
    {"aggressive_fusion": True, "list_fusion": True},
    {"memory_pools": True},
    {"inplace": False, "reuse_buffers": False},
    {"loop_ordering": False, "max_inlined_reads": 1, "max_inlined_ops": 1},
    {"max_fusion_size": 3, "memory_pools": True, "aggressive_fusion": True},
    {"graph_rewrites": False, "fuel": 5},
)


def compiled(program: Program, **options: Any):
    session = session_for(Settings.resolve(None, {"strict": True, "verify": 2, **options}))
    traced = make_fx(
        torch.func.functionalize(program, remove="mutations_and_views"),
        tracing_mode="fake",
        decomposition_table=decomposition_table("fast"),
    )(*program.arguments)
    return compile_traced(traced, inner=lambda graph: compile_aten(graph, session), settings=session.settings)


def check(seed: int, length: int, **options: Any) -> None:
    program = random_program(seed, length)
    inputs = [value.clone() for value in program.arguments]
    expected = program(*program.arguments)
    found = compiled(program, **options)(list(inputs))
    for number, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        torch.testing.assert_close(
            mine, theirs, msg=lambda text, n=number: f"seed {seed}, result {n}:\n{program}\n{text}"
        )
    for mine, theirs in zip(inputs, program.arguments, strict=True):
        assert torch.equal(mine, theirs), "an input was changed"


@pytest.mark.parametrize("seed", range(24))
def test_small_programs(seed: int) -> None:
    check(seed, 12, backends=("interpreter",), **OPTIONS[seed % len(OPTIONS)])


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: ",".join(o) or "default")
def test_many_programs(options: dict[str, Any]) -> None:
    for seed in range(1000, 1060):
        check(seed, 30, backends=("interpreter",), **options)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2000, 2012))
def test_generated_code(seed: int) -> None:
    check(seed, 25, **OPTIONS[seed % len(OPTIONS)])


def by_dynamo(program: Program, **options: Any):
    torch._dynamo.reset()
    settings = {"backends": ["interpreter"], "strict": True, "verify": 2}
    return torch.compile(program.__call__, backend="polyfuse", options=settings, **options)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3000, 3016))
def test_gradients(seed: int) -> None:
    program = random_program(seed, 14)
    inputs = [value.clone().requires_grad_() for value in program.inputs]
    function = by_dynamo(program, dynamic=False)
    gradients = []
    for run in (program, function):
        results = [r for r in run(*inputs, *program.tables) if r.requires_grad]
        total = sum((torch.sin(result).sum() for result in results), torch.zeros((), requires_grad=True))
        gradients.append(torch.autograd.grad(total, inputs, allow_unused=True, materialize_grads=True))
    for mine, theirs in zip(gradients[1], gradients[0], strict=True):
        torch.testing.assert_close(
            mine,
            theirs,
            equal_nan=True,
            rtol=1e-4,
            atol=1e-4,
            msg=lambda text: f"seed {seed}:\n{program}\n{text}",
        )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4000, 4016))
def test_unknown_sizes(seed: int) -> None:
    program = random_program(seed, 14)
    function = by_dynamo(program, dynamic=True)
    for mine, theirs in zip(function(*program.arguments), program(*program.arguments), strict=True):
        torch.testing.assert_close(mine, theirs, msg=lambda text: f"seed {seed}:\n{program}\n{text}")
