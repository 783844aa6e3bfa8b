"""Device functions by which programs that run at the same time exchange what they found.

A word says by itself whether it is there: its upper half is a mark, its lower half the bits of a number. So
no order among stores and loads has to be preserved, and a number of 64 bits takes two words.
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
def _put(pointer: tl.tensor, half: tl.tensor) -> None:
    tl.atomic_xchg(pointer, _bits(half) | (1 << 32), sem="relaxed")


@triton.jit
def publish(pointer: tl.tensor, apart: tl.tensor, value: tl.tensor) -> None:
    """Store a number as a word at `pointer`, and the upper half of 64 bits `apart` words behind it."""
    if value.dtype.primitive_bitwidth == 64:
        bits = value.to(tl.int64, bitcast=True)
        _put(pointer, bits)
        _put(pointer + apart, bits >> 32)
    else:
        _put(pointer, value.to(tl.int32, bitcast=True).to(tl.int64))


@triton.jit
def _awaited(pointers: tl.tensor, mask: tl.tensor) -> tl.tensor:
    """The words at several addresses, once all of them are published."""
    words = tl.load(pointers, mask=mask, other=1 << 32, volatile=True)
    while tl.min(words, 0) == 0:
        words = tl.load(pointers, mask=mask, other=1 << 32, volatile=True)
    return words


@triton.jit
def wait_for(pointers: tl.tensor, mask: tl.tensor, apart: tl.tensor, like: tl.tensor) -> tl.tensor:
    """The numbers at several addresses, of the type of `like`, once all of them are published; where
    `mask` is false, any.
    """
    words = _awaited(pointers, mask)
    if like.dtype.primitive_bitwidth == 64:
        upper = _awaited(pointers + apart, mask)
        return ((upper << 32) | _bits(words)).to(like.dtype, bitcast=True)
    else:
        return words.to(tl.int32).to(like.dtype, bitcast=True)
