"""Kernels that a function becomes when backends generate its matmuls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from polyfuse.compiler import stages
from polyfuse.ir.kernel import Kernel
from polyfuse.schedule import Launch

OPTIONS = {"backends": ["interpreter"], "gemm": "generated", "strict": True, "cache": False}


def kernels_of(
    function: Callable[..., Any], *args: torch.Tensor, dynamic: bool = False, **options: object
) -> list[Kernel]:
    """The kernels of `function`, compiled for these arguments; its results are compared with eager mode's."""
    found: list[Kernel] = []
    schedule_graph = stages.schedule_graph

    def spy(*given: Any, **more: Any) -> Any:
        schedule = schedule_graph(*given, **more)
        found.extend(step.kernel for step in schedule.steps if isinstance(step, Launch))
        return schedule

    stages.schedule_graph = spy
    try:
        torch._dynamo.reset()
        chosen = {**OPTIONS, **options}
        compiled = torch.compile(function, backend="polyfuse", options=chosen, dynamic=dynamic)
        result = compiled(*args)
    finally:
        stages.schedule_graph = schedule_graph
    half = any(a.dtype in (torch.bfloat16, torch.float16) for a in args)
    limit = 3e-2 if half else 1e-4
    torch.testing.assert_close(result, function(*args), rtol=limit, atol=limit)
    return found
