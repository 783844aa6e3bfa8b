"""Linear layers of few rows: kernels that read the weight once, where the library would be called."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyfuse.base.settings import Settings
from polyfuse.compiler.reports.report import last_reports, reset_reports
from polyfuse.ir.expr import load
from polyfuse.ir.nodes import Reduction
from polyfuse.ir.types import DType
from polyfuse.symbolic import IndexLike, axis, symbol
from polyfuse_cpp import generator
from polyfuse_cpp.backend import CppBackend
from polyfuse_cpp.isa import choose_isa
from polyfuse_cpp.matmul import few_rows
from polyfuse_cpp.matmul.few_rows import streaming_parts
from requirements import needs_amx


def linear(rows: IndexLike, columns: int, depth: int, dtype: DType = DType.f32, step: int = 1) -> Reduction:
    """The sums of a linear layer; `step`: from one step of the weight's depth to the next."""
    row, column, inside = axis("i0", rows), axis("i1", columns), axis("k0", depth)
    x = load("x", row * depth + inside, dtype)
    w = load("w", column * depth * step + inside * step, dtype)
    return Reduction("mm", (row, column), (inside,), ("sums",), row * columns + column, "dot", (x, w))


@pytest.mark.parametrize("rows", [1, 2, 5, 8, symbol("s0", 2, 8)], ids=str)
def test_few_rows_are_generated(rows: IndexLike) -> None:
    assert streaming_parts(linear(rows, 100, 64), choose_isa("avx2")) == 1


def test_what_is_left_to_the_library() -> None:
    whole = {
        "more rows": linear(9, 100, 64),
        "rows that may be more": linear(symbol("s0", 1, 9), 100, 64),
        "any rows": linear(symbol("s0", 1), 100, 64),
        "a depth of less than a vector": linear(1, 100, 4),
        "another type": linear(1, 100, 64, DType.f64),
        "a weight that is not contiguous along the depth": linear(1, 100, 64, step=2),
    }
    assert {
        why: streaming_parts(matmul, choose_isa("avx2")) for why, matmul in whole.items()
    } == dict.fromkeys(whole, 0)
    assert streaming_parts(linear(1, 100, 64), choose_isa("scalar")) == 0


