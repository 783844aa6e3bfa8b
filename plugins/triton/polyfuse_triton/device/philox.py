"""Random numbers on the device: the generator of `polyfuse.ir.random`, word for word."""

from __future__ import annotations

import triton
import triton.language as tl

from polyfuse_triton.device.libdevice import libdevice

__all__ = ["random_bits", "random_normal", "random_uniform"]


@triton.jit
def _words(seed: tl.tensor, offset: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """The first two of the four words drawn."""
    k0 = seed.to(tl.uint32)
    k1 = (seed >> 32).to(tl.uint32)
    c0 = offset.to(tl.uint32)
    c1 = (offset >> 32).to(tl.uint32)
    c2 = c0 ^ c0
    c3 = c2
    left = tl.full((), 0xD2511F53, tl.uint32)
    right = tl.full((), 0xCD9E8D57, tl.uint32)
    for _ in tl.static_range(10):
        high = tl.umulhi(c2, right)
        low = c2 * right
        other = tl.umulhi(c0, left)
        c2 = other ^ c3 ^ k1
        c3 = c0 * left
        c0 = high ^ c1 ^ k0
        c1 = low
        k0 = k0 + tl.full((), 0x9E3779B9, tl.uint32)
        k1 = k1 + tl.full((), 0xBB67AE85, tl.uint32)
    return c0, c1


@triton.jit
def random_bits(seed: tl.tensor, offset: tl.tensor) -> tl.tensor:
    """64 random bits."""
    low, high = _words(seed, offset)
    return (low.to(tl.uint64) | (high.to(tl.uint64) << 32)).to(tl.int64)


@triton.jit
def random_uniform(seed: tl.tensor, offset: tl.tensor) -> tl.tensor:
    """A number in [0, 1) with 24 random bits."""
    word, _ = _words(seed, offset)
    return (word >> 8).to(tl.float32) * 5.9604644775390625e-08


@triton.jit
def random_normal(seed: tl.tensor, offset: tl.tensor) -> tl.tensor:
    """A number of the standard normal distribution."""
    first, second = _words(seed, offset)
    u = (first >> 8).to(tl.float32) * 5.9604644775390625e-08
    v = (second >> 8).to(tl.float32) * 5.9604644775390625e-08
    # twice the angle in half turns is exact, the angle itself would not be
    return tl.sqrt_rn(libdevice.log(1 - u) * -2) * libdevice.cospi(v * 2)
