"""Ranks of which one traces a wrapped network for all, with `capture_cache`, or lowers what all traced."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from polyfuse.cache.graphs import graph_counts


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(nn.functional.gelu(self.up(x)))


def network(width: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(Block(width) for _ in range(3)))


def data_parallel(compile: Callable[..., Any]) -> tuple[nn.Module, Any]:
    """With all gradients in one bucket."""
    model = network(8)
    return model, compile(DistributedDataParallel(model))


def data_parallel_in_buckets(compile: Callable[..., Any]) -> tuple[nn.Module, Any]:
    """With so small buckets of gradients that the graph is cut between them."""
    model = network(300)
    return model, compile(DistributedDataParallel(model, bucket_cap_mb=1))


def sharded(compile: Callable[..., Any]) -> tuple[nn.Module, Any]:
    model = network(8)
    fully_shard(model)
    return model, compile(model)


def sharded_by_block(compile: Callable[..., Any]) -> tuple[nn.Module, Any]:
    """Each block is compiled by itself, with the hooks that gather its parameters around it."""
    model = network(8)
    for block in model:
        fully_shard(block)
        block.forward = compile(block.forward)
    fully_shard(model)
    return model, model


def tensor_parallel(compile: Callable[..., Any]) -> tuple[nn.Module, Any]:
    """Each rank traces it, since its position may show in what is traced."""
    model, mesh = network(8), init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model, compile(model)


CASES = (data_parallel, data_parallel_in_buckets, sharded, sharded_by_block)


def trained(case: Callable[..., Any], rank: int, compile: Callable[..., Any]) -> list[Tensor]:
    """Losses of two steps, and the parameters after them."""
    model, run = case(compile)
    width = model[0].up.in_features
    if case is tensor_parallel:
        rank = 0  # all have the same data
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for step in range(2):
        x = torch.randn(4, width, generator=torch.Generator().manual_seed(10 * rank + step))
        loss = run(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.detach())
    full = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    return [*found, *(p.detach() for p in full)]


def main(rank: int, count: int, meeting: str, answers: str) -> None:
    """Train each case in eager mode and compiled, and say what this rank traced of it."""
    dist.init_process_group("gloo", init_method=Path(meeting).as_uri(), rank=rank, world_size=count)
    found: dict[str, Any] = {}
    for case in (*CASES, tensor_parallel):
        torch.compiler.reset()
        expected = trained(case, rank, lambda function: function)
        counters.clear()
        before = graph_counts()
        got = trained(case, rank, lambda function: torch.compile(function, backend="polyfuse"))
        torch.testing.assert_close(got, expected)
        found[case.__name__] = {
            "traced": counters["stats"]["unique_graphs"],
            "captured": graph_counts().captured - before.captured,
            "bypasses": sum(graph_counts().bypasses.values()) - sum(before.bypasses.values()),
            "found": graph_counts().traced - before.traced,
        }
        dist.barrier()
    Path(f"{answers}{rank}").write_text(json.dumps(found), encoding="utf-8")
    dist.destroy_process_group()
