"""Parameters spread over processes with `fully_shard`: the whole model, block by block, offloaded to the CPU
between uses, and in bfloat16.

torchrun --nproc-per-node 4 examples/distributed/fsdp2.py
"""

from __future__ import annotations

import torch
from common import ROWS, alone, begin, compiled, data, end, mean, network, same, share, steps
from torch import Tensor, nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard


def train(
    rank: int, world: int, device: str, blocks: bool, run_compiled: bool = True, **options: object
) -> tuple[list[Tensor], nn.Module]:
    """A sharded model, trained; `blocks`: each block is gathered by itself, and compiled by itself."""
    model = network().to(device)
    if blocks:
        for block in model:
            fully_shard(block, **options)
            if run_compiled:
                block.compile(backend="polyfuse")
    fully_shard(model, **options)
    run = model if blocks or not run_compiled else compiled(model)
    got = steps(
        model, lambda i: run(share(data(i, world * ROWS[i]), rank, world, device)).float().square().mean()
    )
    return mean(got), model


def main() -> None:
    rank, world, device = begin()
    expected, losses = alone(network(), world)
    offloaded = {"offload_policy": CPUOffloadPolicy(pin_memory=device != "cpu")}
    for blocks, options in ((False, {}), (True, {}), (True, offloaded)):
        torch.compiler.reset()
        got, model = train(rank, world, device, blocks, **options)
        same(got, losses, "loss")
        same(model.parameters(), expected.parameters(), "parameter")
    torch.compiler.reset()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    got, model = train(rank, world, device, True, mp_policy=policy)
    eager, other = train(rank, world, device, True, run_compiled=False, mp_policy=policy)
    same(got, eager, "loss in bfloat16", 1e-2)
    same(model.parameters(), other.parameters(), "parameter in bfloat16", 3e-2)
    end("fully sharded")


if __name__ == "__main__":
    main()
