"""What a call costs besides computing: graphs of small kernels, by host programs in Python and native ones.

Times the cases of one row in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from polyfuse_bench.backends import DYNAMO, EAGER, INDUCTOR, NATIVE, POLYFUSE, compiled
from polyfuse_bench.side_by_side import side_by_side
from polyfuse_bench.timing import Effort

CANDIDATES = (EAGER, DYNAMO, INDUCTOR, POLYFUSE, f"{POLYFUSE}:{NATIVE}")
"""Who is compared unless the command line says otherwise."""

SIDE = 16
"""Rows and columns of the matrix: a kernel takes far less than a microsecond."""


def chain(count: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Softmaxes along alternating axes: each needs all results of the one before, so each is a kernel."""

    def run(x: torch.Tensor) -> torch.Tensor:
        for number in range(count):
            x = torch.softmax(x, number % 2)
        return x

    return run


def chain_with_matmuls(count: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """The same with a matmul, which the library computes, after every second one."""

    def run(x: torch.Tensor) -> torch.Tensor:
        y = x
        for number in range(count):
            y = torch.softmax(y, number % 2)
            if number % 2:
                y = y @ x
        return y

    return run


CASES: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "kernels-1": chain(1),
    "kernels-10": chain(10),
    "kernels-50": chain(50),
    "kernels-10-matmuls-5": chain_with_matmuls(10),
}


def measure(task: Mapping[str, Any]) -> dict[str, Any]:
    """The row of `task["name"]` for `task["backends"]`."""
    torch.manual_seed(0)
    x = torch.randn(SIDE, SIDE)
    function = CASES[task["name"]]

    def prepare(backend: str) -> Callable[[], torch.Tensor]:
        call = compiled(function, backend, dynamic=None)  # torch patches its settings at each call else
        return lambda: call(x)

    with torch.no_grad():
        outcome = side_by_side(task["backends"], prepare, Effort(**task["effort"]))
    return {"name": task["name"], **outcome}
