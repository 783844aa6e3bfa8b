"""What bytes become without a device's own instructions: for AMD's GPUs, and in Triton's interpreter."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["high_half", "low_half", "signed_bits"]


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
