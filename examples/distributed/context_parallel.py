"""Ring attention: each process has a part of a long sequence; keys and values travel from process to process
while attention to those at hand is computed.

    torchrun --nproc-per-node 4 examples/distributed/context_parallel.py
"""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
from common import WIDTH, begin, compiled, end, mean, same, steps
from torch import Tensor, nn
from torch.distributed import _functional_collectives as collectives

LENGTHS = (4, 4, 6)
"""Of the part of each process, by step."""


class RingAttention(nn.Module):
    """Causal attention with one head over a sequence that is spread over all processes, in order.

    Sizes: (length of this part, width) to the same.
    """

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, rank: int, world: int) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        length = x.shape[0]
        position = torch.arange(length, device=x.device)
        best = torch.full_like(q[:, :1], -math.inf)
        total, result = torch.zeros_like(best), torch.zeros_like(q)
        moving = torch.cat((k, v), 1)
        for turn in range(world):
            source = (rank - turn) % world
            k, v = moving.chunk(2, -1)
            if turn + 1 < world:
                moving = passed_on(moving, rank, world)
            if source > rank:
                continue  # these come later in the sequence
            scores = q @ k.t() / math.sqrt(WIDTH)
            if source == rank:
                scores = scores.masked_fill(position[:, None] < position[None, :], -math.inf)
            top = torch.maximum(best, scores.amax(-1, keepdim=True))
            weights, old = (scores - top).exp(), (best - top).exp()
            total = total * old + weights.sum(-1, keepdim=True)
            result = result * old + weights @ v
            best = top
        # each rank sends as often as the others, whether it used what came or not
        return x + self.out(result / total) + 0 * moving.sum()


def passed_on(x: Tensor, rank: int, world: int) -> Tensor:
    """What the process before sends, when each sends `x` to the next one; differentiable."""
    length = x.shape[0]
    sent = [length if target == (rank + 1) % world else 0 for target in range(world)]
    received = [length if source == (rank - 1) % world else 0 for source in range(world)]
    return collectives.all_to_all_single_autograd(x, received, sent, dist.group.WORLD)


def model() -> RingAttention:
    """Equal in all processes."""
    torch.manual_seed(3)
    return RingAttention()


def sequence(step: int, length: int) -> Tensor:
    """All of it."""
    return torch.randn(length, WIDTH, generator=torch.Generator().manual_seed(step))


def whole(attention: RingAttention, x: Tensor) -> Tensor:
    """The same by one process."""
    q, k, v = attention.qkv(x).chunk(3, -1)
    attended = nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)
    return x + attention.out(attended[0])


def main() -> None:
    rank, world, device = begin()
    expected = model()
    losses = steps(expected, lambda i: whole(expected, sequence(i, world * LENGTHS[i])).square().mean(), 3)
    attention = model().to(device)
    run = compiled(attention)

    class Averaged(torch.optim.AdamW):
        """Averages gradients over the processes, which all have the same parameters, before each step."""

        def step(self, *given: object) -> None:  # type: ignore[override]
            for group in self.param_groups:
                for parameter in group["params"]:
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= world
            super().step()

    def loss(step: int) -> Tensor:
        part = sequence(step, world * LENGTHS[step]).chunk(world)[rank].to(device)
        return run(part, rank, world).square().mean()

    got = steps(attention, loss, 3, optimizer=Averaged)
    same(mean(got), losses, "loss")
    same(attention.parameters(), expected.parameters(), "parameter")
    end("context parallel")


if __name__ == "__main__":
    main()
