"""Pointwise kernels of the C++ backend against torch."""

from __future__ import annotations

import pytest
import torch

from cpp_kernels import KernelBuilder, backend, compiled
from polyfuse.ir.types import DType
from polyfuse.symbolic import symbol
from polyfuse_cpp.facts import Facts
from polyfuse_cpp.loops.kernel import kernel_text
from polyfuse_cpp.tiling import choose_plan

f32, i64, boolean = DType.f32, DType.i64, DType.bool
ISAS = ("", "avx2", "scalar")
SIZES = (0, 1, 15, 16, 17, 100)


@pytest.mark.quick(4)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("size", SIZES)
def test_contiguous(size: int, isa: str) -> None:
    k = KernelBuilder({"x0": size})
    k.arg("a"), k.arg("b"), k.out("o")
    s = k.section()
    s.store("o", k["x0"], s.op("mul", s.op("add", s.load("a", k["x0"]), s.load("b", k["x0"])), s.const(2.0)))
    a, b, o = torch.randn(size), torch.randn(size), torch.zeros(size)
    compiled(k.build(), isa)(a, b, o)
    torch.testing.assert_close(o, (a + b) * 2)


@pytest.mark.parametrize("isa", ISAS)
def test_functions_of_very_many_calls(isa: str) -> None:
    """Each is a function of its own, with the same numbers, also at the end of a line."""
    names = ("sin", "exp", "tanh", "acosh", "erfinv")
    k = KernelBuilder({"x0": 21})
    k.arg("a"), k.out("o")
    s = k.section()
    value = s.load("a", k["x0"])
    for name in names * 6:
        value = s.op(name, s.op("sigmoid", value)) if name == "erfinv" else s.op(name, value)
        value = s.op("add", value, s.const(0.5))
    s.store("o", k["x0"], value)
    assert "apart_sin(" in kernel_text(k.build(), 16).text
    a, o = torch.randn(21), torch.zeros(21)
    compiled(k.build(), isa)(a, o)
    right = a.double()
    for name in names * 6:
        right = torch.erfinv(right.sigmoid()) if name == "erfinv" else getattr(torch, name)(right)
        right = right + 0.5
    torch.testing.assert_close(o, right.float(), rtol=1e-3, atol=1e-3, equal_nan=True)


def test_functions_of_few_calls_are_inlined() -> None:
    k = KernelBuilder({"x0": 21})
    k.arg("a"), k.out("o")
    s = k.section()
    s.store("o", k["x0"], s.op("sin", s.op("exp", s.load("a", k["x0"]))))
    text = kernel_text(k.build(), 16)
    assert "apart_" not in text.text and "apart" not in text.features


def test_dynamic_sizes_share_a_kernel() -> None:
    n = symbol("s0")
    k = KernelBuilder({"x0": n, "x1": 7}, hints=(64, 7))
    k.arg("a"), k.arg("b"), k.out("o"), k.size("s0")
    s = k.section()
    i = k["x0"] * 7 + k["x1"]
    s.store("o", i, s.op("sub", s.load("a", i), s.load("b", k["x0"])))
    run = compiled(k.build())
    for size in (*SIZES, 70000):
        a, b, o = torch.randn(size, 7), torch.randn(size), torch.zeros(size, 7)
        run(a, b, o, size)
        torch.testing.assert_close(o, a - b[:, None])


@pytest.mark.quick(2)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", [(3, 5), (16, 16), (33, 47), (64, 128)])
def test_transposed_read(shape: tuple[int, int], isa: str) -> None:
    m, n = shape
    k = KernelBuilder({"x0": m, "x1": n})
    k.arg("a"), k.arg("b"), k.out("o")
    s = k.section()
    value = s.op("add", s.load("a", k["x1"] * m + k["x0"]), s.load("b", k["x0"] * n + k["x1"]))
    s.store("o", k["x0"] * n + k["x1"], value)
    a, b, o = torch.randn(n, m), torch.randn(m, n), torch.zeros(m, n)
    compiled(k.build(), isa)(a, b, o)
    torch.testing.assert_close(o, a.t() + b)


