"""Device functions by which programs that run at the same time exchange what they found.

A word says by itself whether it is there: its upper half is a mark, its lower half the bits of a number. So
no order among stores and loads has to be kept, and a number of 64 bits takes two words.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["wait_for", "publish"]


@triton.jit
def _bits(word: tl.tensor) -> tl.tensor:
    """The lower half of a word."""
    return word & 0xFFFFFFFF


@triton.jit
def _put(place: tl.tensor, half: tl.tensor) -> None:
    tl.atomic_xchg(place, _bits(half) | (1 << 32), sem="relaxed")


@triton.jit
def publish(place: tl.tensor, apart: tl.tensor, value: tl.tensor) -> None:
    """Put a number at a place, its upper half, where it has one, so many words behind."""
    if value.dtype.primitive_bitwidth == 64:
        bits = value.to(tl.int64, bitcast=True)
        _put(place, bits)
        _put(place + apart, bits >> 32)
    else:
        _put(place, value.to(tl.int32, bitcast=True).to(tl.int64))


@triton.jit
def _awaited(places: tl.tensor, mask: tl.tensor) -> tl.tensor:
    """Words at several places, when all are there."""
    words = tl.load(places, mask=mask, other=1 << 32, volatile=True)
    while tl.min(words, 0) == 0:
        words = tl.load(places, mask=mask, other=1 << 32, volatile=True)
    return words


@triton.jit
def wait_for(places: tl.tensor, mask: tl.tensor, apart: tl.tensor, like: tl.tensor) -> tl.tensor:
    """The numbers at several places, of the type of another number, when all have been put there; where
    `mask` is false, any.
    """
    words = _awaited(places, mask)
    if like.dtype.primitive_bitwidth == 64:
        upper = _awaited(places + apart, mask)
        return ((upper << 32) | _bits(words)).to(like.dtype, bitcast=True)
    else:
        return words.to(tl.int32).to(like.dtype, bitcast=True)
