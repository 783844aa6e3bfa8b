"""Device functions that turn numbers into integers in the order that sorting wants."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["sort_key"]


@triton.jit
def sort_key(value: tl.tensor, at: tl.tensor, exists: tl.tensor, descending: tl.constexpr) -> tl.tensor:
    """An integer for each number, ordered as `torch.sort` orders these: the number's rank above, its place
    below, so that equal numbers stay in order. NaN are equal and the largest, zeros of either sign are equal,
    and what does not exist comes last.

    Numbers of up to 16 bits give 32 bits, others of up to 32 bits give 64.
    """
    most: tl.constexpr = 0x7FFF if value.dtype.primitive_bitwidth <= 16 else 0x7FFFFFFF
    if value.dtype.is_floating():
        if value.dtype.primitive_bitwidth == 16:
            bits = value.to(tl.int16, bitcast=True).to(tl.int32)
        else:
            bits = value.to(tl.float32).to(tl.int32, bitcast=True)
        wide = value.to(tl.float32)
        bits = tl.where(bits < 0, bits ^ most, bits)
        rank = tl.where(wide != wide, most, tl.where(wide == 0, 0, bits))
    else:
        rank = value.to(tl.int32)
    if descending:
        rank = ~rank
    if value.dtype.primitive_bitwidth <= 16:
        return (tl.where(exists, rank, most) << 16) | at
    else:
        return (tl.where(exists, rank, most).to(tl.int64) << 32) | at.to(tl.int64)
