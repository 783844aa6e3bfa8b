"""Models whose operators call functions: conditions, loops, scans, functions with gradients of their own."""

from __future__ import annotations

from typing import Any

import torch
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop


def branch(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda x: x.softmax(-1) + 1, lambda x: x.cos() * 2, (x + 1,)) * 3


def loop(x: torch.Tensor) -> Any:
    start = torch.zeros((), dtype=torch.int64)
    return while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, x.sin() + x.mean()), (start, x))[1]


def running(x: torch.Tensor) -> Any:
    return scan(lambda carry, row: (carry * 0.9 + row.softmax(-1), carry + row), x[0], x, dim=0)


class Twice(torch.autograd.Function):
    """Says itself what its gradient is."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 2


@torch.library.custom_op("polyfuse_called::add_to", mutates_args={"x"})
def add_to(x: torch.Tensor, y: torch.Tensor) -> None:
    x.add_(y)


def writes(x: torch.Tensor) -> torch.Tensor:
    """Calls an operator that writes: to memory of its own, and to a copy of what it was given."""
    own, copy = torch.zeros_like(x), x.clone()
    add_to(own, x)
    add_to(copy, own)
    return own * copy


def branch_that_writes(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, writes, lambda x: x.cos() * 2, (x,)) * 3


def loop_that_writes(x: torch.Tensor) -> Any:
    start = torch.zeros((), dtype=torch.int64)
    return while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, writes(x) * 0.1), (start, x))[1]
