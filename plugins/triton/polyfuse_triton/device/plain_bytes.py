"""What bytes become, and sums, without a device's own instructions: for AMD's GPUs, and in Triton's
interpreter.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = [
    "four_of_bytes",
    "high_half",
    "low_half",
    "multiplied",
    "pair_of_halves",
    "signed_bits",
]


@triton.jit
def low_half(a: tl.tensor) -> tl.tensor:
    """128 and the lower four bits of a byte as f32."""
    return (a & 15).to(tl.float32) + 128.0


@triton.jit
def high_half(a: tl.tensor) -> tl.tensor:
    """128 and the upper four bits of a byte as f32."""
    return (a >> 4).to(tl.float32) + 128.0


@triton.jit
def signed_bits(a: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """A signed byte as a difference of two bf16: the sign makes 256 of 128."""
    wide = a.to(tl.int16)
    bits = ((wide & 0x7F) | 0x4300).to(tl.bfloat16, bitcast=True)
    return bits, ((wide & 0x80) | 0x4300).to(tl.bfloat16, bitcast=True)


@triton.jit
def pair_of_halves(
    word: tl.tensor, number: tl.tensor, zero: tl.tensor, scale: tl.tensor
) -> tuple[tl.tensor, tl.tensor]:
    """The lower and the upper half of byte `number` of a word, less `zero` and times `scale`, as bf16; these
    two hold one bf16 twice.
    """
    less = zero.to(tl.int16).to(tl.bfloat16, bitcast=True).to(tl.float32)
    times = scale.to(tl.int16).to(tl.bfloat16, bitcast=True).to(tl.float32)
    byte = word >> (number * 8)
    low = ((byte & 15).to(tl.float32) - less).to(tl.bfloat16).to(tl.float32)
    high = ((byte >> 4 & 15).to(tl.float32) - less).to(tl.bfloat16).to(tl.float32)
    return (low * times).to(tl.bfloat16), (high * times).to(tl.bfloat16)


@triton.jit
def four_of_bytes(word: tl.tensor) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """The signed bytes of a word as bf16."""
    n0 = (word << 24 >> 24).to(tl.float32).to(tl.bfloat16)
    n1 = (word << 16 >> 24).to(tl.float32).to(tl.bfloat16)
    n2 = (word << 8 >> 24).to(tl.float32).to(tl.bfloat16)
    return n0, n1, n2, (word >> 24).to(tl.float32).to(tl.bfloat16)


@triton.jit
def multiplied(total: tl.tensor) -> tl.tensor:
    """The same sums."""
    return total
