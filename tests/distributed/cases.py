"""What the two processes of `test_two_processes.py` compute, compiled and in eager mode. Run as a program,
with a rank, a file to meet at, and a file for the answers.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

RANKS = 2

Answer = list[Tensor]


def model(width: int = 8) -> nn.Module:
    """A small network, the same in all processes."""
    torch.manual_seed(7)
    return nn.Sequential(
        nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width), nn.LayerNorm(width)
    )


def own_data(rank: int, width: int = 8) -> Tensor:
    """Other numbers in each process."""
    return torch.randn(6, width, generator=torch.Generator().manual_seed(rank))


def compiled(function: Any, **options: Any) -> Any:
    """`function` compiled, without code of any toolchain."""
    given = {"backends": ["interpreter"], "strict": True, "graph_cache": False} | options
    return torch.compile(function, backend="polyfuse", options=given)


def train(network: nn.Module, run: Callable[[Tensor], Tensor], rank: int, width: int = 8) -> Answer:
    """Three steps; the losses and the parameters after them."""
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    losses: Answer = []
    for step in range(3):
        loss = run(own_data(rank, width) + step).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return [*losses, *(full(p.detach()) for p in network.parameters())]


def full(tensor: Tensor) -> Tensor:
    """All of a tensor that processes share."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def ddp(rank: int, compile: Callable[..., Any]) -> Answer:
    """A network whose gradients are averaged, compiled from outside."""
    network = nn.parallel.DistributedDataParallel(model())
    return train(network, compile(network), rank)


def ddp_in_chunks(rank: int, compile: Callable[..., Any]) -> Answer:
    """With so small buckets of gradients that the graph is cut between them."""
    network = nn.parallel.DistributedDataParallel(model(512), bucket_cap_mb=1)
    return train(network, compile(network), rank, 512)


def ddp_outside(rank: int, compile: Callable[..., Any]) -> Answer:
    """The compiled network within."""
    inner = model()
    network = nn.parallel.DistributedDataParallel(inner)
    inner.forward = compile(inner.forward)
    return train(network, network, rank)


def fully_sharded(rank: int, compile: Callable[..., Any]) -> Answer:
    """Parameters that are gathered when they are needed."""
    from torch.distributed.fsdp import fully_shard

    network = model()
    for layer in (network[0], network[2], network):
        fully_shard(layer)
    return train(network, compile(network), rank)


def tensor_parallel(rank: int, compile: Callable[..., Any]) -> Answer:
    """A layer cut by columns, and one by rows."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (RANKS,))
    network = parallelize_module(model(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return train(network, compile(network), 0)


def sequence_parallel(rank: int, compile: Callable[..., Any]) -> Answer:
    """What is between the layers is cut too: gathered before one, scattered after the other."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (RANKS,))
    plan = {
        "0": ColwiseParallel(),
        "2": RowwiseParallel(output_layouts=Shard(0)),
        "3": SequenceParallel(sequence_dim=0),
    }
    network = parallelize_module(model(), mesh, plan)
    run = compile(network)
    return train(network, lambda x: full(run(x)), 0)


def functional(rank: int, compile: Callable[..., Any]) -> Answer:
    """Weights in shares, gathered for a product; its gradient is summed and scattered."""
    from torch.distributed import _functional_collectives as collectives

    def forward(x: Tensor, share: Tensor) -> Tensor:
        weight = collectives.all_gather_tensor_autograd(share, 0, dist.group.WORLD)
        total = collectives.all_reduce(x @ weight, "avg", dist.group.WORLD)
        return (x @ weight).relu() + total.detach().sum(0)

    share = model()[0].weight.detach().t().chunk(RANKS)[rank].clone().requires_grad_()
    x = own_data(rank)
    result = compile(forward)(x, share)
    result.square().sum().backward()
    assert share.grad is not None
    return [result.detach(), share.grad]


