"""Data parallel with `DistributedDataParallel`: whole batches, gradients that are summed over several batches
before processes exchange them, and a last batch that is larger on some processes.

    torchrun --nproc-per-node 4 examples/distributed/ddp.py
"""

from __future__ import annotations

import torch
from common import ROWS, alone, begin, compiled, data, end, mean, network, same, share, steps
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel


def whole_batches(rank: int, world: int, device: str) -> None:
    model = network().to(device)
    expected, losses = alone(network(), world)
    wrapped = DistributedDataParallel(model)
    step = compiled(wrapped)
    got = steps(model, lambda i: step(share(data(i, world * ROWS[i]), rank, world, device)).square().mean())
    same(mean(got), losses, "loss")
    same(model.parameters(), expected.parameters(), "parameter")


def without_synchronisation(rank: int, world: int, device: str) -> None:
    """Two batches a step; only the second one communicates."""
    model = network().to(device)
    expected, losses = alone(network(), 2 * world, (4, 4, 4))
    wrapped = DistributedDataParallel(model)
    run = compiled(wrapped)

    def loss(step: int) -> Tensor:
        first, second = share(data(step, 2 * world * 4), rank, world, device).chunk(2)
        with wrapped.no_sync():
            begun = run(first).square().mean() / 2
            begun.backward()
        return run(second).square().mean() / 2 + begun.detach()

    same(mean(steps(model, loss, 3)), losses, "loss, accumulated,")
    same(model.parameters(), expected.parameters(), "parameter, accumulated,")


def uneven(rank: int, world: int, device: str) -> None:
    """Other numbers of rows in each process; each row counts the same."""
    model, alone_model = network().to(device), network()
    counts = [3 + i for i in range(world)]
    wrapped = DistributedDataParallel(model)
    run = compiled(wrapped)

    def loss(step: int) -> Tensor:
        rows = (
            data(step, sum(counts)).split(counts)[rank] if step else data(step, 4 * world).chunk(world)[rank]
        )
        total = sum(counts) if step else 4 * world
        each = run(rows.to(device)).square().mean((1, 2)).sum()
        return each * world / total

    got = steps(model, loss, 3)
    theirs = steps(
        alone_model,
        lambda i: alone_model(data(i, sum(counts) if i else 4 * world)).square().mean((1, 2)).mean(),
        3,
    )
    same(mean(got), theirs, "loss, uneven,")
    same(model.parameters(), alone_model.parameters(), "parameter, uneven,")


def main() -> None:
    rank, world, device = begin()
    for example in (whole_batches, without_synchronisation, uneven):
        torch.compiler.reset()
        example(rank, world, device)
    end("data parallel")


if __name__ == "__main__":
    main()
