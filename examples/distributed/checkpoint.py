"""`torch.distributed.checkpoint` of a compiled, sharded model and its optimizer: train, save, load into
another compiled model, go on.

    torchrun --nproc-per-node 4 examples/distributed/checkpoint.py
"""

from __future__ import annotations

import tempfile
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from common import alone, begin, compiled, data, end, mean, network, same, share
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

ROWS = 4


def made(device: str) -> tuple[nn.Module, Any, torch.optim.Optimizer]:
    """A model, it compiled, and its optimizer."""
    model = network(1).to(device)
    fully_shard(model)
    return model, compiled(model), torch.optim.AdamW(model.parameters(), lr=0.05, eps=1e-3, foreach=False)


def step(run: Any, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
    loss = run(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def main() -> None:
    rank, world, device = begin()
    expected, losses = alone(network(1), world, (ROWS,) * 3)
    parts = [share(data(i, world * ROWS), rank, world, device) for i in range(3)]
    folder = [tempfile.mkdtemp() if rank == 0 else ""]
    dist.broadcast_object_list(folder)

    _, run, optimizer = made(device)
    got = [step(run, optimizer, x) for x in parts[:2]]
    # of the compiled module: its names are those of the model
    weights, state = get_state_dict(run, optimizer)
    assert not any("_orig_mod" in name for name in weights)
    checkpoint.save({"model": weights, "optimizer": state}, checkpoint_id=folder[0])

    model, run, optimizer = made(device)
    weights, state = get_state_dict(run, optimizer)
    checkpoint.load({"model": weights, "optimizer": state}, checkpoint_id=folder[0])
    set_state_dict(run, optimizer, model_state_dict=weights, optim_state_dict=state)
    got.append(step(run, optimizer, parts[2]))

    same(mean(got), losses, "loss")
    same(model.parameters(), expected.parameters(), "parameter")
    end("checkpoint")


if __name__ == "__main__":
    main()
