"""Outputs that lie where an input does: the host lets a result take over what is read for the last time."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from polyfuse.base.settings import Settings
from polyfuse.ir.expr import Expr, apply, const, load
from polyfuse.ir.interpreter.interpret import run_kernel
from polyfuse.ir.kernel import Alias, Kernel, KernelArg
from polyfuse.ir.types import DType
from polyfuse.ir.verifier.verify import verify_kernel
from polyfuse.symbolic import axis
from polyfuse.testing.cases.builder import Builder, Carry, Store, result
from requirements import HALIDE

pytest.importorskip("halide", reason=HALIDE)

from polyfuse_halide.backend import HalideBackend

F32, I64 = DType.f32, DType.i64


def arguments(m: int, n: int, *names: str) -> tuple[KernelArg, ...]:
    return tuple(KernelArg(name, "in" if name.startswith("in") else "out", F32, m * n) for name in names)


def several_outputs(m: int, n: int) -> Kernel:
    """Two results of one pass; the first may lie over the input that the second reads too."""
    i, j = axis("i0", m), axis("i1", n)
    index = i * n + j
    builder = Builder("several", (i, j), (), arguments(m, n, "in0", "in1", "out0", "out1"))
    a, b = load("in0", index, F32), load("in1", index, F32)
    builder.once(Store("out0", index, apply("mul", a, b)), Store("out1", index, apply("sub", a, b)))
    return builder.kernel((m, n))


def rows(m: int, n: int) -> Kernel:
    """Two loops that store, after a sum; both read what the first may overwrite."""
    i, r = axis("i0", m), axis("r0", n)
    index = i * n + r
    args = (*arguments(m, n, "in0", "in1", "out0", "out1"), KernelArg("out2", "out", F32, m))
    builder = Builder("rows", (i,), (r,), args)
    a, b = load("in0", index, F32), load("in1", index, F32)
    builder.loop(Carry(("s",), "sum", (apply("mul", a, b),)))
    away = apply("sub", a, result("s", F32))
    builder.loop(Store("out0", index, away), Store("out1", index, apply("add", away, b)))
    builder.once(Store("out2", i, result("s", F32)))
    return builder.kernel((m, n))


def columns(m: int, n: int) -> Kernel:
    i, r = axis("i0", n), axis("r0", m)
    index = r * n + i
    builder = Builder("columns", (i,), (r,), arguments(m, n, "in0", "out0"))
    a = load("in0", index, F32)
    builder.loop(Carry(("s",), "sum", (a,)))
    builder.loop(Store("out0", index, apply("sub", a, result("s", F32))))
    return builder.kernel((n, m))


def with_scatter(m: int, n: int) -> Kernel:
    """What is stored is also added to rows of a table."""
    i, r = axis("i0", m), axis("r0", n)
    index = i * n + r
    args = (
        *arguments(m, n, "in0", "in1"),
        KernelArg("in2", "in", I64, m),
        KernelArg("out0", "out", F32, m * n),
        KernelArg("io0", "inout", F32, 7 * n),
    )
    builder = Builder("with_scatter", (i,), (r,), args)
    a: Expr = apply("mul", load("in0", index, F32), const(2.0, F32))
    builder.loop(Carry(("s",), "sum", (a,)))
    value = apply("sub", apply("add", a, load("in1", index, F32)), result("s", F32))
    row = load("in2", i, I64)
    builder.loop(Store("out0", index, value), Store("io0", axis("@0", 7) * n + r, value, "add", (row,)))
    return builder.kernel((m, n))


@pytest.mark.each_value
@pytest.mark.parametrize("make", [several_outputs, rows, columns, with_scatter], ids=lambda f: f.__name__)
@pytest.mark.parametrize("shape", [(3, 17), (5, 64), (40, 1003), (130, 70)])
def test_an_output_over_an_input(make, shape, tmp_path):
    kernel = make(*shape)
    kernel = replace(kernel, aliases=(Alias("out0", "in0"),))
    verify_kernel(kernel)
    backend = HalideBackend(Settings.resolve())
    source = backend.emit(kernel)
    assert source.refused_aliases == ()
    backend.build([source], tmp_path)
    operands = []
    for arg in kernel.args:
        is_index = arg.dtype is I64
        operands.append(torch.randint(0, 7, (arg.numel,)) if is_index else torch.randn(arg.numel))
    wanted = [t.clone() for t in operands]
    run_kernel(kernel, wanted)
    given = dict(zip((arg.name for arg in kernel.args), (t.clone() for t in operands), strict=True))
    given["out0"] = given["in0"]
    backend.load(tmp_path)[source.key](*given.values())
    for arg, truth in zip(kernel.args, wanted, strict=True):
        if arg.kind != "in":
            torch.testing.assert_close(given[arg.name], truth, rtol=1e-4, atol=1e-3, msg=arg.name)


def running_statistics(m: int, n: int, across: bool) -> Kernel:
    """Rows with their sums; a number of each row is read, also for the row, and updated in place."""
    i, r = axis("i0", m), axis("r0", n)
    index = r * m + i if across else i * n + r
    args = (*arguments(m, n, "in0", "out0"), KernelArg("inout0", "inout", F32, m))
    builder = Builder("running", (i,), (r,), args)
    a, old = load("in0", index, F32), load("inout0", i, F32)
    builder.loop(Carry(("s",), "sum", (a,)))
    builder.once(Store("inout0", i, apply("add", apply("mul", old, const(0.9, F32)), result("s", F32))))
    builder.loop(Store("out0", index, apply("sub", a, apply("mul", old, result("s", F32)))))
    return builder.kernel((m, n))


@pytest.mark.each_value
@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("shape", [(3, 17), (40, 1003), (130, 70)])
def test_statistics_in_place(shape, across, tmp_path):
    kernel = running_statistics(*shape, across)
    verify_kernel(kernel)
    backend = HalideBackend(Settings.resolve())
    source = backend.emit(kernel)
    backend.build([source], tmp_path)
    operands = [torch.randn(arg.numel) for arg in kernel.args]
    wanted = [t.clone() for t in operands]
    run_kernel(kernel, wanted)
    backend.load(tmp_path)[source.key](*operands)
    for found, truth in zip(operands[1:], wanted[1:], strict=True):
        torch.testing.assert_close(found, truth, rtol=1e-4, atol=1e-2)
