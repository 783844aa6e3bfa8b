"""Schedules: what is chosen for which kernel, what the option pins, and that all compute the same."""

from __future__ import annotations

import pytest
import torch

from polyfuse.base.errors import BackendUnavailableError
from polyfuse.base.settings import Settings
from polyfuse.ir.expr import apply, const, load
from polyfuse.ir.kernel import Kernel, KernelArg, RowBuffer
from polyfuse.ir.types import DType
from polyfuse.plugin import Config
from polyfuse.symbolic import axis
from polyfuse.testing.cases.builder import Builder, Carry, Store, result
from requirements import HALIDE

pytest.importorskip("halide", reason=HALIDE)

from halide_code import assembly, loops, over_its_inputs
from polyfuse_halide.backend import HalideBackend
from polyfuse_halide.host import Host
from polyfuse_halide.schedules.plan import Plan, choose_plan

F32 = DType.f32


def plan(kernel: Kernel) -> Plan:
    return choose_plan(kernel, 16, None)


def pointwise(*sizes: int, transposed: bool = False) -> Kernel:
    axes = tuple(axis(f"i{k}", n) for k, n in enumerate(sizes))
    index = back = 0
    total = 1
    for variable, size in zip(axes, sizes, strict=True):
        index, total = index * size + variable, total * size
    for variable, size in reversed(list(zip(axes, sizes, strict=True))):
        back = back * size + variable
    args = (KernelArg("in0", "in", F32, total), KernelArg("out0", "out", F32, total))
    builder = Builder("points", axes, (), args)
    builder.once(Store("out0", index, apply("exp", load("in0", back if transposed else index, F32))))
    return builder.kernel(sizes)


def total(m: int, n: int, columns: bool) -> Kernel:
    """Sums of the rows, or of the columns, of an (m, n) matrix."""
    i, r = axis("i0", n if columns else m), axis("r0", m if columns else n)
    args = (KernelArg("in0", "in", F32, m * n), KernelArg("out0", "out", F32, n if columns else m))
    builder = Builder("total", (i,), (r,), args)
    index = r * n + i if columns else i * n + r
    builder.loop(Carry(("s",), "sum", (load("in0", index, F32),)))
    builder.once(Store("out0", i, result("s", F32)))
    return builder.kernel((n, m) if columns else (m, n))


def test_small_kernels_use_one_thread():
    assert plan(pointwise(100)).fuse == 0
    assert plan(total(4, 100, columns=False)).fuse == 0


def test_long_rows_are_cut_into_chunks():
    chosen = plan(pointwise(1 << 20))
    assert chosen.fuse == 1 and chosen.chunk > 0
    assert plan(pointwise(512, 2048)).chunk == 0


def test_few_outer_steps_are_shared_together():
    assert plan(pointwise(2, 3, 64, 1024)).fuse > 1


def test_lanes_run_where_memory_is_contiguous():
    assert plan(total(300, 400, columns=False)).kind == "rows"
    assert plan(total(300, 400, columns=True)).kind == "columns"
    assert plan(total(300, 5, columns=False)).kind == "columns", "rows too short for a vector"


@pytest.mark.parametrize("columns", [256, 200])
def test_sums_down_columns_stay_in_registers(columns, tmp_path):
    code = assembly(total(300, columns, columns=True), tmp_path)
    sums = [part for part in loops(code) if "vaddps" in part]
    assert sums and all(part.count("vaddps") == 4 and "vmov" not in part for part in sums)


def test_a_transposition_walks_along_both_sides():
    assert plan(pointwise(200, 300, transposed=True)).transpose == 0
    assert plan(pointwise(200, 300)).transpose == -1


def test_nothing_is_written_twice_in_place():
    i = axis("i0", 64)
    builder = Builder("in_place", (i,), (), (KernelArg("io0", "inout", F32, 64),))
    builder.once(Store("io0", i, apply("add", load("io0", i, F32), const(1.0, F32))))
    assert not plan(builder.kernel((64,))).shift
    # nor where a result may lie over an input
    assert not plan(over_its_inputs(pointwise(64))).shift
    assert plan(pointwise(64)).shift and plan(over_its_inputs(total(64, 80, columns=True))).shift