def in_place(rank: int, compile: Callable[..., Any]) -> Answer:
    """The forms that people write, on tensors of theirs."""

    def forward(x: Tensor, out: Tensor) -> Tensor:
        dist.all_reduce(x)
        work = dist.all_gather_into_tensor(out, x.sin(), async_op=True)
        y = x.cos() @ x.t()
        if work is not None:
            work.wait()
        return y.sum() + out

    x, out = own_data(rank), torch.zeros(RANKS * 6, 8)
    return [compile(forward)(x, out), x, out]


def results_that_run(rank: int, compile: Callable[..., Any]) -> Answer:
    """A sum that leaves one graph before it is complete, and is waited for in another."""
    from torch.distributed import _functional_collectives as collectives

    def first(x: Tensor) -> Tensor:
        return torch.ops._c10d_functional.all_reduce(x * 2, "sum", dist.group.WORLD.group_name)

    def second(x: Tensor) -> Tensor:
        return collectives.wait_tensor(x) + 1

    with collectives.allow_inflight_collective_as_graph_input_ctx():
        return [compile(second)(compile(first)(own_data(rank)))]


def exchanged(rank: int, compile: Callable[..., Any]) -> Answer:
    """Sums that each process makes of what the other one has, as on GPUs that map each other's memory."""
    from unittest.mock import patch

    from polyfuse.frontend.rewrites import collectives as rewrites
    from polyfuse.torch_compat import symmetric

    name = dist.group.WORLD.group_name

    def run(x: Tensor, w: Tensor) -> Tensor:
        y = summed(x @ w)
        return summed((y.relu() @ w.t()).sin()) + summed(y.cos()).sum(0)[:6]

    def summed(x: Tensor) -> Tensor:
        found: Tensor = torch.ops._c10d_functional.all_reduce(x, "sum", name)
        return torch.ops._c10d_functional.wait_tensor(found) / RANKS

    x = own_data(rank, 6)
    w = torch.randn(6, 8, generator=torch.Generator().manual_seed(11 + rank))
    with (
        patch.object(rewrites, "symmetric_groups", lambda how: (name,)),
        patch.object(symmetric, "is_supported", lambda value, group: group == name),
    ):
        found = compile(run)(x, w)
    everywhere = [torch.empty_like(found) for _ in range(RANKS)]
    dist.all_gather(everywhere, found)
    assert all(torch.equal(other, found) for other in everywhere), "ranks have different sums"
    return [found]


CASES = {
    f.__name__: f
    for f in (
        sequence_parallel,  # first: after others torch fails to divide its graph, whatever the backend
        ddp,
        ddp_in_chunks,
        ddp_outside,
        fully_sharded,
        tensor_parallel,
        functional,
        in_place,
        results_that_run,
        exchanged,
    )
}


IN_GRAPHS = (sequence_parallel, tensor_parallel, functional, in_place, results_that_run, exchanged)
"""Those whose collectives the compiler sees."""


def overlapped(function: Any) -> Any:
    """`function` compiled with as much beside its collectives as there is."""
    return compiled(function, overlap_collectives=True, overlap_memory=1000, network_bandwidth=1)


def chunked(function: Any) -> Any:
    """`function` compiled with matmuls in chunks beside its collectives."""
    return compiled(function, chunk_collectives="2")


def judge(case: Callable[..., Answer], rank: int) -> str:
    """What is wrong with a compiled case; empty if nothing is."""
    try:
        expected = case(rank, lambda function: function)
        for compile in (compiled, overlapped, chunked) if case in IN_GRAPHS else (compiled,):
            torch._dynamo.reset()
            torch.testing.assert_close(case(rank, compile), expected)
    except Exception:
        return traceback.format_exc()
    return ""


def main(rank: int, meeting: Path, answers: Path) -> None:
    """Run all cases."""
    dist.init_process_group("gloo", init_method=meeting.as_uri(), rank=rank, world_size=RANKS)
    found = {}
    for name, case in CASES.items():
        found[name] = judge(case, rank)
        dist.barrier()
    answers.write_text(json.dumps(found), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
