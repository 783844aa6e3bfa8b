"""Atomic updates of memory that the hardware has no instruction for: compare and swap until it holds."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["atomic_update"]


@triton.jit
def _joined(old: tl.tensor, value: tl.tensor, MODE: tl.constexpr) -> tl.tensor:
    """An element combined with a value, in the type of arithmetic."""
    if MODE == "add":
        return old + value
    elif MODE == "mul":
        return old * value
    elif MODE == "min":
        return tl.minimum(old, value, propagate_nan=tl.PropagateNan.ALL)
    else:
        return tl.maximum(old, value, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _combine(old: tl.tensor, value: tl.tensor, MODE: tl.constexpr) -> tl.tensor:
    """An element combined with a value of its own type; 16-bit numbers are widened for it."""
    if old.dtype == tl.bfloat16:
        return _joined(old.to(tl.float32), value.to(tl.float32), MODE).to(tl.bfloat16)
    elif old.dtype == tl.float16:
        return _joined(old.to(tl.float32), value.to(tl.float32), MODE).to(tl.float16)
    elif old.dtype == tl.int1:
        return _joined(old.to(tl.int32), value.to(tl.int32), MODE) != 0
    else:
        return _joined(old, value, MODE)


@triton.jit
def _any(flags: tl.tensor) -> tl.tensor:
    """Whether some flag is set."""
    if flags.type.is_block():
        return tl.max(flags.to(tl.int32)) > 0
    else:
        return flags


@triton.jit
def _update_word(
    base: tl.tensor,
    offset: tl.tensor,
    value: tl.tensor,
    mask: tl.tensor,
    MODE: tl.constexpr,
    WORD: tl.constexpr,
) -> None:
    """Update elements that are as wide as an atomic word."""
    # where nothing is to be stored, an element that surely exists is swapped for itself
    pointer = base + tl.where(mask, offset, 0)
    old = tl.load(pointer)
    pending = mask
    while _any(pending):
        new = tl.where(pending, _combine(old, value, MODE), old)
        bits = old.to(WORD, bitcast=True)
        words = pointer.to(tl.pointer_type(WORD), bitcast=True)
        found = tl.atomic_cas(words, bits, new.to(WORD, bitcast=True), sem="relaxed")
        pending = pending & (found != bits)
        old = found.to(old.dtype, bitcast=True)


@triton.jit
def _update_byte(
    base: tl.tensor, offset: tl.tensor, value: tl.tensor, mask: tl.tensor, MODE: tl.constexpr
) -> None:
    """Update elements of one byte inside the aligned word of four that holds them."""
    address = (base + tl.where(mask, offset, 0)).to(tl.int64, bitcast=True)
    word = (address & -4).to(tl.pointer_type(tl.int32), bitcast=True)
    shift = ((address & 3) * 8).to(tl.int32)
    old = tl.load(word)
    pending = mask
    while _any(pending):
        element = ((old >> shift) & 255).to(tl.uint8)
        if value.dtype == tl.int1:
            new = _combine(element != 0, value, MODE).to(tl.int32)
        elif value.dtype == tl.int8:
            new = _combine(element.to(tl.int8), value, MODE).to(tl.int32) & 255
        else:
            new = _combine(element, value, MODE).to(tl.int32)
        changed = tl.where(pending, (old & ~(255 << shift)) | (new << shift), old)
        found = tl.atomic_cas(word, old, changed, sem="relaxed")
        pending = pending & (found != old)
        old = found


@triton.jit
def atomic_update(
    base: tl.tensor, offset: tl.tensor, value: tl.tensor, mask: tl.tensor, MODE: tl.constexpr
) -> None:
    """``base[offset] = MODE(base[offset], value)`` where `mask` holds, each as one step."""
    width: tl.constexpr = value.dtype.primitive_bitwidth
    if width <= 8:
        _update_byte(base, offset, value, mask, MODE)
    elif width == 16:
        _update_word(base, offset, value, mask, MODE, tl.int16)
    elif width == 32:
        _update_word(base, offset, value, mask, MODE, tl.int32)
    else:
        _update_word(base, offset, value, mask, MODE, tl.int64)
