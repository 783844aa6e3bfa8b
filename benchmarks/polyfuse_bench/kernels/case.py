"""What the registry says of one kernel benchmark."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

Arguments = tuple[Any, ...]
Choice = TypeVar("Choice")

# The two regimes of a CPU kernel: the call's own cost, and memory traffic beyond the second-level cache.
SMALL = "small"
LARGE = "large"
SIZES = (SMALL, LARGE)
# Results nearer to zero than this may be zero elsewhere.
KINK = 1e-4
# Several times the second-level cache of an accelerator.
HUGE = "huge"


@dataclass(frozen=True)
class KernelCase:
    """One function to compile, and its arguments at each size.

    `backward` cases also run the gradient of the (single) result by all floating-point arguments. `mutates`
    cases write into their arguments, so that a check of values must give each candidate its own copy. The
    gradient of `kinked` cases jumps where the result leaves zero: which side of it a number is on that lies
    within rounding of zero is chance, so no gradient flows back from there.
    """

    name: str
    group: str
    function: Callable[..., Any]
    arguments: Callable[[str], Arguments]
    backward: bool = False
    mutates: bool = False
    kinked: bool = False


def rows_by_columns(size: str) -> tuple[int, int]:
    """The shape of a row-wise kernel: 16x64 is all overhead, 2048x1024 is 8 MiB, 16384x4096 256 MiB."""
    return of(size, (16, 64), (2048, 1024), (16384, 4096))


def matrix(size: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*rows_by_columns(size)).to(dtype)


def images(size: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*of(size, (1, 4, 16, 16), (8, 64, 56, 56), (64, 64, 112, 112))).to(dtype)


def of(size: str, small: Choice, large: Choice, huge: Choice) -> Choice:
    """The one of three that goes with a size."""
    return {SMALL: small, LARGE: large, HUGE: huge}[size]


def runner(case: KernelCase, function: Callable[..., Any], arguments: Arguments) -> Callable[[], Any]:
    """A call without arguments: the forward, or the forward with the gradients of its arguments."""
    if not case.backward:
        return functools.partial(function, *arguments)
    wanted = [argument.requires_grad_() for argument in arguments if _differentiable(argument)]
    with torch.no_grad():
        expected = case.function(*arguments)
        seed = torch.randn_like(expected)
        if case.kinked:
            seed.masked_fill_(expected.abs() < KINK, 0.0)

    def forward_and_backward() -> Any:
        result = function(*arguments)
        return (result.detach(), *torch.autograd.grad(result, wanted, seed))

    return forward_and_backward


def _differentiable(argument: object) -> bool:
    return isinstance(argument, torch.Tensor) and argument.is_floating_point()
