"""Random numbers of the IR: a counter-based generator, so that every backend draws the same ones.

The generator is Philox 4x32 with ten rounds. Its key is the low and the high word of the seed, its counter
the low and the high word of the offset, then two zeros. Of the four words drawn, `polyfuse.ir.ops.RANDOM`
says which make a number.
"""

from __future__ import annotations

from typing import Any

import numpy
import torch

from polyfuse.base.errors import IRError

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_WORD = 0xFFFFFFFF


def philox(seed: Any, offset: Any) -> tuple[Any, Any, Any, Any]:
    """The four words drawn for arrays of seeds and offsets, each as unsigned 64-bit integers."""
    key = [seed & numpy.uint64(_WORD), seed >> numpy.uint64(32)]
    zero = numpy.zeros_like(offset)
    c0, c1, c2, c3 = offset & numpy.uint64(_WORD), offset >> numpy.uint64(32), zero, zero
    for _ in range(10):
        left, right = c0 * numpy.uint64(_MULTIPLIERS[0]), c2 * numpy.uint64(_MULTIPLIERS[1])
        c0, c1, c2, c3 = (
            (right >> numpy.uint64(32)) ^ c1 ^ key[0],
            right & numpy.uint64(_WORD),
            (left >> numpy.uint64(32)) ^ c3 ^ key[1],
            left & numpy.uint64(_WORD),
        )
        key = [(k + numpy.uint64(w)) & numpy.uint64(_WORD) for k, w in zip(key, _WEYL, strict=True)]
    return c0, c1, c2, c3


def draw(kind: str, seed: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
    """One random number at each point, from i64 seeds and offsets.

    Raises:
        IRError: the kind is unknown.
    """
    device = seed.device
    seeds, offsets = torch.broadcast_tensors(seed, offset)
    words = philox(*(t.contiguous().cpu().numpy().view(numpy.uint64) for t in (seeds, offsets)))
    if kind == "bits":
        return torch.from_numpy((words[0] | (words[1] << numpy.uint64(32))).view(numpy.int64)).to(device)
    high = [(word >> numpy.uint64(8)).astype(numpy.float32) for word in words[:2]]
    first, second = (torch.from_numpy(h) * 2.0**-24 for h in high)
    if kind == "uniform":
        return first.to(device)
    if kind == "normal":
        radius = (-2 * torch.log(1 - first.double())).sqrt()
        return (radius * torch.cos(2 * torch.pi * second.double())).float().to(device)
    raise IRError(f"random number kind {kind!r} is unknown", "its kinds are those of polyfuse.ir.ops.RANDOM")
