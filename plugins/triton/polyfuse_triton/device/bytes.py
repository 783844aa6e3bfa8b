"""Bytes as numbers of 16 bits, made by their bits: a GPU converts 16 integers in the time in which it adds
128 numbers, and adds two of 16 bits at a time.
"""

from __future__ import annotations

import triton
import triton.language as tl

from polyfuse_triton.device.libdevice import signed_bits

__all__ = ["by_words", "integer_bf16", "integer_f16", "of_groups", "signed_byte_bf16"]


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
    """A signed byte, exactly."""
    bits, base = signed_bits(a)
    return (bits.to(tl.float32) - base.to(tl.float32)).to(tl.bfloat16).to(tl.float32)


@triton.jit
def by_words(pointer: tl.tensor, count: tl.constexpr, inside: tl.tensor | None = None) -> tl.tensor:
    """Neighbouring numbers of 16 bits, an even number of them, behind each address of a column: (rows, 1) to
    (rows, count). Copies past registers take four bytes at least. `inside`: rows that there are, if not all.
    """
    kind: tl.constexpr = pointer.dtype.element_ty
    words = pointer.to(tl.pointer_type(tl.int32), bitcast=True) + tl.arange(0, count // 2)[None, :]
    if inside is None:
        word = tl.load(words)
    else:
        word = tl.load(words, mask=inside, other=0)
    low = word.to(tl.int16).to(kind, bitcast=True)
    high = (word >> 16).to(tl.int16).to(kind, bitcast=True)
    return tl.reshape(tl.join(low, high), [pointer.shape[0], count])


@triton.jit
def of_groups(a: tl.tensor, length: tl.constexpr) -> tl.tensor:
    """What each group has for itself, for each of its members: (rows, groups) to (rows, length)."""
    each: tl.constexpr = length // a.shape[1]
    wide = tl.broadcast_to(a[:, :, None], [a.shape[0], a.shape[1], each])
    return tl.reshape(wide, [a.shape[0], length])
