"""Blocks in a row of processes: parts of a batch go from stage to stage, and gradients back. Each process
compiles its own stage.

    torchrun --nproc-per-node 4 examples/distributed/pipeline.py
"""

from __future__ import annotations

import torch
from common import alone, begin, compiled, data, end, network, same
from torch import Tensor
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

PARTS = 4
"""Into which a batch is cut."""


def main() -> None:
    rank, world, device = begin()
    rows = 2 * PARTS
    count = 3
    expected, losses = alone(network(world), 1, (rows,) * count)
    block = network(world)[rank].to(device)
    stage = PipelineStage(compiled(block), rank, world, torch.device(device))
    schedule = Schedule1F1B(stage, PARTS, loss_fn=lambda y, _: y.square().mean())
    optimizer = torch.optim.AdamW(block.parameters(), lr=0.05, eps=1e-3, foreach=False)
    for step in range(count):
        x = data(step, rows).to(device)
        parts: list[Tensor] = []
        if rank == 0:
            schedule.step(x)
        elif rank == world - 1:
            schedule.step(target=x, losses=parts)
            same([torch.stack(parts).mean()], losses[step : step + 1], f"loss of step {step}")
        else:
            schedule.step()
        optimizer.step()
        optimizer.zero_grad()
    same(block.parameters(), expected[rank].parameters(), "parameter")  # type: ignore[index]
    end("pipeline")


if __name__ == "__main__":
    main()
