"""Device functions that turn numbers into integers in the order that sorting wants."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def sort_rank(value: tl.tensor, exists: tl.tensor, descending: tl.constexpr) -> tl.tensor:
    """An integer for each number, ordered as `torch.sort` orders these: NaN are equal and the largest, zeros
    of either sign are equal. Nothing has a larger one than what does not exist.

    Numbers of up to 16 bits give 16 bits of an i32, others of up to 32 bits give 32, and i64 gives i64.
    """
    bitwidth: tl.constexpr = value.dtype.primitive_bitwidth
    most: tl.constexpr = 0x7FFF if bitwidth <= 16 else 0x7FFFFFFF if bitwidth <= 32 else 0x7FFFFFFFFFFFFFFF
    if bitwidth == 64:
        rank = value
    elif value.dtype.is_floating():
        if bitwidth == 16:
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
    return tl.where(exists, rank, most)


@triton.jit
def sort_key(value: tl.tensor, at: tl.tensor, exists: tl.tensor, descending: tl.constexpr) -> tl.tensor:
    """The rank of each number in the upper bits, its position in the lower ones, so that the sort is stable;
    what does not exist comes last.

    Numbers of up to 16 bits give 32 bits, others of up to 32 bits give 64.
    """
    rank = sort_rank(value, exists, descending)
    if value.dtype.primitive_bitwidth <= 16:
        return (rank << 16) | at
    else:
        return (rank.to(tl.int64) << 32) | at.to(tl.int64)
