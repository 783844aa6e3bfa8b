"""Bytes as numbers of 16 bits, made by their bits: a GPU converts 16 integers in the time in which it adds
128 numbers, and adds two of 16 bits at a time.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["integer_bf16", "integer_f16", "signed_byte_bf16"]


@triton.jit
def integer_bf16(a: tl.tensor, low: tl.constexpr) -> tl.tensor:
    """A byte that is less than 128 above `low`, exactly: behind 128 follow 128 integers, in lower bits."""
    bits = a.to(tl.int16) + (0x4300 - low)
    return (bits.to(tl.bfloat16, bitcast=True).to(tl.float32) - (128.0 - low)).to(tl.bfloat16).to(tl.float32)


@triton.jit
def integer_f16(a: tl.tensor, low: tl.constexpr) -> tl.tensor:
    """A byte, of which the least is `low`: behind 1024 follow 1024 integers."""
    bits = a.to(tl.int16) + (0x6400 - low)
    return (bits.to(tl.float16, bitcast=True).to(tl.float32) - (1024.0 - low)).to(tl.float16).to(tl.float32)


@triton.jit
def signed_byte_bf16(a: tl.tensor) -> tl.tensor:
    """A signed byte: its sign makes 256 of 128."""
    wide = a.to(tl.int16)
    bits = ((wide & 0x7F) | 0x4300).to(tl.bfloat16, bitcast=True).to(tl.float32)
    base = ((wide & 0x80) | 0x4300).to(tl.bfloat16, bitcast=True).to(tl.float32)
    return (bits - base).to(tl.bfloat16).to(tl.float32)
