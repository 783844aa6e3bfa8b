"""Programs whose ranks compile different things: planted mistakes, and differences that are meant."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import _functional_collectives as collectives

OPTIONS = {"backends": ["interpreter"], "strict": True, "graph_cache": False}


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return torch.compile(function, backend="polyfuse", options=OPTIONS | options)


def total(x: Tensor) -> Tensor:
    return collectives.all_reduce(x * 2, "sum", dist.group.WORLD)


def gathered(x: Tensor) -> Tensor:
    return collectives.all_gather_tensor(x * 2, 0, dist.group.WORLD).view(2, -1).sum(0)


def total_then_gathered(x: Tensor) -> Tensor:
    return total(x) + gathered(x + 1)


def gathered_then_total(x: Tensor) -> Tensor:
    return gathered(x + 1) + total(x)


# Mistakes: each rank's error is compared with what the test expects.


def another_collective(rank: int) -> Any:
    return compiled((total, gathered)[rank])(torch.ones(4))


def another_order(rank: int) -> Any:
    return compiled((total_then_gathered, gathered_then_total)[rank])(torch.ones(4))


def one_more(rank: int) -> Any:
    return compiled((total, total_then_gathered)[rank])(torch.ones(4))


def another_size(rank: int) -> Any:
    return compiled(total)(torch.ones(4 + rank))


def another_type(rank: int) -> Any:
    return compiled(total)(torch.ones(4, dtype=(torch.float32, torch.float64)[rank]))


def another_option(rank: int) -> Any:
    return compiled(total, numerics=("fast", "eager")[rank])(torch.ones(4))


def other_backends(rank: int) -> Any:
    return compiled(total, backends=(["interpreter"], ["interpreter", "cpp"])[rank])(torch.ones(4))


def another_version(rank: int) -> Any:
    from polyfuse.compiler import ranks

    ranks.version = lambda: ("1.0", "1.1")[rank]  # type: ignore[assignment]
    try:
        return compiled(total)(torch.ones(4))
    finally:
        from polyfuse.base.code import version

        ranks.version = version


def a_compile_that_fails(rank: int) -> Any:
    from polyfuse.compiler import stages

    def fail(*args: Any) -> Any:
        time.sleep(0.5)
        raise RuntimeError("planted")

    original = stages.compile_whole
    if rank:
        stages.compile_whole = fail
    try:
        return compiled(total)(torch.ones(4))
    finally:
        stages.compile_whole = original


def a_backward_that_differs(rank: int) -> Any:
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return (total, gathered)[rank](gradient)

    x = torch.ones(4, requires_grad=True)
    compiled(lambda x: Scaled.apply(x).sum())(x).backward()
    return x.grad


# What is meant to differ: each must return what eager mode does.


def stages_of_a_pipeline(rank: int) -> Any:
    """Messages, not collectives, and other code on each rank."""
    if rank == 0:
        sent = compiled(lambda x: x.sin() * 2)(torch.ones(4))
        dist.send(sent, 1)
        return sent
    received = torch.empty(4)
    dist.recv(received, 0)
    return compiled(lambda x: x.cos().cos() + 1)(received)


def groups_of_one_rank(rank: int) -> Any:
    """Subsets whose graphs differ."""
    groups = [dist.new_group([0]), dist.new_group([1])]

    def first(x: Tensor) -> Tensor:
        return collectives.all_reduce(x, "sum", groups[0])

    def second(x: Tensor) -> Tensor:
        return collectives.all_gather_tensor(x, 0, groups[1]) * 3

    return compiled((first, second)[rank])(torch.ones(4))


def one_rank_compiles(rank: int) -> Any:
    """The same collectives in eager mode on one rank."""
    return (compiled(total) if rank else total)(torch.ones(4))


def one_rank_compiles_again(rank: int) -> Any:
    """Sizes change on one rank only; what is communicated has one size."""

    def function(x: Tensor) -> Tensor:
        return collectives.all_reduce(x.sum(0), "sum", dist.group.WORLD)

    run = compiled(function)
    return [run(torch.ones(3 + (rank * step), 4)) for step in range(4)]


def a_break_on_one_rank(rank: int) -> Any:
    """A graph break puts the collectives of one rank into two graphs."""

    def function(x: Tensor) -> Tensor:
        y = total(x)
        if rank == 0:
            torch._dynamo.graph_break()
        return y + gathered(y)

    return compiled(function)(torch.ones(4))


def one_rank_is_late(rank: int) -> Any:
    """Longer than others wait for it."""
    time.sleep(3 * rank)
    return compiled(total, agreement_seconds=1)(torch.ones(4))


def not_compared(rank: int) -> Any:
    return compiled(total, numerics=("fast", "eager")[rank], agreement_seconds=0)(torch.ones(4))


def watched_on_one_rank(rank: int) -> Any:
    return compiled(total, debug_sync=bool(rank))(torch.ones(4))


MISTAKES = (
    another_collective,
    another_order,
    one_more,
    another_size,
    another_type,
    another_option,
    other_backends,
    another_version,
    a_compile_that_fails,
    a_backward_that_differs,
)

MEANT = (
    stages_of_a_pipeline,
    groups_of_one_rank,
    one_rank_compiles,
    one_rank_compiles_again,
    a_break_on_one_rank,
    one_rank_is_late,
    not_compared,
    watched_on_one_rank,
)


def outcome(case: Callable[[int], Any], rank: int) -> str:
    """The error of a case, or `fine`."""
    torch._dynamo.reset()
    try:
        case(rank)
    except Exception as error:
        while error.__cause__ is not None:
            error = error.__cause__  # type: ignore[assignment]
        return f"{type(error).__name__}: {error}"
    return "fine"


def main(rank: int, count: int, meeting: str, answers: str) -> None:
    """Run all cases; a mistake must leave the group usable, since nothing was communicated."""
    dist.init_process_group(
        "gloo",
        init_method=Path(meeting).as_uri(),
        rank=rank,
        world_size=count,
        timeout=timedelta(seconds=60),
    )
    found = {}
    for case in (*MISTAKES, *MEANT):
        begin = time.monotonic()
        found[case.__name__] = outcome(case, rank)
        print(case.__name__, round(time.monotonic() - begin, 2), found[case.__name__], flush=True)
        dist.barrier()
    Path(f"{answers}{rank}").write_text(json.dumps(found), encoding="utf-8")
    dist.destroy_process_group()
