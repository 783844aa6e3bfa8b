"""One training step of each way to spread a model over processes, by eager mode, Inductor or Polyfuse.

Each case is a function from a side and a world to a `Step`: what `parallel_training.py` calls and times. All
sides begin with equal parameters and see equal data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import _functional_collectives as collectives
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

__all__ = ["CASES", "SMALL", "Sizes", "Step", "alone"]

Step = Callable[[], Tensor]
"""A step of training: forward, backward, and SGD; returns the loss of this process."""


@dataclass(frozen=True)
class Sizes:
    """Of the models: width, heads, length of a sequence, blocks, and sequences of each process."""

    width: int = 256
    heads: int = 4
    length: int = 64
    blocks: int = 2
    rows: int = 4


SMALL = Sizes(32, 4, 8, 1, 4)


class Block(nn.Module):
    """A transformer's block, without dropout. Sizes: (rows, length, width) to the same."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width = sizes.width
        self.size = width // sizes.heads
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        q, k, v = (f(y).unflatten(-1, (-1, self.size)).transpose(1, 2) for f in (self.q, self.k, self.v))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(attended.transpose(1, 2).flatten(-2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def _network(sizes: Sizes, blocks: int = 0) -> nn.Sequential:
    """Equal in all processes and for all sides."""
    torch.manual_seed(1)
    return nn.Sequential(*(Block(sizes) for _ in range(blocks or sizes.blocks)))


def _batches(sizes: Sizes, parts: int = 1, part: int = 0, rows: int = 0) -> Iterator[Tensor]:
    """A part of the batch of each step."""
    generator = torch.Generator().manual_seed(2)
    shape = ((rows or sizes.rows) * parts, sizes.length, sizes.width)
    while True:
        yield torch.randn(shape, generator=generator).chunk(parts)[part].clone()  # memory of its own


def _compiled(function: Any, side: str) -> Any:
    return function if side == "eager" else torch.compile(function, backend=side)


def _trained(
    module: nn.Module, run: Callable[[Tensor], Tensor], batches: Iterator[Tensor], average: bool = False
) -> Step:
    """Steps with the batches one after another; `average`: gradients over all processes, by hand."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)

    def step() -> Tensor:
        loss = run(next(batches)).float().square().mean()
        loss.backward()
        for parameter in module.parameters() if average else ():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def alone(side: str, sizes: Sizes, rank: int, world: int) -> Step:
    """The model in each process, which knows nothing of the others."""
    model = _network(sizes)
    return _trained(model, _compiled(model, side), _batches(sizes, world, rank))


def ddp(side: str, sizes: Sizes, rank: int, world: int) -> Step:
    """`DistributedDataParallel`, compiled from outside."""
    model = _network(sizes)
    run = _compiled(DistributedDataParallel(model), side)
    return _trained(model, run, _batches(sizes, world, rank))


def accumulation(side: str, sizes: Sizes, rank: int, world: int) -> Step:
    """`DistributedDataParallel` with two batches in a step, of which the first one sends nothing."""
    model = _network(sizes)
    wrapped = DistributedDataParallel(model)
    run = _compiled(wrapped, side)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = _batches(sizes, world, rank)

    def step() -> Tensor:
        total = torch.zeros(())
        for silent in (True, False):
            scope: AbstractContextManager[Any] = wrapped.no_sync() if silent else nullcontext()
            with scope:
                loss = run(next(batches)).square().mean() / 2
                loss.backward()
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        return total

    return step


def fsdp2(side: str, sizes: Sizes, rank: int, world: int) -> Step:
    """`fully_shard` of the whole model."""
    model = _network(sizes)
    fully_shard(model)
    return _trained(model, _compiled(model, side), _batches(sizes, world, rank))


def fsdp2_by_block(
    side: str, sizes: Sizes, rank: int, world: int, policy: MixedPrecisionPolicy | None = None
) -> Step:
    """`fully_shard` of each block, each compiled by itself."""
    model = _network(sizes)
    policy = policy or MixedPrecisionPolicy()
    for block in model:
        fully_shard(block, mp_policy=policy)
        if side != "eager":
            block.compile(backend=side)
    fully_shard(model, mp_policy=policy)
    return _trained(model, model, _batches(sizes, world, rank))


def fsdp2_mixed(side: str, sizes: Sizes, rank: int, world: int) -> Step:
    """The same with blocks in bfloat16, and gradients that are reduced in float32."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return fsdp2_by_block(side, sizes, rank, world, policy)


_COLUMNS, _ROWS = ("q", "k", "v", "up"), ("o", "down")


def tensor_parallel(side: str, sizes: Sizes, rank: int, world: int) -> Step:
    """Layers cut by columns and rows over all processes."""
    model, mesh = _network(sizes), init_device_mesh("cpu", (world,))
    plan: dict[str, Any] = {name: ColwiseParallel() for name in _COLUMNS}
    for block in model:
        parallelize_module(block, mesh, plan | {name: RowwiseParallel() for name in _ROWS})
    return _trained(model, _compiled(model, side), _batches(sizes))


def sequence_parallel(side: str, sizes: Sizes, rank: int, world: int) -> Step:
    """What is between the layers is cut too, along the sequence."""
    model, mesh = _network(sizes), init_device_mesh("cpu", (world,))
    plan: dict[str, Any] = {name: ColwiseParallel(input_layouts=Shard(1)) for name in _COLUMNS}
    plan |= {name: RowwiseParallel(output_layouts=Shard(1)) for name in _ROWS}
    plan |= {name: SequenceParallel(use_local_output=True) for name in ("norm", "norm2")}
    for block in model:
        parallelize_module(block, mesh, plan)
    first = PrepareModuleInput(
        input_layouts=(Replicate(),), desired_input_layouts=(Shard(1),), use_local_output=True
    )
    last = PrepareModuleOutput(output_layouts=(Shard(1),), desired_output_layouts=(Replicate(),))
    parallelize_module(model[0], mesh, first)
    parallelize_module(model[-1], mesh, last)
    return _trained(model, _compiled(model, side), _batches(sizes))


class Routed(nn.Module):
    """Rows, sorted by expert, to the processes of their experts and back. Sizes: (rows, width)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, sent: list[int], received: list[int]) -> Tensor:
        group = dist.group.WORLD
        mine = collectives.all_to_all_single_autograd(x, received, sent, group)
        made = self.down(F.silu(self.up(mine)))
        return x + collectives.all_to_all_single_autograd(made, sent, received, group)


def expert_parallel(side: str, sizes: Sizes, rank: int, world: int) -> Step:
    """An expert in each process, whose rows come and go by `all_to_all_single`."""
    torch.manual_seed(1 + rank)
    model = Routed(sizes.width)
    run = _compiled(model, side)
    rows = sizes.rows * sizes.length // world
    counts = [[rows + (source + target) % 3 for target in range(world)] for source in range(world)]
    sent, received = counts[rank], [counts[source][rank] for source in range(world)]
    generator = torch.Generator().manual_seed(2 + rank)
    given = iter(lambda: torch.randn(sum(sent), sizes.width, generator=generator), None)
    return _trained(model, lambda x: run(x, sent, received), given)


class RingAttention(nn.Module):
    """Causal attention with one head over a sequence that all processes have parts of, in their order.

    Sizes: (length of this part, width) to the same.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, rank: int, world: int) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        positions = torch.arange(x.shape[0])
        best = torch.full_like(q[:, :1], -math.inf)
        total, result = torch.zeros_like(best), torch.zeros_like(q)
        moving = torch.cat((k, v), 1)
        for turn in range(world):
            source = (rank - turn) % world
            k, v = moving.chunk(2, -1)
            if turn + 1 < world:
                moving = _passed_on(moving, rank, world)
            if source > rank:
                continue  # later in the sequence
            scores = q @ k.t() / math.sqrt(x.shape[1])
            if source == rank:
                scores = scores.masked_fill(positions[:, None] < positions[None, :], -math.inf)
            top = torch.maximum(best, scores.amax(-1, keepdim=True))
            weights, old = (scores - top).exp(), (best - top).exp()
            total = total * old + weights.sum(-1, keepdim=True)
            result = result * old + weights @ v
            best = top
        # each process sends as often as the others, whether it used what came or not
        return x + self.out(result / total) + 0 * moving.sum()


def _passed_on(x: Tensor, rank: int, world: int) -> Tensor:
    """What the process before sends, when each sends `x` to the next one."""
    sent = [x.shape[0] if target == (rank + 1) % world else 0 for target in range(world)]
    received = [x.shape[0] if source == (rank - 1) % world else 0 for source in range(world)]
    return collectives.all_to_all_single_autograd(x, received, sent, dist.group.WORLD)


def context_parallel(side: str, sizes: Sizes, rank: int, world: int) -> Step:
    """Ring attention; parameters are equal in all processes, and gradients are averaged."""
    torch.manual_seed(1)
    model = RingAttention(sizes.width)
    run = _compiled(model, side)
    parts = (batch.flatten(0, 1) for batch in _batches(sizes, world, rank))
    return _trained(model, lambda x: run(x, rank, world), parts, average=True)


def pipeline(side: str, sizes: Sizes, rank: int, world: int) -> Step:
    """A block in each process; four parts of a batch go from one to the next, and gradients back."""
    block = _network(sizes, world)[rank]
    stage = PipelineStage(_compiled(block, side), rank, world, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 4, loss_fn=lambda y, _: y.square().mean())
    optimizer = torch.optim.SGD(block.parameters(), lr=0.01)
    batches = _batches(sizes, rows=4 * sizes.rows)

    def step() -> Tensor:
        losses: list[Tensor] = []
        x = next(batches)
        if rank == 0:
            schedule.step(x)
        elif rank == world - 1:
            schedule.step(target=x, losses=losses)
        else:
            schedule.step()
        optimizer.step()
        optimizer.zero_grad()
        return torch.stack(losses).mean().detach() if losses else torch.zeros(())

    return step


def mesh(side: str, sizes: Sizes, rank: int, world: int) -> Step:
    """Layers cut over the two processes of a row, parameters spread over those of a column."""
    model = _network(sizes)
    both = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("data", "layer"))
    plan: dict[str, Any] = {name: ColwiseParallel() for name in _COLUMNS}
    for block in model:
        parallelize_module(block, both["layer"], plan | {name: RowwiseParallel() for name in _ROWS})
        fully_shard(block, mesh=both["data"])
    fully_shard(model, mesh=both["data"])
    part = both["data"].get_local_rank()
    return _trained(model, _compiled(model, side), _batches(sizes, world // 2, part))


CASES: dict[str, Callable[[str, Sizes, int, int], Step]] = {
    "DDP": ddp,
    "DDP, gradients of two batches": accumulation,
    "FSDP2, whole": fsdp2,
    "FSDP2, by block": fsdp2_by_block,
    "tensor parallel": tensor_parallel,
    "sequence parallel": sequence_parallel,
    "expert parallel": expert_parallel,
    "context parallel": context_parallel,
    "pipeline": pipeline,
    "mesh of two dimensions": mesh,
    "FSDP2, by block, bfloat16": fsdp2_mixed,
}
