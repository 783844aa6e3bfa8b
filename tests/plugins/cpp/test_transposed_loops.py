"""Loops over accesses that run along the loop while lanes run along another axis: tiles are
transposed in registers."""

from __future__ import annotations

import pytest
import torch

from cpp_kernels import KernelBuilder, backend, compiled
from polyfuse.ir.types import DType
from polyfuse.symbolic import IndexLike, symbol

f32, bf16 = DType.f32, DType.bf16
pytestmark = pytest.mark.each_value
ISAS = ("", "avx2", "sse")


def centred(
    rows: IndexLike, steps: IndexLike, dtype: DType, *, transposed_in: bool, transposed_out: bool
) -> KernelBuilder:
    """Rows less their means; `transposed_in` and `transposed_out` say where a row is contiguous."""
    hints = () if isinstance(rows, int) and isinstance(steps, int) else (70, 40)
    k = KernelBuilder({"x0": rows}, {"r0": steps}, hints=hints)
    k.arg("a", dtype), k.out("o", dtype)
    within, across = k["x0"] * steps + k["r0"], k["r0"] * rows + k["x0"]
    read, written = within if transposed_in else across, within if transposed_out else across
    s = k.section(True)
    total = s.reduce("sum", s.cast(s.load("a", read), f32))
    s = k.section()
    mean = s.op("div", total, s.cast(s.index(0 * k["x0"] + steps), f32))
    s = k.section(True)
    s.store("o", written, s.cast(s.op("sub", s.cast(s.load("a", read), f32), mean), dtype))
    for size in (rows, steps):
        if not isinstance(size, int):
            k.size(str(size))
    return k


@pytest.mark.quick(2)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [f32, bf16])
@pytest.mark.parametrize("shape", [(64, 32), (37, 23), (16, 7), (70, 5), (100, 33), (9, 300)])
def test_rows_that_are_written_across_the_lanes(shape: tuple[int, int], dtype: DType, isa: str) -> None:
    rows, steps = shape
    kernel = centred(rows, steps, dtype, transposed_in=False, transposed_out=True).build()
    if not isa and rows >= 16:
        text = backend().emit(kernel).text
        assert "tile_store" in text and "strided" not in text
    a = torch.randn(steps, rows).to(dtype.torch)
    want = (a.float() - a.float().mean(0)).t().to(dtype.torch).contiguous()
    out = torch.zeros(rows * steps + 64, dtype=dtype.torch)
    compiled(kernel, isa)(a, out)
    torch.testing.assert_close(out[: rows * steps].view(rows, steps), want)
    assert not out[rows * steps :].any()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [f32, bf16, DType.f64])
@pytest.mark.parametrize("shape", [(64, 5), (37, 7), (150, 11)])
def test_rows_too_short_for_a_vector(shape: tuple[int, int], dtype: DType, isa: str) -> None:
    rows, steps = shape
    k = KernelBuilder({"x0": rows}, {"r0": steps})
    k.arg("a", dtype), k.out("o", DType.i64)
    s = k.section(True)
    _, at = s.reduce("argmax", s.load("a", k["x0"] * steps + k["r0"]), s.index(k["r0"]))
    k.section().store("o", k["x0"], at)
    if not isa:
        text = backend("avx512").emit(k.build()).text  # narrower vectors need no such loads for all of these
        assert f"tile_load_first<{steps}>" in text and "fold_max" not in text
    a = torch.randint(0, 9, shape).to(dtype.torch)
    out = torch.zeros(rows, dtype=torch.int64)
    compiled(k.build(), isa)(a, out)
    assert torch.equal(out, a.float().argmax(1))


def test_long_rows_keep_lanes_along_them() -> None:
    text = backend().emit(centred(64, 512, f32, transposed_in=True, transposed_out=True).build()).text
    assert "tile" not in text


def test_channels_of_a_group_share_a_vector() -> None:
    """Four of 128 neighbours are one group: lanes hold groups, not a quarter of one."""
    k = KernelBuilder({"x0": 32}, {"r0": 50, "r1": 4})
    k.arg("a"), k.out("o")
    s = k.section(True)
    total = s.reduce("sum", s.load("a", k["r0"] * 128 + k["x0"] * 4 + k["r1"]))
    k.section().store("o", k["x0"], total)
    assert "reduce_add" not in backend().emit(k.build()).text
    a, out = torch.randn(50, 32, 4), torch.zeros(32)
    compiled(k.build())(a, out)
    torch.testing.assert_close(out, a.sum((0, 2)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("transposed_in", [False, True])
def test_sizes_that_are_not_known(transposed_in: bool) -> None:
    kernel = centred(
        symbol("s0", 1), symbol("s1", 1), f32, transposed_in=transposed_in, transposed_out=True
    ).build()
    for rows, steps in ((1, 1), (16, 16), (70, 40), (33, 17), (100, 5), (3, 130)):
        a = torch.randn((rows, steps) if transposed_in else (steps, rows))
        rowwise = a if transposed_in else a.t()
        out = torch.zeros(rows, steps)
        compiled(kernel)(a, out, rows, steps)
        torch.testing.assert_close(out, rowwise - rowwise.mean(1, keepdim=True), rtol=1e-5, atol=1e-5)


def test_a_buffer_that_is_also_read_is_written_at_once() -> None:
    """What a loop has stored, later reads of it find."""
    k = KernelBuilder({"x0": 64}, {"r0": 32})
    k.arg("a"), k.arg("o", kind="inout")
    s = k.section(True)
    index = k["x0"] * 32 + k["r0"]
    s.store("o", index, s.op("add", s.load("o", index), s.load("a", k["r0"] * 64 + k["x0"])))
    assert "tile_store" not in backend().emit(k.build()).text
    a, out = torch.randn(32, 64), torch.randn(64, 32)
    want = out + a.t()
    compiled(k.build())(a, out)
    assert torch.equal(out, want)


@pytest.mark.quick(1)
@pytest.mark.parametrize(("kind", "rows"), [("logcumsumexp", 13), ("cummax", 131)])
def test_scans_of_rows_take_lanes_across_them(kind: str, rows: int) -> None:
    """Steps that are slow, or many rows: each row's scan is one lane's, with what is not a number in it."""
    x = torch.randn(rows, 21).mul(3).round()
    x[0, 4], x[1, 5], x[2, 0], x[3, 7:9], x[rows - 1, 20] = (
        *(float("nan"), float("inf"), float("-inf")),
        float("-inf"),
        float("nan"),
    )

    def scan(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = getattr(x, kind)(-1)
        return (found,) if isinstance(found, torch.Tensor) else tuple(found)

    call = torch.compile(scan, backend="polyfuse", dynamic=False)
    for found, expected in zip(call(x), scan(x), strict=True):
        torch.testing.assert_close(found, expected, equal_nan=True)
