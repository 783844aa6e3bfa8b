"""Axes that are cut where comparisons of positions change: margins, mirrored edges, rolled rows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cpp_kernels import KernelBuilder, backend, build_together, compiled
from polyfuse.ir.interpreter.interpret import run_kernel
from polyfuse.ir.types import DType
from polyfuse.symbolic import IndexLike, maximum, minimum, symbol

f32 = DType.f32
pytestmark = pytest.mark.each_value
ROWS = 5


def padded(kind: str, size: IndexLike, rows: int = 40, dtype: DType = f32, hint: int = 0) -> KernelBuilder:
    """A tensor [rows / 5, 5 + 3, size + 5] made of one of [rows / 5, 5, size] with margins."""
    outer = rows // ROWS
    k = KernelBuilder({"x0": outer, "x1": ROWS + 3, "x2": size + 5}, hints=(outer, 8, hint) if hint else ())
    k.arg("a", dtype), k.out("o", dtype)
    s = k.section()
    y, x = k["x1"] - 1, k["x2"] - 3
    zero = s.const(0.0, dtype)
    if kind == "zeros":
        inside = s.op(
            "bitwise_and", s.op("ge", s.index(y), s.index(0)), s.op("lt", s.index(y), s.index(ROWS))
        )
        for test in (s.op("ge", s.index(x), s.index(0)), s.op("gt", s.index(size), s.index(x))):
            inside = s.op("bitwise_and", inside, test)
        value = s.load("a", (k["x0"] * ROWS + y) * size + x, mask=inside, other=zero)
    else:
        y = minimum(maximum(y, 0), ROWS - 1)
        if kind == "edge":
            x = minimum(maximum(x, 0), size - 1)
        elif kind == "mirror":
            away = size - 1 - maximum(x, -x)
            x = size - 1 - maximum(away, -away)
        else:
            x = (x + size) % size
        value = s.load("a", (k["x0"] * ROWS + y) * size + x)
    s.store("o", (k["x0"] * (ROWS + 3) + k["x1"]) * (size + 5) + k["x2"], value)
    if not isinstance(size, int):
        k.size("s0")
    return k


def agrees(k: KernelBuilder, isa: str, width: int, rows: int, dtype: DType, *sizes: int) -> None:
    """Whether a kernel stores what the interpreter stores, and nothing behind it."""
    kernel = k.build()
    run = compiled(kernel, isa)  # first, so that those built ahead are interpreted once
    values = torch.randn(rows * width).to(dtype.torch)
    out = torch.randn(rows // ROWS * (ROWS + 3) * (width + 5)).to(dtype.torch)
    wanted, fenced = out.clone(), torch.cat((out, out))
    sized = [replace(a, numel=t.numel()) for a, t in zip(kernel.args, (values, wanted), strict=False)]
    run_kernel(replace(kernel, args=(*sized, *kernel.args[2:])), [values, wanted, *sizes])
    run(values, fenced[: out.numel()], *sizes)
    assert torch.equal(fenced[: out.numel()], wanted)
    assert torch.equal(fenced[out.numel() :], out)


KINDS = ("zeros", "edge", "mirror", "wrap")


@pytest.mark.quick(1)
@pytest.mark.parametrize("kind", KINDS)
def test_margins_of_any_size(kind: str) -> None:
    # many rows, each range by range; few rows, each range by itself
    made = {(rows, size): padded(kind, size, rows) for rows in (40, 5) for size in (4, 16, 37)}
    build_together(k.build() for k in made.values())
    for (rows, size), k in made.items():
        agrees(k, "", size, rows, f32)


@pytest.mark.quick(1)
@pytest.mark.parametrize("isa", ["avx2", "sse"])
def test_margins_on_other_vectors(isa: str) -> None:
    for dtype in (DType.bf16, DType.f64, DType.u8):
        agrees(padded("mirror", 21, 40, dtype), isa, 21, 40, dtype)


@pytest.mark.quick(1)
@pytest.mark.parametrize("kind", ["zeros", "edge"])
def test_margins_of_a_size_that_is_not_known(kind: str) -> None:
    for rows in (40, 5):
        k = padded(kind, symbol("s0", 2), rows, hint=64)
        for size in (2, 9, 50):
            agrees(k, "", size, rows, f32, size)


def test_the_middle_is_a_copy() -> None:
    for kind in KINDS:
        text = backend("avx2").emit(padded(kind, 37).build()).text
        assert not any(word in text for word in ("load_masked", "where(", "gather(", "load_near"))


def windows(side: int, channels: int = 16) -> KernelBuilder:
    """The sums of 5x5 windows of an image [6, side, side, channels], zero beyond its border."""
    k = KernelBuilder({"x0": 6, "x1": side, "x2": side, "x3": channels})
    k.arg("a", f32), k.out("o", f32)
    s = k.section()
    total, zero = s.const(0.0, f32), s.const(0.0, f32)
    for dy in range(-2, 3):
        for dx in range(-2, 3):
            y, x = k["x1"] + dy, k["x2"] + dx
            tests = [s.op("ge", s.index(p), s.index(0)) for p in (y, x)]
            tests += [s.op("lt", s.index(p), s.index(side)) for p in (y, x)]
            inside = tests[0]
            for test in tests[1:]:
                inside = s.op("bitwise_and", inside, test)
            at = ((k["x0"] * side + y) * side + x) * channels + k["x3"]
            total = s.op("add", total, s.load("a", at, mask=inside, other=zero))
    s.store("o", ((k["x0"] * side + k["x1"]) * side + k["x2"]) * channels + k["x3"], total)
    return k


def test_what_has_too_many_ranges_is_cut_into_the_inner_one_and_the_rest() -> None:
    kernel = windows(20).build()
    assert (
        "if (axis_1 >= 2 && axis_1 < 18 && axis_2 >= 2 && axis_2 < 18)" in backend("avx2").emit(kernel).text
    )
    a, out = torch.randn(6, 20, 20, 16), torch.zeros(6, 20, 20, 16)
    compiled(kernel)(a, out)
    channels_second = a.permute(0, 3, 1, 2)
    means = torch.nn.functional.avg_pool2d(channels_second, 5, 1, 2, divisor_override=1)
    torch.testing.assert_close(out, means.permute(0, 2, 3, 1))


def test_a_line_of_too_many_ranges_is_cut_around_the_longest() -> None:
    k = KernelBuilder({"x0": 40, "x1": 100})
    k.arg("a", f32), k.out("o", f32)
    s = k.section()
    total, zero = s.const(0.0, f32), s.const(0.0, f32)
    for tap in range(-4, 5):
        at = k["x1"] + tap
        inside = s.op(
            "bitwise_and", s.op("ge", s.index(at), s.index(0)), s.op("lt", s.index(at), s.index(100))
        )
        total = s.op("add", total, s.load("a", k["x0"] * 100 + at, mask=inside, other=zero))
    s.store("o", k["x0"] * 100 + k["x1"], total)
    kernel = k.build()
    middle = backend("avx2").emit(kernel).text.split("to = 92;")[1].split("\n    }\n")[0]
    assert "load_masked" not in middle and "where(" not in middle
    a, out = torch.randn(40, 100), torch.zeros(40, 100)
    compiled(kernel)(a, out)
    expected = torch.nn.functional.avg_pool1d(a, 9, 1, 4) * 9
    torch.testing.assert_close(out, expected)


def test_zero_is_added_once() -> None:
    k = KernelBuilder({"x0": 40, "x1": 64})
    k.arg("a", f32), k.out("o", f32)
    s = k.section()
    total = s.load("a", k["x0"] * 64 + k["x1"])
    for row in range(5):
        first = s.op("lt", s.index(k["x0"]), s.index(1))
        total = s.op("add", total, s.load("a", row * 64 + k["x1"], mask=first, other=s.const(0.0, f32)))
    s.store("o", k["x0"] * 64 + k["x1"], total)
    rest = backend("avx2").emit(k.build()).text.split("else")[1].split("}")[0]
    assert rest.count("add(") == 1
    a, out = torch.zeros(40, 64), torch.ones(40, 64)
    a[3] = -0.0
    compiled(k.build())(a, out)
    assert not torch.signbit(out).any(), "of -0.0 and 0.0, the sum is 0.0"
