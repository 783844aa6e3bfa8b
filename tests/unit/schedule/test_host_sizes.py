"""Numbers that only the host computes reach a kernel as arguments."""

from __future__ import annotations

from polyfuse.ir.expr import apply, load
from polyfuse.ir.kernel import Kernel, KernelArg
from polyfuse.ir.text.print import text
from polyfuse.ir.types import DType
from polyfuse.ir.verifier.verify import verify_kernel
from polyfuse.schedule.kernels.kernelize import sizes_as_arguments
from polyfuse.symbolic import IndexLike, axis, host, symbol
from polyfuse.testing.cases.builder import Builder, Store

LENGTH = symbol("s0", 2)
ROUNDED = host("math.ceil((s0 / 4))", (LENGTH,), 1)


def doubled(count: IndexLike, start: IndexLike) -> Kernel:
    i = axis("i0", count)
    args = (
        KernelArg("in0", "in", DType.f32, count + start),
        KernelArg("out0", "out", DType.f32, count),
        KernelArg("s0", "size", DType.i64, hint=9),
    )
    value = load("in0", i + start, DType.f32)
    return Builder("part", (i,), (), args).once(Store("out0", i, apply("add", value, value))).kernel((9,))


def test_extents_indices_and_lengths() -> None:
    kernel, operands = sizes_as_arguments(doubled(ROUNDED + 1, 2 * ROUNDED), ("x", "y", LENGTH), lambda _: 3)
    verify_kernel(kernel)
    number = symbol("h0", 1)
    assert "host" not in text(kernel) and operands == ("x", "y", LENGTH, ROUNDED)
    assert kernel.args[-1] == KernelArg("h0", "size", DType.i64, hint=3)
    assert kernel.sizes == (number + 1,) and kernel.args[0].numel == 3 * number + 1


def test_other_kernels_stay_as_they_are() -> None:
    kernel = doubled(LENGTH, 0)
    assert sizes_as_arguments(kernel, ("x", "y", LENGTH), lambda _: 3) == (kernel, ("x", "y", LENGTH))