@pytest.mark.quick(4)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    "dtype", [DType.bf16, DType.f16, DType.f64, DType.i32, DType.i64, DType.i8, DType.u8]
)
def test_types(dtype: DType, isa: str) -> None:
    k = KernelBuilder({"x0": 37})
    k.arg("a", dtype), k.arg("b", dtype), k.out("o", dtype)
    s = k.section()
    x, y = s.load("a", k["x0"]), s.load("b", k["x0"])
    if dtype in (DType.bf16, DType.f16):
        x, y = s.cast(x, f32), s.cast(y, f32)
    r = s.op("maximum", s.op("mul", x, y), s.op("sub", x, y))
    s.store("o", k["x0"], s.cast(r, dtype) if dtype in (DType.bf16, DType.f16) else r)
    if dtype.is_float:
        a, b = torch.randn(37).to(dtype.torch), torch.randn(37).to(dtype.torch)
    else:
        a, b = (
            torch.randint(0 if not dtype.is_signed else -9, 9, (37,), dtype=dtype.torch) for _ in range(2)
        )
    o = torch.zeros(37, dtype=dtype.torch)
    compiled(k.build(), isa)(a, b, o)
    wide = torch.float32 if dtype in (DType.bf16, DType.f16) else dtype.torch
    want = torch.maximum(a.to(wide) * b.to(wide), a.to(wide) - b.to(wide)).to(dtype.torch)
    torch.testing.assert_close(o, want)


@pytest.mark.parametrize("isa", ISAS)
def test_bool_and_index(isa: str) -> None:
    k = KernelBuilder({"x0": 5, "x1": 21})
    k.arg("a"), k.out("o", boolean), k.out("p")
    s = k.section()
    i = k["x0"] * 21 + k["x1"]
    near = s.op("lt", s.index(k["x1"] + k["x0"] * 2), s.const(9, i64))
    positive = s.op("gt", s.load("a", i), s.const(0.0))
    s.store("o", i, s.op("bitwise_or", near, positive))
    s.store("p", i, s.cast(s.op("mul", s.index(k["x1"]), s.const(3, i64)), f32))
    a, o, p = torch.randn(5, 21), torch.zeros(5, 21, dtype=torch.bool), torch.zeros(5, 21)
    compiled(k.build(), isa)(a, o, p)
    rows, cols = torch.arange(5)[:, None], torch.arange(21)[None]
    assert torch.equal(o, (cols + rows * 2 < 9) | (a > 0))
    assert torch.equal(p, (cols * 3).float().expand(5, 21))


@pytest.mark.parametrize("isa", ISAS)
def test_masked_load_pads(isa: str) -> None:
    k = KernelBuilder({"x0": 50})
    k.arg("a"), k.out("o")
    s = k.section()
    inside = s.op(
        "bitwise_and",
        s.op("ge", s.index(k["x0"]), s.const(3, i64)),
        s.op("lt", s.index(k["x0"]), s.const(43, i64)),
    )
    s.store("o", k["x0"], s.load("a", k["x0"] - 3, mask=inside, other=s.const(-1.0)))
    a, o = torch.randn(40), torch.zeros(50)
    compiled(k.build(), isa)(a, o)
    assert torch.equal(o, torch.nn.functional.pad(a, (3, 7), value=-1.0))


