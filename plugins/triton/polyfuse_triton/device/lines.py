"""Lines of bytes as numbers of bf16, for a matrix instruction that takes them from registers. Of eight
numbers of a line, each of four threads has two neighbours. So these threads read the same words, sixteen
bytes at once, and each takes its own of them: by single bytes they would read four times as often.
"""

from __future__ import annotations

import triton
import triton.language as tl

from polyfuse_triton.device.libdevice import pair_of_halves

__all__ = ["scaled_lines"]


@triton.jit
def _twice(a: tl.tensor, shape: tl.constexpr) -> tl.tensor:
    """What each group has for itself, (rows, groups) of bf16, twice in a word, for each number of a shape."""
    bits = a.to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
    each: tl.constexpr = shape[1] * shape[2] // a.shape[1]
    wide = tl.broadcast_to((bits << 16 | bits)[:, :, None], [shape[0], a.shape[1], each])
    return tl.reshape(wide, shape)


@triton.jit
def scaled_lines(
    pointer: tl.tensor,
    count: tl.constexpr,
    zero: tl.tensor,
    scale: tl.tensor,
    upper_first: tl.constexpr,
    inside: tl.tensor | None = None,
) -> tl.tensor:
    """Halves of the bytes behind each address of a column, less a zero point and scaled: (rows, 1) to
    (rows, 2 * count) of bf16. `zero`, `scale`: (rows, groups) of bf16; `inside`: rows that there are, if not
    all.
    """
    words = pointer.to(tl.pointer_type(tl.int32), bitcast=True) + tl.arange(0, count // 4)[None, :]
    if inside is None:
        word = tl.load(words)
    else:
        word = tl.load(words, mask=inside, other=0)
    shape: tl.constexpr = [pointer.shape[0], count // 4, 4]
    word = tl.broadcast_to(word[:, :, None], shape)
    number = tl.broadcast_to(tl.arange(0, 4)[None, None, :], shape)
    low, high = pair_of_halves(word, number, _twice(zero, shape), _twice(scale, shape))
    both = tl.join(high, low) if upper_first else tl.join(low, high)
    return tl.reshape(both, [pointer.shape[0], 2 * count])