@pytest.mark.parametrize(
    ("found", "most"),
    [((), 0), (("PF_DOT_BF16",), 4), (("PF_DOT_BF16", "PF_AMX"), 4)],
    ids=["", "pairs", "tiles"],
)
def test_few_rows_of_bf16_are_generated_where_pairs_are_multiplied(
    found: tuple[str, ...], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(few_rows, "dot_instructions", lambda: found)
    for rows in (1, 4, 5, 8):
        matmul = linear(rows, 100, 64, DType.bf16)
        assert streaming_parts(matmul, choose_isa("avx512")) == (rows <= most)
        assert streaming_parts(matmul, choose_isa("avx2")) == 0


def test_which_layers_of_f32_are_packed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    isa, some = choose_isa("avx512"), symbol("s0", 2)
    monkeypatch.setattr(generator, "mkl_leaves_lanes", lambda: False)
    for rows in (9, 128, 20000, some):
        assert generator.prefers(linear(rows, 96, 70), {"s0": 40}, isa)
        assert generator.prepacks(linear(rows, 96, 70), {"s0": 40}, isa) == (rows != 20000)
    # few rows of a deep one are as fast from the weight as it is
    assert [generator.prepacks(linear(n, 96, 256), {}, isa) for n in (9, 512, 513)] == [False, False, True]
    # nor do many rows notice that a small weight is packed at each call
    sizes = ((1024, 128, 512), (1024, 160, 512), (1023, 96, 70))
    assert [generator.prepacks(linear(*size), {}, isa) for size in sizes] == [False, True, True]
    assert generator.prepacks(linear(9, 96, 256, step=2), {}, isa)
    assert not generator.prefers(linear(some, 96, 70), {}, isa)
    assert not generator.prefers(linear(128, 100, 70), {}, isa)  # no whole blocks of columns
    assert not generator.prefers(linear(128, 96, 70, DType.f64), {}, isa)
    assert not generator.prefers(linear(128, 96, 70), {}, choose_isa("avx2"))
    # where the library is oneDNN, a weight that comes from far is read as it is by fewer rows
    sizes = ((128, 2048, 768), (129, 2048, 768), (512, 1024, 768))
    assert not any(generator.prepacks(linear(*size), {}, isa) for size in sizes)
    monkeypatch.setattr(generator, "mkl_leaves_lanes", lambda: True)
    assert [generator.prepacks(linear(*size), {}, isa) for size in sizes] == [False, True, False]


class Gated(nn.Module):
    """A gated block with a residual."""

    def __init__(self, depth: int, inner: int) -> None:
        super().__init__()
        self.up, self.gate = nn.Linear(depth, inner), nn.Linear(depth, inner, bias=False)
        self.down = nn.Linear(inner, 64)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return y + self.down(F.gelu(self.gate(x)) * self.up(x))


@pytest.mark.quick(1)
@pytest.mark.parametrize("freezing, dynamic", [(False, True), (True, False), (True, True)])
def test_layers_of_f32_that_are_generated(
    freezing: bool, dynamic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generator, "mkl_leaves_lanes", lambda: False)
    reset_reports()
    torch.compiler.reset()
    torch.manual_seed(0)
    # depths that fill no whole vectors
    depth = 70 if freezing else 263
    model = Gated(depth, 96 if freezing else 288).eval()
    options = {"strict": True, "freezing": freezing}
    compiled = torch.compile(model, backend="polyfuse", dynamic=dynamic, options=options)
    with torch.no_grad():
        for rows in (33 if freezing else 128, 9, 33, 96, 200) if dynamic else (37,):
            x, y = torch.randn(rows, depth), torch.randn(rows, 64)
            x[0, -1], x[1, 0] = float("nan"), float("inf")
            expected = model.double()(x.double(), y.double()).float()
            model.float()
            torch.testing.assert_close(compiled(x, y), expected, rtol=1e-5, atol=1e-5, equal_nan=True)
        model.down.weight.mul_(-1)  # is seen
        torch.testing.assert_close(compiled(x, y), model(x, y), rtol=1e-5, atol=1e-5, equal_nan=True)
    if choose_isa("").name == "avx512":
        assert not any("mm" in call for call in last_reports()[0].calls)


def layer(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.hardswish(F.linear(x, w, b)) + 1


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "rows, columns, depth", [(1, 1000, 640), (1, 10, 33), (3, 77, 129), (8, 64, 2048), (1, 1, 70), (4, 1, 70)]
)
def test_results(rows: int, columns: int, depth: int) -> None:
    reset_reports()
    torch.compiler.reset()
    x, w, b = torch.randn(rows, depth), torch.randn(columns, depth) / depth**0.5, torch.randn(columns)
    compiled = torch.compile(layer, backend="polyfuse", dynamic=False, options={"strict": True})
    with torch.no_grad():
        got = compiled(x, w, b)
    torch.testing.assert_close(got, layer(x.double(), w.double(), b.double()).float(), rtol=1e-5, atol=1e-5)
    if columns > 1:
        assert not any("addmm" in decision.second for decision in last_reports()[-1].decisions)


@pytest.mark.quick(1)
@needs_amx
@pytest.mark.parametrize("rows, columns, depth", [(1, 1000, 640), (1, 10, 33), (3, 77, 129), (4, 64, 2048)])
def test_results_in_bf16(rows: int, columns: int, depth: int) -> None:
    reset_reports()
    torch.compiler.reset()
    x, w, b = torch.randn(rows, depth), torch.randn(columns, depth) / depth**0.5, torch.randn(columns)
    x, w, b = x.bfloat16(), w.bfloat16(), b.bfloat16()
    compiled = torch.compile(layer, backend="polyfuse", dynamic=False, options={"strict": True})
    with torch.no_grad():
        got = compiled(x, w, b).double()
    exact = layer(x.double(), w.double(), b.double())
    eager = layer(x, w, b).double()
    assert (got - exact).norm() <= 1.3 * (eager - exact).norm()
    assert last_reports()[-1].calls == ()


def test_numbers_that_are_none() -> None:
    torch.compiler.reset()
    x, w, b = torch.randn(2, 64), torch.randn(40, 64), torch.zeros(40)
    x[0, 3], w[5, 3], w[7, 0] = float("inf"), 0.0, float("nan")
    compiled = torch.compile(F.linear, backend="polyfuse", dynamic=False, options={"strict": True})
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, w, b), F.linear(x, w, b), equal_nan=True, rtol=1e-5, atol=1e-5)


def test_few_rows_have_programs_of_their_own_where_matmuls_are_measured() -> None:
    """A tile of eight rows, the fastest for eight, took 1.4 times as long for five as one of six."""
    first = CppBackend(Settings(gemm="fastest")).target_info("cpu").size_classes
    assert len({sum(rows >= least for least in first) for rows in (2, 3, 5, 7, 9)}) == 5
