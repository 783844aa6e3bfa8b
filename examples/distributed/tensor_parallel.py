"""Layers cut by columns and rows with `parallelize_module`; then what is between them cut too (sequence
parallel).

    torchrun --nproc-per-node 4 examples/distributed/tensor_parallel.py
"""

from __future__ import annotations

import torch
from common import ROWS, alone, begin, compiled, data, end, network, same, steps
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)


def parallel(model: nn.Sequential, mesh: DeviceMesh) -> nn.Sequential:
    """Each layer's products over all processes; what is between layers is whole in each."""
    plan = {name: ColwiseParallel() for name in ("q", "k", "v", "up")}
    for block in model:
        parallelize_module(block, mesh, {**plan, "o": RowwiseParallel(), "down": RowwiseParallel()})
    return model


def sequence_parallel(model: nn.Sequential, mesh: DeviceMesh) -> nn.Sequential:
    """Between the products, each process has a part of the sequence."""
    for block in model:
        plan = {name: ColwiseParallel(input_layouts=Shard(1)) for name in ("q", "k", "v", "up")}
        plan |= {name: RowwiseParallel(output_layouts=Shard(1)) for name in ("o", "down")}
        parallelize_module(block, mesh, {"norm": SequenceParallel(use_local_output=True), **plan})
    first = PrepareModuleInput(
        input_layouts=(Replicate(),), desired_input_layouts=(Shard(1),), use_local_output=True
    )
    last = PrepareModuleOutput(output_layouts=(Shard(1),), desired_output_layouts=(Replicate(),))
    parallelize_module(model, mesh, {"0": first, str(len(model) - 1): last})
    return model


def main() -> None:
    _, world, device = begin()
    mesh = init_device_mesh(device, (world,))
    for cut in (parallel, sequence_parallel):
        torch.compiler.reset()
        expected, losses = alone(network(1), 1)
        model = cut(network(1).to(device), mesh)
        run = compiled(model)
        got = steps(model, lambda i, run=run: run(data(i, ROWS[i]).to(device)).square().mean())
        same(got, losses, f"{cut.__name__}: loss")
        same(model.parameters(), expected.parameters(), f"{cut.__name__}: parameter")
    end("tensor and sequence parallel")


if __name__ == "__main__":
    main()
