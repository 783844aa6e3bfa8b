"""What the examples of this folder share: the processes, a small model, data, and the comparison with one
process.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

WIDTH = 32
ROWS = (4, 4, 6)
"""Rows of each process in each step: two equal steps, then sizes that vary."""

TOLERANCE = 1e-5
"""Largest distance from one process, by the norm of what is compared."""


def begin() -> tuple[int, int, str]:
    """Meet the other processes that torchrun started; returns rank, number of processes, and device."""
    device = "cpu"
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        device = "cuda"
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    torch.manual_seed(0)
    return dist.get_rank(), dist.get_world_size(), device


def end(what: str) -> None:
    """Say that all went well, and part."""
    dist.barrier()
    if dist.get_rank() == 0:
        print(f"{what}: equal to one process")
    dist.destroy_process_group()


def compiled(function: Any) -> Any:
    """`function`, or a module, compiled by Polyfuse."""
    return torch.compile(function, backend="polyfuse")


class Block(nn.Module):
    """A transformer's block, without dropout. Sizes: (rows, length, width) to the same."""

    def __init__(self, width: int = WIDTH, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        q, k, v = (
            f(y).unflatten(-1, (-1, WIDTH // self.heads)).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(attended.transpose(1, 2).flatten(-2))
        return x + self.down(nn.functional.gelu(self.up(x)))


def network(blocks: int = 2) -> nn.Sequential:
    """Equal in all processes."""
    torch.manual_seed(1)
    return nn.Sequential(*(Block() for _ in range(blocks)))


def data(step: int, rows: int, length: int = 4) -> Tensor:
    """The batch of a step for all processes together, equal in all of them."""
    generator = torch.Generator().manual_seed(100 + step)
    return torch.randn(rows, length, WIDTH, generator=generator)


def share(whole: Tensor, rank: int, world: int, device: str = "cpu") -> Tensor:
    """The rows of one process."""
    return whole.chunk(world)[rank].to(device)


def steps(
    module: nn.Module,
    loss: Callable[[int], Tensor],
    count: int = len(ROWS),
    optimizer: type[torch.optim.AdamW] = torch.optim.AdamW,
) -> list[Tensor]:
    """Train `module` for some steps; returns the losses."""
    adam = optimizer(module.parameters(), lr=0.05, eps=1e-3, foreach=False)
    losses = []
    for step in range(count):
        value = loss(step)
        value.backward()
        adam.step()
        adam.zero_grad()
        losses.append(value.detach())
    return losses


def alone(module: nn.Module, world: int, rows: Sequence[int] = ROWS) -> tuple[nn.Module, list[Tensor]]:
    """A copy of `module`, trained by this process with the data of all, in eager mode; and the losses."""
    copied = copy.deepcopy(module)
    losses = steps(copied, lambda step: copied(data(step, world * rows[step])).square().mean(), len(rows))
    return copied, losses


def full(tensor: Tensor) -> Tensor:
    """All of a tensor that may be spread over processes, on the CPU."""
    whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole.detach().cpu()


def mean(losses: Iterable[Tensor]) -> list[Tensor]:
    """Losses averaged over processes."""
    found = []
    for loss in losses:
        total = loss.clone()
        dist.all_reduce(total)
        found.append(total / dist.get_world_size())
    return found


def same(mine: Iterable[Tensor], theirs: Iterable[Tensor], what: str, tolerance: float = TOLERANCE) -> None:
    """Raise unless two lists of tensors are equal, up to rounding."""
    for number, (a, b) in enumerate(zip(mine, theirs, strict=True)):
        distance, size = (full(a).float() - full(b).float()).norm(), full(b).float().norm()
        if not distance <= tolerance * size:
            raise AssertionError(f"{what} {number} is {distance:.3g} away from one process, of {size:.3g}")
