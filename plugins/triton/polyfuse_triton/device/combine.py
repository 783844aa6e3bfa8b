"""Device functions that combine partial results of reductions and scans."""

from __future__ import annotations

import triton
import triton.language as tl

from polyfuse_triton.device.libdevice import libdevice, quick_exp2

__all__ = [
    "combine_all",
    "combine_any",
    "combine_argmax",
    "combine_argmin",
    "combine_logsumexp",
    "combine_max",
    "combine_min",
    "combine_mul",
    "combine_sum",
    "combine_welford",
    "combine_xor",
    "finish_softmax",
    "finite_or_zero",
    "moments_step",
    "scan_max",
    "scan_min",
    "softmax_step",
]


@triton.jit
def combine_sum(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """The sum."""
    return a + b


@triton.jit
def combine_mul(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """The product."""
    return a * b


@triton.jit
def combine_max(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """The larger; NaN wins."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def combine_min(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """The smaller; NaN wins."""
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def combine_any(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """Whether one of them holds, as numbers 0 and 1."""
    return a | b


@triton.jit
def combine_all(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """Whether both hold, as numbers 0 and 1."""
    return a & b


@triton.jit
def combine_xor(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """Bits that are in one of them alone."""
    return a ^ b


@triton.jit
def combine_argmax(a: tl.tensor, at: tl.tensor, b: tl.tensor, bt: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """The larger value with its position; NaN wins, and the smaller position among equals."""
    same = (a == b) | ((a != a) & (b != b))
    take = (b > a) | ((b != b) & (a == a)) | (same & (bt < at))
    return tl.where(take, b, a), tl.where(take, bt, at)


@triton.jit
def combine_argmin(a: tl.tensor, at: tl.tensor, b: tl.tensor, bt: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """The smaller value with its position; NaN wins, and the smaller position among equals."""
    same = (a == b) | ((a != a) & (b != b))
    take = (b < a) | ((b != b) & (a == a)) | (same & (bt < at))
    return tl.where(take, b, a), tl.where(take, bt, at)


@triton.jit
def scan_max(a: tl.tensor, at: tl.tensor, b: tl.tensor, bt: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """The larger value so far with its position; NaN wins, and the later one among equals."""
    take = (b >= a) | (b != b)
    return tl.where(take, b, a), tl.where(take, bt, at)


@triton.jit
def scan_min(a: tl.tensor, at: tl.tensor, b: tl.tensor, bt: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """The smaller value so far with its position; NaN wins, and the later one among equals."""
    take = (b <= a) | (b != b)
    return tl.where(take, b, a), tl.where(take, bt, at)


@triton.jit
def combine_logsumexp(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """The logarithm of the sum of two exponentials."""
    high = tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
    low = tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
    # of two equal infinities the difference is NaN
    joined = high + libdevice.log1p(libdevice.exp(low - high))
    return tl.where((low == high) & (tl.abs(high) == float("inf")), high, joined)


@triton.jit
def finite_or_zero(value: tl.tensor) -> tl.tensor:
    """A number from which distances of others can be taken: zero instead of an infinity or NaN."""
    return tl.where(tl.abs(value) < float("inf"), value, 0.0)


@triton.jit
def moved_mean(mean: tl.tensor, step: tl.tensor, other: tl.tensor) -> tl.tensor:
    """A mean after a step towards another: there is no step back from infinity."""
    found = mean + step
    return tl.where(found == found, found, mean + other)


@triton.jit
def combine_welford(
    mean: tl.tensor, m2: tl.tensor, count: tl.tensor, mean2: tl.tensor, m22: tl.tensor, count2: tl.tensor
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Mean, sum of squared deviations and count of two parts together."""
    total = count + count2
    part = tl.where(total > 0, count2 / tl.where(total > 0, total, 1), 0)
    delta = mean2 - mean
    # nothing is between a state and an empty one, also where a square would be infinite
    return moved_mean(mean, delta * part, mean2), m2 + m22 + delta * (count * part) * delta, total


@triton.jit
def moments_step(
    total: tl.tensor, m2: tl.tensor, before: tl.tensor, part: tl.tensor, value: tl.tensor
) -> tuple[tl.tensor, tl.tensor]:
    """One more value for a sum and the squared deviations from the mean, which is `before` times the sum so
    far, and `part` times that with the value. The sum is divided by 2**20: that of finite numbers is finite.
    """
    mean = total * before
    total += value * 9.5367431640625e-07
    return total, m2 + (value - mean) * (value - total * part)


@triton.jit
def softmax_step(largest: tl.tensor, total: tl.tensor, value: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """One more value for a maximum and a sum of exponentials below it, at the cost of one exponential.

    The maximum begins with the lowest finite number, so that infinities meet no infinity in a difference. The
    exponential is none of those that results are made of directly: the less it counts in the sum, the less
    exact it is.
    """
    rises = value > largest
    if value.dtype == tl.float32:
        scale = quick_exp2(tl.abs(value - largest) * -1.4426950408889634)
    else:
        scale = libdevice.exp(tl.abs(value - largest) * -1)
    return tl.where(rises, value, largest), tl.where(rises, total * scale + 1, total + scale)


@triton.jit
def finish_softmax(largest: tl.tensor, total: tl.tensor, lowest: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """What the two parts of `online_softmax` are in the end: NaN where a NaN or no finite maximum was met."""
    infinite = largest == float("inf")
    bare = (largest == lowest) & (total == 0)
    largest = tl.where(bare, float("-inf"), tl.where((total != total) & (~infinite), total, largest))
    return largest, tl.where(infinite | bare, float("nan"), total)
