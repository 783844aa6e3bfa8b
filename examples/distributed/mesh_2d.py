"""A mesh of two dimensions: layers are cut over the processes of a row, parameters are spread over those of a
column. An even number of processes.

    torchrun --nproc-per-node 4 examples/distributed/mesh_2d.py
"""

from __future__ import annotations

from common import ROWS, alone, begin, compiled, data, end, mean, network, same, share, steps
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def main() -> None:
    _, world, device = begin()
    columns = 2
    mesh = init_device_mesh(device, (world // columns, columns), mesh_dim_names=("data", "layer"))
    rank, copies = mesh["data"].get_local_rank(), world // columns
    expected, losses = alone(network(), copies)
    model = network().to(device)
    plan = {name: ColwiseParallel() for name in ("q", "k", "v", "up")}
    for block in model:
        parallelize_module(block, mesh["layer"], {**plan, "o": RowwiseParallel(), "down": RowwiseParallel()})
        fully_shard(block, mesh=mesh["data"])
    fully_shard(model, mesh=mesh["data"])
    run = compiled(model)
    got = steps(model, lambda i: run(share(data(i, copies * ROWS[i]), rank, copies, device)).square().mean())
    same(mean(got), losses, "loss")
    same(model.parameters(), expected.parameters(), "parameter")
    end("mesh of two dimensions")


if __name__ == "__main__":
    main()