def test_the_option_pins_choices():
    backend = HalideBackend(Settings.resolve(options={"halide.schedule": "lanes=8, unroll=2"}))
    kernel = total(300, 400, columns=False)
    assert 'Schedule("rows", lanes=8, unroll=2' in backend.emit(kernel).text
    assert list(backend.configs(kernel)) == [Config.of(lanes=8, unroll=2)]
    assert backend.describe() != HalideBackend(Settings.resolve()).describe()


@pytest.mark.parametrize("text", ["lanes", "lanes=wide", "fuel=3"])
def test_a_choice_that_is_none_is_refused(text):
    with pytest.raises(BackendUnavailableError, match=r"halide\.schedule"):
        HalideBackend(Settings.resolve(options={"halide.schedule": text}))


CHOICES = [
    Config(),
    Config.of(lanes=4, unroll=1),
    Config.of(lanes=8, unroll=3),
    Config.of(unroll=8),
    Config.of(grain=512),
    Config.of(serial=1),
]


@pytest.mark.quick(2)
@pytest.mark.parametrize("config", CHOICES, ids=str)
@pytest.mark.parametrize("shape", [(33, 517), (517, 33), (64, 64), (700, 5)])
def test_every_choice_gives_the_same(config, shape, tmp_path):
    backend = HalideBackend(Settings.resolve())
    m, n = shape
    x = torch.randn(m, n)
    kernels = {
        "points": (pointwise(m, n), x.exp()),
        "transposed": (pointwise(m, n, transposed=True), x.reshape(-1).as_strided((m, n), (1, m)).exp()),
        "rows": (total(m, n, columns=False), x.sum(1)),
        "columns": (total(m, n, columns=True), x.sum(0)),
    }
    sources = {name: backend.emit(kernel, config) for name, (kernel, _) in kernels.items()}
    backend.build(list(sources.values()), tmp_path)
    loaded = backend.load(tmp_path)
    for name, (_, wanted) in kernels.items():
        found = torch.full(wanted.shape, float("nan"))
        loaded[sources[name].key](x, found)
        torch.testing.assert_close(found, wanted.contiguous(), rtol=1e-4, atol=1e-4)


def norm_of_stored_rows(m: int, n: int) -> Kernel:
    """A sum that is stored, read again for its mean, and once more for what is left of it."""
    i, r = axis("i0", m), axis("r0", n)
    index = i * n + r
    args = tuple(KernelArg(f"in{k}", "in", F32, m * n) for k in range(2))
    args += (KernelArg("out0", "out", F32, m * n), KernelArg("out1", "out", F32, m * n))
    builder = Builder("stored_rows", (i,), (r,), args)
    both = apply("add", load("in0", index, F32), load("in1", index, F32))
    builder.loop(Store("out0", index, both), Carry(("s",), "sum", (both,)))
    mean = apply("mul", result("s", F32), const(1.0 / n, F32))
    builder.loop(Store("out1", index, apply("sub", load("out0", index, F32), mean)))
    return builder.kernel((m, n))


@pytest.mark.parametrize("shape", [(5, 40), (200, 130)])
def test_rows_that_are_stored_and_read_again(shape, tmp_path):
    backend = HalideBackend(Settings.resolve())
    source = backend.emit(norm_of_stored_rows(*shape))
    assert "fwd0 = p.row" in source.text and 'p.input("out0"' not in source.text
    backend.build([source], tmp_path)
    x, y = torch.randn(shape), torch.randn(shape)
    total_of, centred = torch.zeros(shape), torch.zeros(shape)
    backend.load(tmp_path)[source.key](x, y, total_of, centred)
    torch.testing.assert_close(total_of, x + y)
    torch.testing.assert_close(centred, x + y - (x + y).mean(1, keepdim=True), rtol=1e-4, atol=1e-5)


