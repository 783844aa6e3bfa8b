"""Collectives of tensors on a GPU: in a group that does its work when it is waited for, and over NCCL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

import delayed_group
from polyfuse.compiler.reports.report import last_reports

pytestmark = pytest.mark.gpu

functional = torch.ops._c10d_functional
wait = functional.wait_tensor


@pytest.fixture(params=("delayed", "nccl"))
def group(request: pytest.FixtureRequest) -> Iterator[int]:
    """The number of ranks of a group, which is the default one."""
    if request.param == "delayed":
        delayed_group.start()
        yield delayed_group.RANKS
        delayed_group.stop()
        return
    if not dist.is_nccl_available():
        pytest.skip("this torch is built without NCCL, over which the test talks to itself")
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    yield 1
    dist.destroy_process_group()


def program(x: torch.Tensor, y: torch.Tensor, ranks: int) -> Any:
    """What is sent and received, and work of the same sizes beside it."""
    gathered = functional.all_gather_into_tensor(x.sin(), ranks, "0")
    total = functional.all_reduce(x @ y, "sum", "0")
    scattered = functional.reduce_scatter_tensor(x.cos(), "sum", ranks, "0")
    for _ in range(6):
        y = (y @ x).tanh() + y.sin().mean(0)
    return y, wait(gathered) * 2, wait(total).cos() + y, wait(scattered) * 3


@pytest.mark.parametrize(
    "options", ({}, {"overlap_collectives": True, "overlap_memory": 500}, {"device_graphs": True})
)
def test_memory_is_held_until_the_wait(group: int, options: dict[str, Any]) -> None:
    torch._dynamo.reset()
    run = torch.compile(program, backend="polyfuse", options=options)
    for _ in range(4):
        x, y = (torch.randn(256, 256, device="cuda") / 16 for _ in range(2))
        torch.testing.assert_close(run(x, y, group), program(x, y, group), rtol=1e-3, atol=1e-3)


def test_collectives_of_nccl_are_recorded() -> None:
    if not dist.is_nccl_available():
        pytest.skip("this torch is built without NCCL, over which the test talks to itself")
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    try:
        torch._dynamo.reset()
        run = torch.compile(program, backend="polyfuse", mode="reduce-overhead")
        for _ in range(6):
            x, y = (torch.randn(256, 256, device="cuda") / 16 for _ in range(2))
            torch.testing.assert_close(run(x, y, 1), program(x, y, 1), rtol=1e-3, atol=1e-3)
        found = last_reports()[-1].recording
        assert found is not None and not found.refused and not found.partitions and found.replays
        del run
        torch._dynamo.reset()
    finally:
        dist.destroy_process_group()