@pytest.mark.parametrize("isa", ISAS)
def test_division_in_the_index(isa: str) -> None:
    k = KernelBuilder({"x0": 6, "x1": 66})
    k.arg("a"), k.arg("b"), k.out("o"), k.out("p")
    s = k.section()
    i = k["x0"] * 66 + k["x1"]
    s.store("o", i, s.load("a", k["x0"] // 2 * 33 + k["x1"] // 2))
    s.store("p", i, s.load("b", (k["x1"] + 5) % 7 + k["x1"] // 3))
    a, b, o, p = torch.randn(3, 33), torch.randn(40), torch.zeros(6, 66), torch.zeros(6, 66)
    compiled(k.build(), isa)(a, b, o, p)
    assert torch.equal(o, a.repeat_interleave(2, 0).repeat_interleave(2, 1))
    x = torch.arange(66)
    assert torch.equal(p, b[(x + 5) % 7 + x // 3].expand(6, 66))


@pytest.mark.quick(1)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("step", [0.37, 0.77, 1.9, 7.0])
def test_pixels_of_a_resized_row(step: float, isa: str) -> None:
    from polyfuse.symbolic import axis

    k = KernelBuilder({"x0": 70})
    k.arg("a"), k.out("o")
    s = k.section()
    at = s.cast(s.op("mul", s.cast(s.index(k["x0"]), f32), s.const(step, f32)), i64)
    s.store("o", k["x0"], s.load("a", axis("@0", 500), at))
    kernel = k.build()
    assert (" gather_near(" in backend(isa).emit(kernel).text) == (isa != "scalar")
    a, o = torch.randn(500), torch.zeros(70)
    compiled(kernel, isa)(a, o)
    assert torch.equal(o, a[(torch.arange(70).float() * step).long()])


@pytest.mark.parametrize("isa", ISAS)
def test_gather(isa: str) -> None:
    from polyfuse.symbolic import axis

    k = KernelBuilder({"x0": 9, "x1": 20})
    k.arg("table"), k.arg("ids", i64), k.arg("col", i64), k.out("o"), k.out("p")
    s = k.section()
    row = s.load("ids", k["x0"])
    column = s.load("col", k["x1"])
    s.store("o", k["x0"] * 20 + k["x1"], s.load("table", axis("@0", 30) * 20 + k["x1"], row))
    s.store("p", k["x0"] * 20 + k["x1"], s.load("table", axis("@0", 30) * 20 + axis("@1", 20), row, column))
    table, ids, col = torch.randn(30, 20), torch.randint(0, 30, (9,)), torch.randint(0, 20, (20,))
    o, p = torch.zeros(9, 20), torch.zeros(9, 20)
    compiled(k.build(), isa)(table, ids, col, o, p)
    assert torch.equal(o, table[ids])
    assert torch.equal(p, table[ids][:, col])


@pytest.mark.quick(2)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("mode", ["add", "max", "min", "mul"])
@pytest.mark.parametrize("columns", [1, 3, 40])
def test_scatter(columns: int, mode: str, threads: int) -> None:
    from polyfuse.symbolic import axis

    rows = 30000 // columns
    k = KernelBuilder({"x0": rows, "x1": columns})
    k.arg("v"), k.arg("ids", i64), k.arg("o", kind="inout")
    s = k.section()
    row = s.load("ids", k["x0"])
    s.store("o", axis("@0", 10) * columns + k["x1"], s.load("v", k["x0"] * columns + k["x1"]), row, mode=mode)
    v, ids = torch.rand(rows, columns) * 0.01 + (0.995 if mode == "mul" else 0), torch.randint(0, 10, (rows,))
    o = torch.ones(10, columns)
    name = {"add": "sum", "max": "amax", "min": "amin", "mul": "prod"}[mode]
    want = o.double().scatter_reduce(0, ids[:, None].expand(rows, columns), v.double(), name).float()
    with_threads(threads, lambda: compiled(k.build())(v, ids, o))
    torch.testing.assert_close(o, want, rtol=1e-3, atol=1e-5)


@pytest.mark.quick(2)
@pytest.mark.parametrize("columns", [1, 7, 16, 50])
def test_scatter_with_an_index_for_each_element(columns: int) -> None:
    from polyfuse.symbolic import axis

    rows = 40000 // columns
    k = KernelBuilder({"x0": rows, "x1": columns})
    k.arg("v"), k.arg("ids", i64), k.arg("o", kind="inout")
    s = k.section()
    flat = k["x0"] * columns + k["x1"]
    s.store("o", axis("@0", 10) * columns + k["x1"], s.load("v", flat), s.load("ids", flat), mode="add")
    kernel = k.build()
    # however rows collide, columns never do: with enough of them threads need no atomic operations
    assert choose_plan(Facts.of(kernel), 16).along is (columns >= 32)
    v, ids, o = torch.rand(rows, columns), torch.randint(0, 10, (rows, columns)), torch.ones(10, columns)
    want = o.double().scatter_add(0, ids, v.double()).float()
    with_threads(2, lambda: compiled(kernel)(v, ids, o))
    torch.testing.assert_close(o, want, rtol=1e-3, atol=1e-5)


def with_threads(count: int, run: object) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        run()  # type: ignore[operator]
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("isa", ISAS)
def test_half_floats_round_between_casts(isa: str) -> None:
    k = KernelBuilder({"x0": 40})
    k.arg("a"), k.out("o")
    s = k.section()
    s.store("o", k["x0"], s.op("mul", s.cast(s.cast(s.load("a", k["x0"]), DType.bf16), f32), s.const(3.0)))
    a, o = torch.randn(40), torch.zeros(40)
    compiled(k.build(), isa)(a, o)
    assert torch.equal(o, a.bfloat16().float() * 3)


def test_strided_stores() -> None:
    k = KernelBuilder({"x0": 20, "x1": 3})
    k.arg("a"), k.out("o")
    s = k.section()
    s.store("o", k["x0"] * 6 + k["x1"] * 2, s.load("a", k["x0"] * 3 + k["x1"]))
    a, o = torch.randn(20, 3), torch.zeros(20, 6)
    compiled(k.build())(a, o)
    assert torch.equal(o[:, ::2], a)
    assert torch.equal(o[:, 1::2], torch.zeros(20, 3))
