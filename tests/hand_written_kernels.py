"""Hand-written kernels for tests, in a file of their own: Triton reads their source."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    """`out = x + y`, elements up to `n`."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    tl.store(out + i, tl.load(x + i, mask=mask) + tl.load(y + i, mask=mask), mask=mask)


@triton.jit
def scale_kernel(x, factor, n, BLOCK: tl.constexpr):
    """`x *= factor`, elements up to `n`."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    tl.store(x + i, tl.load(x + i, mask=mask) * factor, mask=mask)


@triton.jit
def two_results_kernel(x, total, square, cols, stride, BLOCK: tl.constexpr):
    """`total += x` and `square = x * x` by rows, each row of `x` at its own address, results dense."""
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    values = tl.load(x + row * stride + i, mask=i < cols)
    before = tl.load(total + row * cols + i, mask=i < cols)
    tl.store(total + row * cols + i, before + values, mask=i < cols)
    tl.store(square + row * cols + i, values * values, mask=i < cols)


@triton.autotune(configs=[triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 64}, num_warps=8)], key=["n"])
@triton.jit
def tuned_add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    """`add_kernel` with configurations to choose from."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    tl.store(out + i, tl.load(x + i, mask=mask) + tl.load(y + i, mask=mask), mask=mask)
