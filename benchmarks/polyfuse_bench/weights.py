"""Two linear layers whose weights are stored with 8 bits, and the same with weights of the activations' type:
a quantised model must not be slower than the one that was quantised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from polyfuse_bench.backends import EAGER, INDUCTOR, POLYFUSE, compiled
from polyfuse_bench.devices import CPU, waiter
from polyfuse_bench.side_by_side import side_by_side
from polyfuse_bench.timing import Effort

CANDIDATES = (EAGER, INDUCTOR, POLYFUSE)
"""Who is compared unless the command line says otherwise: without autotuning, as people call it first."""


@dataclass(frozen=True)
class Case:
    """Rows through a layer of `inner` by `outer` and one back. `stored`: `int8`, or `full`: not quantised."""

    stored: str
    rows: int
    inner: int
    outer: int

    @property
    def name(self) -> str:
        """As the command line calls it."""
        return f"{self.stored}_{self.rows}x{self.inner}x{self.outer}"


CASES: Mapping[str, Case] = {
    case.name: case
    for inner, outer in ((2048, 2048), (4096, 11008))
    for rows in (1, 4, 8, 16, 64)
    for case in (Case("full", rows, inner, outer), Case("int8", rows, inner, outer))
}


def _layers(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor, *scales: torch.Tensor) -> torch.Tensor:
    """Scales are of each output, applied to the result, as weight-only quantisation has them."""
    first = F.linear(x, up.to(x.dtype)) * scales[0]
    return F.linear(F.silu(first), down.to(x.dtype)) * scales[1]


def measure(task: Mapping[str, Any]) -> dict[str, Any]:
    """The row of `task["name"]` for `task["backends"]`."""
    case, device = CASES[task["name"]], task.get("device", CPU)
    torch.manual_seed(0)
    dtype = getattr(torch, task["dtype"])
    shapes = ((case.outer, case.inner), (case.inner, case.outer))
    with torch.device(device):
        x = torch.randn(case.rows, case.inner, dtype=dtype)
        weights = [torch.randint(-127, 128, shape, dtype=torch.int8) for shape in shapes]
        scales = [torch.rand(shape[0], dtype=dtype) / 1000 for shape in shapes]
        if case.stored != "int8":
            weights = [weight.to(dtype) for weight in weights]

    def prepare(backend: str) -> Callable[[], torch.Tensor]:
        call = compiled(_layers, backend)
        return lambda: call(x, *weights, *scales)

    with torch.no_grad():
        outcome = side_by_side(task["backends"], prepare, Effort(**task["effort"]), wait=waiter(device))
    moved = sum(weight.numel() * weight.element_size() for weight in weights)
    return {"name": case.name, "dtype": task["dtype"], "moved_bytes": moved, **outcome}
