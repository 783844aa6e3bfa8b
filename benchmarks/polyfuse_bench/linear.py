"""Linear layers of many shapes, with what usually follows them: is the chosen matmul the fastest?

Times the cases of one row in this process. Weights and inputs are fixed; nothing is trained.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F

from polyfuse_bench.backends import EAGER, INDUCTOR, POLYFUSE, compiled
from polyfuse_bench.devices import CPU, waiter
from polyfuse_bench.gemm_cases import Case, linear_gelu, linear_residual
from polyfuse_bench.side_by_side import side_by_side
from polyfuse_bench.timing import Effort

CANDIDATES = (EAGER, f"{INDUCTOR}:max-autotune", f"{POLYFUSE}:max-autotune")
"""Who is compared unless the command line says otherwise: the compilers choose among implementations."""


def _plain(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return F.linear(x, weight, bias)


FUNCTIONS: Mapping[str, Callable[..., torch.Tensor]] = {
    "bias": _plain,
    "gelu": linear_gelu,
    "residual": linear_residual,
}

CASES: Mapping[str, Case] = {
    case.name: case
    for case in (
        Case(rows, inner, outer, then)
        for inner, outer, then, counts in (
            (768, 768, "bias", (1, 4, 16, 64, 256, 1024)),
            (768, 2304, "bias", (1, 32, 128, 2048)),
            (768, 3072, "gelu", (1, 4, 16, 64, 128, 512, 2048)),
            (3072, 768, "residual", (1, 8, 16, 64, 128, 512, 2048)),
            (1024, 4096, "gelu", (1, 128, 512)),
            (4096, 1024, "residual", (2, 32, 256)),
        )
        for rows in counts
    )
}
"""Thirty layers of transformers: attention's projections and the two halves of the feed-forward part."""


def measure(task: Mapping[str, Any]) -> dict[str, Any]:
    """The row of `task["name"]` for `task["backends"]`."""
    case, device = CASES[task["name"]], task.get("device", CPU)
    torch.manual_seed(0)
    dtype = getattr(torch, task["dtype"])
    with torch.device(device):
        arguments = tuple(
            torch.randn(shape, dtype=dtype)
            for shape in (
                (case.rows, case.inner),
                (case.outer, case.inner),
                (case.outer,),
                (case.rows, case.outer),
            )
        )

    def prepare(backend: str) -> Callable[[], torch.Tensor]:
        call = compiled(FUNCTIONS[case.then], backend)
        return lambda: call(*arguments)

    with torch.no_grad():
        outcome = side_by_side(task["backends"], prepare, Effort(**task["effort"]), wait=waiter(device))
    return {
        "name": case.name,
        "dtype": task["dtype"],
        "flop": 2 * case.rows * case.inner * case.outer,
        **outcome,
    }
