"""Kernels with names that generated programs could take for something else, or for one another."""

from __future__ import annotations

import re

import pytest
import torch

from polyfuse.base.settings import Settings
from polyfuse.ir.kernel import Kernel, KernelArg, RowBuffer, Section
from polyfuse.ir.statements import Cast, Compute, IndexValue, Load, Reduce, Statement, Store
from polyfuse.ir.types import DType
from polyfuse.ir.verifier.kernel import verify_kernel
from polyfuse.symbolic import IndexLike, axis, symbol
from requirements import HALIDE
from strange_names import NAMES, batches

pytest.importorskip("halide", reason=HALIDE)

from polyfuse_halide.backend import HalideBackend
from polyfuse_halide.codegen.forward import with_plain_names
from polyfuse_halide.launch.launcher import nothing

F32 = DType.f32
ROWS, COLUMNS = 5, 7


def strange(names: tuple[str, ...], dynamic: bool = False) -> Kernel:
    """Each row's sum of all inputs times the column, from a row buffer. The first name is a size's, each
    other one an axis's, a buffer's and a value's.
    """
    size, *rest = names
    rows = symbol(size, 1, None) if dynamic else ROWS
    i, r = axis(rest[0], rows), axis(rest[1], COLUMNS)
    index: IndexLike = i * COLUMNS + r
    inputs, row, out = rest[:-2], rest[-2], rest[-1]
    targets = iter([*rest, *(f"{name}_n" for name in rest), *(f"{name}_of" for name in rest), size])

    body: list[Statement] = []
    total = ""
    for name in inputs:
        body.append(Load(next(targets), name, index, F32))
        loaded = body[-1].targets[0]
        if total:
            body.append(Compute(next(targets), "add", (total, loaded), F32))
        total = body[-1].targets[0]
    body.append(Store(row, r, total, F32))
    again = next(targets)
    later: list[Statement] = [Load(again, row, r, F32), IndexValue(next(targets), r, DType.i64)]
    column = later[-1].targets[0]
    later.append(Cast(next(targets), column, F32))
    later.append(Compute(next(targets), "mul", (again, later[-1].targets[0]), F32))
    later.append(Reduce((next(targets),), "sum", (later[-1].targets[0],), F32))
    sections = (
        Section(True, tuple(body)),
        Section(True, tuple(later)),
        Section(False, (Store(out, i, later[-1].targets[0], F32),)),
    )
    args = [KernelArg(name, "in", F32, rows * COLUMNS) for name in inputs]
    args.append(KernelArg(out, "out", F32, rows))
    if dynamic:
        args.append(KernelArg(size, "size", DType.i64, hint=ROWS))
    hints, rows_of = (ROWS, COLUMNS), (RowBuffer(row, F32, COLUMNS),)
    found = Kernel("strange", "cpu", (i,), (r,), tuple(args), rows_of, sections, hints)
    verify_kernel(found)
    return found


def all_names(kernel: Kernel) -> list[str]:
    made = [t for section in kernel.sections for s in section.body for t in s.targets]
    axes = [str(a) for a in (*kernel.axes, *kernel.raxes)]
    return [*axes, *(b.name for b in (*kernel.args, *kernel.row_buffers)), *made]


def test_every_name_is_another_one():
    for batch in batches(NAMES, 12):
        if len(batch) < 6:
            continue
        found = all_names(with_plain_names(strange(batch, dynamic=True)))
        assert len(set(found)) == len(found)
        assert all(re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) for name in found)


def test_usual_names_are_unchanged():
    kernel = strange(("s0", "i0", "r0", "in0", "in1", "row0", "x1", "out0"), dynamic=True)
    assert all_names(with_plain_names(kernel))[:2] == ["i0", "r0"]


@pytest.mark.quick(1)
@pytest.mark.parametrize("dynamic", [False, True])
def test_they_compute_what_others_do(dynamic, tmp_path):
    backend = HalideBackend(Settings())
    kernels = [strange(names, dynamic) for names in batches(NAMES, 12)[::4] if len(names) >= 6]
    sources = [backend.emit(kernel) for kernel in kernels]
    backend.build(sources, tmp_path)
    launches = backend.load(tmp_path)
    for kernel, source in zip(kernels, sources, strict=True):
        count = sum(arg.kind == "in" for arg in kernel.args)
        inputs = [torch.randn(ROWS, COLUMNS) for _ in range(count)]
        out = torch.zeros(ROWS)
        launch = launches[source.key]
        assert launch is not nothing
        launch(*inputs, out, *([ROWS] if dynamic else []))
        wanted = (torch.stack(inputs).sum(0) * torch.arange(COLUMNS)).sum(1)
        torch.testing.assert_close(out, wanted)
