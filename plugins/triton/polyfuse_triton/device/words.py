"""Lines of signed bytes as numbers of bf16, where each of four threads reads sixteen bytes of its own. A
matrix instruction takes two neighbours of eight numbers from each, so that the depth has another order than
in memory; the other operand, whose rows are transposed, is read in that order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from polyfuse_triton.device.libdevice import four_of_bytes

__all__ = ["signed_words", "transposed_rows"]


@triton.jit
def signed_words(pointer: tl.tensor, count: tl.constexpr, inside: tl.tensor | None = None) -> tl.tensor:
    """Signed bytes behind each address of a column: (rows, 1) to (rows, count) of bf16, in the order of
    `transposed_rows`. `inside`: rows that there are, if not all.
    """
    words = pointer.to(tl.pointer_type(tl.int32), bitcast=True) + tl.arange(0, count // 4)[None, :]
    if inside is None:
        word = tl.load(words)
    else:
        word = tl.load(words, mask=inside, other=0)
    n0, n1, n2, n3 = four_of_bytes(word)
    # numbers that are two apart go together; axes of a step: the thread, its word, the pair, number in it
    pairs = tl.join(tl.join(n0, n1), tl.join(n2, n3))
    pairs = tl.reshape(pairs, [pointer.shape[0], count // 64, 4, 4, 2, 2])
    return tl.reshape(tl.permute(pairs, [0, 1, 3, 4, 2, 5]), [pointer.shape[0], count])


@triton.jit
def transposed_rows(
    pointer: tl.tensor, count: tl.constexpr, stride: tl.constexpr, by_words: tl.constexpr
) -> tl.tensor:
    """The steps of a depth behind addresses of a row: (1, rows) to (count, rows), as they are, or in the
    order of `signed_words`.
    """
    k = tl.arange(0, count)
    if by_words:
        k = k // 64 * 64 + k // 2 % 4 * 16 + k // 16 % 4 * 4 + k % 2 * 2 + k // 8 % 2
    return tl.load(pointer + k[:, None] * stride)
