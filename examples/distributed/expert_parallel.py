"""A mixture of experts, one or more in each process: rows go to the process of their expert and back with
`all_to_all_single`, forward and backward.

    torchrun --nproc-per-node 4 examples/distributed/expert_parallel.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from common import WIDTH, begin, compiled, end, mean, same, steps
from torch import Tensor, nn
from torch.distributed import _functional_collectives as collectives


class Expert(nn.Module):
    """What is computed for the rows of one expert. Sizes: (rows, width) to the same."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(nn.functional.silu(self.up(x)))


class Routed(nn.Module):
    """Rows, sorted by expert, to the experts of other processes and back.

    Args of `forward`: rows; how many go to each process; how many come from each.
    """

    def __init__(self, expert: Expert) -> None:
        super().__init__()
        self.expert = expert

    def forward(self, x: Tensor, sent: list[int], received: list[int]) -> Tensor:
        group = dist.group.WORLD
        mine = collectives.all_to_all_single_autograd(x, received, sent, group)
        back = collectives.all_to_all_single_autograd(self.expert(mine), sent, received, group)
        return x + back


def experts(world: int) -> list[Expert]:
    """Equal in all processes."""
    torch.manual_seed(2)
    return [Expert() for _ in range(world)]


def routing(step: int, world: int) -> list[list[int]]:
    """How many rows each process sends to each expert; the same twice, then others."""
    shift = max(0, step - 1)
    return [[2 + (source + target + shift) % 3 for target in range(world)] for source in range(world)]


def rows(step: int, source: int, count: int) -> Tensor:
    """Those of one process."""
    generator = torch.Generator().manual_seed(10 * step + source)
    return torch.randn(count, WIDTH, generator=generator)


def alone(world: int, count: int) -> tuple[nn.ModuleList, list[Tensor]]:
    """All experts in this process, in eager mode."""
    everyone = nn.ModuleList(experts(world))

    def loss(step: int) -> Tensor:
        total = torch.zeros(())
        for source, counts in enumerate(routing(step, world)):
            parts = rows(step, source, sum(counts)).split(counts)
            results = [part + expert(part) for part, expert in zip(parts, everyone, strict=True)]
            total = total + torch.cat(results).square().sum() / world
        return total

    return everyone, steps(everyone, loss, count)


def main() -> None:
    rank, world, device = begin()
    count = 3
    expected, losses = alone(world, count)
    model = Routed(experts(world)[rank]).to(device)
    run = compiled(model)

    def loss(step: int) -> Tensor:
        counts = routing(step, world)
        x = rows(step, rank, sum(counts[rank])).to(device)
        # the sum over processes is the loss, so that gradients need no further communication
        return run(x, counts[rank], [counts[source][rank] for source in range(world)]).square().sum()

    def scaled(step: int) -> Tensor:
        return loss(step) / world

    got = [world * value for value in mean(steps(model, scaled, count))]
    same(got, losses, "loss")
    same(model.parameters(), expected[rank].parameters(), "parameter")
    end("expert parallel")


if __name__ == "__main__":
    main()
