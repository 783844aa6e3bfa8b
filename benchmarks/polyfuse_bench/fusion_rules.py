"""What each fusion rule of a shipped plugin wins: training steps with the rule and without it, interleaved.

Times the cases of one row in this process. A rule stays only if its row shows a gain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

from polyfuse_bench.backends import EAGER, resolved
from polyfuse_bench.devices import CPU
from polyfuse_bench.side_by_side import side_by_side
from polyfuse_bench.timing import Effort

ON, OFF = "polyfuse", "polyfuse:without"
CANDIDATES = (EAGER, ON, OFF)
"""Who is compared: with the rule and without it."""

Step = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Case:
    """One rule on one function.

    Attributes:
        rule: its name, as `disable_fusion_rules` takes it.
        function: of a matrix and vectors of its columns.
        vectors: how many.
        options: under which the rule has something to say.
        device: for which it is.
        size: rows and columns of the matrix.
    """

    rule: str
    function: Step
    vectors: int
    options: Mapping[str, Any] = field(default_factory=dict)
    device: str = "cuda"
    size: tuple[int, int] = (4096, 4096)


def _rms_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return w * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6))


def _layer_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, (x.shape[-1],), w, b)


def _bias(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.gelu(x + b) * 2


_COLUMNS = {"triton.column_reductions": "1"}
CASES: Mapping[str, Case] = {
    "whole-groups-rms-norm": Case("triton.whole-groups", _rms_norm, 1, _COLUMNS),
    "whole-groups-layer-norm": Case("triton.whole-groups", _layer_norm, 2, _COLUMNS),
    "whole-groups-bias": Case("triton.whole-groups", _bias, 1, _COLUMNS),
}


def measure(task: Mapping[str, Any]) -> dict[str, Any]:
    """The row of `task["name"]` for `task["backends"]`, on `task["device"]` if that is not the CPU."""
    case = CASES[task["name"]]
    device = task.get("device", CPU)
    rows, columns = task.get("size") or case.size
    torch.manual_seed(0)
    x = torch.randn(rows, columns, device=device, requires_grad=True)
    vectors = [torch.randn(columns, device=device, requires_grad=True) for _ in range(case.vectors)]
    weight = torch.randn(rows, columns, device=device)

    def prepare(backend: str) -> Callable[[], Any]:
        function = compiled(case, backend, device)
        return lambda: torch.autograd.grad((function(x, *vectors) * weight).sum(), (x, *vectors))

    outcome = side_by_side(task["backends"], prepare, Effort(**task["effort"]))
    return {"name": task["name"], "rule": case.rule, **outcome}


def compiled(case: Case, backend: str, device: str) -> Step:
    """A case's function by one of the candidates; the options of another device's plugin are left out."""
    if backend == EAGER:
        return case.function
    options = dict(case.options) if torch.device(device).type == case.device else {}
    if backend == OFF:
        options["disable_fusion_rules"] = (case.rule,)
    made: Step = torch.compile(case.function, backend=resolved(ON), dynamic=False, options=options)
    return made