def test_scratch_in_another_order_is_refused():
    m, n = 4, 6
    i, r = axis("i0", m), axis("r0", n)
    args = (KernelArg("in0", "in", F32, m * n), KernelArg("out0", "out", F32, m * n))
    builder = Builder("reversed", (i,), (r,), args, (RowBuffer("row", F32, n),))
    builder.loop(Store("row", r, load("in0", i * n + r, F32)))
    builder.loop(Store("out0", i * n + r, load("row", n - 1 - r, F32)))
    with pytest.raises(Exception, match="another order"):
        HalideBackend(Settings.resolve()).emit(builder.kernel((m, n)))


def test_a_value_in_scratch_is_computed_once(tmp_path):
    """A sum over what the same loop keeps in scratch reads it there."""
    m, n = 5, 70
    i, r = axis("i0", m), axis("r0", n)
    args = (KernelArg("in0", "in", F32, m * n), KernelArg("out0", "out", F32, m * n))
    builder = Builder("shares", (i,), (r,), args, (RowBuffer("row", F32, n),))
    value = apply("exp", load("in0", i * n + r, F32))
    builder.loop(Store("row", r, value), Carry(("s",), "sum", (value,)))
    builder.loop(Store("out0", i * n + r, apply("div", load("row", r, F32), result("s", F32))))
    kernel = builder.kernel((m, n))
    backend = HalideBackend(Settings.resolve())
    source = backend.emit(kernel)
    assert source.text.count("exp(") == 1
    x, found = torch.randn(m, n), torch.zeros(m, n)
    backend.build([source], tmp_path)
    backend.load(tmp_path)[source.key](x, found)
    torch.testing.assert_close(found, x.exp() / x.exp().sum(1, keepdim=True))


def stored_and_summed(m: int, n: int, columns: bool) -> Kernel:
    """exp(in0) is stored, and summed along the loop."""
    i, r = axis("i0", n if columns else m), axis("r0", m if columns else n)
    args = (
        KernelArg("in0", "in", F32, m * n),
        KernelArg("out0", "out", F32, m * n),
        KernelArg("out1", "out", F32, n if columns else m),
    )
    builder = Builder("again", (i,), (r,), args)
    index = r * n + i if columns else i * n + r
    value = apply("exp", load("in0", index, F32))
    builder.loop(Store("out0", index, value), Carry(("s",), "sum", (value,)))
    builder.once(Store("out1", i, result("s", F32)))
    return builder.kernel((n, m) if columns else (m, n))


@pytest.mark.quick(2)
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("shape", [(70, 100), (33, 256), (5, 17), (300, 64)])
def test_what_is_stored_and_summed_is_computed_once(shape, columns, tmp_path):
    kernel = over_its_inputs(stored_and_summed(*shape, columns))
    backend = HalideBackend(Settings.resolve())
    source = backend.emit(kernel)
    assert source.text.count("exp(") == 1
    backend.build([source], tmp_path)
    x, found = torch.randn(shape), torch.zeros(shape)
    sums = torch.zeros(shape[1 if columns else 0])
    backend.load(tmp_path)[source.key](x, found, sums)
    torch.testing.assert_close(found, x.exp())
    torch.testing.assert_close(sums, x.exp().sum(0 if columns else 1), rtol=1e-5, atol=1e-5)
    # over what it reads
    sums.zero_()
    backend.load(tmp_path)[source.key](x, x, sums)
    torch.testing.assert_close(x, found)
    torch.testing.assert_close(sums, found.sum(0 if columns else 1), rtol=1e-5, atol=1e-5)


def test_what_fills_no_cache_is_computed_again(monkeypatch):
    # how much a cache holds of a column depends on how many columns a vector has
    monkeypatch.setattr("polyfuse_halide.backend.host", lambda: Host("x86_64", 16, 2))
    short, long = stored_and_summed(2000, 256, columns=True), stored_and_summed(3000, 256, columns=True)
    texts = [HalideBackend(Settings.resolve()).emit(kernel).text for kernel in (short, long)]
    assert [text.count("exp(") for text in texts] == [1, 2]
