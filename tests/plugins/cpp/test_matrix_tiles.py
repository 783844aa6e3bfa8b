"""Convolutions of bf16 with windows of 1x1 and linear layers in matrix registers; weights packed for them."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from polyfuse.compiler.reports.report import last_reports, reset_reports
from polyfuse.compiler.session import forget_sessions
from polyfuse.ir.expr import load
from polyfuse.ir.nodes import Reduction
from polyfuse.ir.types import DType
from polyfuse.symbolic import IndexLike, axis, symbol
from polyfuse_cpp import generator, packed_blocks
from polyfuse_cpp import isa as isa_of
from polyfuse_cpp.backend import CppBackend
from polyfuse_cpp.isa import choose_isa, dot_instructions

HAS_TILES = "PF_AMX" in dot_instructions()
needs_tiles = pytest.mark.skipif(not HAS_TILES, reason="this CPU has no matrix registers")
PACK = "frozen.aten.as_strided_copy.default"


@pytest.fixture(autouse=True)
def anew(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("POLYFUSE_GRAPH_CACHE", "0")
    forget_sessions()
    reset_reports()
    torch.compiler.reset()
    yield
    forget_sessions()


class Block(nn.Module):
    """A residual block whose first layer is wider than its image."""

    def __init__(self, channels: int, inside: int, step: int = 1) -> None:
        super().__init__()
        self.wide, self.norm = nn.Conv2d(channels, inside, 1, step, bias=False), nn.BatchNorm2d(inside)
        self.narrow, self.step = nn.Conv2d(inside, channels, 1), step
        nn.init.uniform_(self.norm.running_var, 0.5, 2.0)
        nn.init.normal_(self.norm.running_mean)

    def forward(self, x: Tensor) -> Tensor:
        y = self.narrow(nn.functional.relu6(self.norm(self.wide(x))))
        return y + x[..., :: self.step, :: self.step]


def compiled(model: nn.Module, **options: Any) -> Any:
    return torch.compile(model, backend="polyfuse", dynamic=False, options={"strict": True, **options})


@needs_tiles
@pytest.mark.quick(4)
@pytest.mark.parametrize("freezing", [False, True])
@pytest.mark.parametrize(
    ("channels", "inside", "image", "step"),
    [
        (32, 64, (2, 7, 9), 1),
        (16, 96, (1, 8, 8), 1),
        (24, 144, (1, 5, 7), 1),
        (40, 20, (3, 4, 4), 1),
        (13, 33, (1, 6, 6), 1),
        (64, 32, (1, 12, 12), 2),
        (34, 64, (1, 6, 6), 1),
        (1034, 32, (1, 6, 6), 1),
        (256, 1184, (1, 7, 7), 1),
    ],
)
def test_results_are_as_near_as_those_of_eager_mode(
    channels: int, inside: int, image: tuple[int, int, int], step: int, freezing: bool
) -> None:
    torch.manual_seed(0)
    model = Block(channels, inside, step).eval().bfloat16()
    x = torch.randn(image[0], channels, *image[1:]).bfloat16()
    with torch.no_grad():
        found, eager = compiled(model, freezing=freezing)(x), model(x)
        exact = copy.deepcopy(model).double()(x.double())
    assert (found.double() - exact).norm() <= 1.1 * (eager.double() - exact).norm()
    assert not any("convolution" in name for name in last_reports()[-1].calls)


@needs_tiles
@pytest.mark.parametrize("freezing", [False, True])
def test_numbers_that_are_none_stay_in_their_pixels(freezing: bool) -> None:
    torch.manual_seed(0)
    layer, x = nn.Conv2d(48, 64, 1).eval().bfloat16(), torch.randn(1, 48, 5, 7).bfloat16()
    with torch.no_grad():
        x[0, 3, 2, 4], x[0, 9, 4, 6] = float("nan"), float("inf")
        layer.weight[5, 7] = float("inf")
        found, expected = compiled(nn.Sequential(layer, nn.ReLU()), freezing=freezing)(x), layer(x).relu()
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2, equal_nan=True)


@needs_tiles
@pytest.mark.parametrize("freezing", [False, True])
def test_changed_weights_are_seen(freezing: bool) -> None:
    model, x = Block(32, 64).eval().bfloat16(), torch.randn(1, 32, 8, 8).bfloat16()
    call = compiled(model, freezing=freezing)
    for _ in range(2):
        with torch.no_grad():
            torch.testing.assert_close(call(x), model(x), rtol=4e-2, atol=4e-2)
            model.wide.weight.mul_(-2)
    assert (PACK in last_reports()[-1].calls) == freezing


@pytest.mark.parametrize("columns", [32, 96, 48])
@pytest.mark.parametrize("depth", [16, 40])
def test_weights_in_pairs_of_steps(depth: int, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any backend computes with them, whatever the CPU multiplies."""
    known = CppBackend.target_info
    pairs = frozenset((DType.f32,))
    monkeypatch.setattr(
        CppBackend, "target_info", lambda self, device: replace(known(self, device), paired_types=pairs)
    )
    monkeypatch.setattr(CppBackend, "packed_width", lambda self, matmul: 16 if columns % 32 else 32)
    monkeypatch.setattr(CppBackend, "prepacks_gemm", lambda self, matmul, hints: True)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(depth, columns, 1), nn.ReLU(), nn.Conv2d(columns, 8, 3)).eval()
    x = torch.randn(1, depth, 9, 9)
    for backend in ("cpp", "interpreter"):
        torch.compiler.reset()
        with torch.no_grad():
            found = compiled(model, freezing=True, backends=[backend] if backend != "cpp" else ["cpp"])(x)
            torch.testing.assert_close(found, model(x), rtol=1e-4, atol=1e-5)
        if backend == "cpp":
            assert PACK in last_reports()[-1].calls


def matmul(columns: int, depth: int, dtype: DType = DType.bf16, taps: int = 1) -> Reduction:
    """The sums of a convolution of 49 pixels, channels last."""
    image, channel = axis("i0", 1), axis("i1", columns)
    row, column = axis("i2", 7), axis("i3", 7)
    inside, down, over = axis("k0", depth), axis("k1", taps), axis("k2", taps)
    x = load("x", ((row + down) * 9 + column + over) * depth + inside, dtype)
    w = load("w", channel * depth * taps * taps + (inside * taps + down) * taps + over, dtype)
    where = (row * 7 + column) * columns + channel
    return Reduction("mm", (image, channel, row, column), (inside, down, over), ("o",), where, "dot", (x, w))


def test_which_convolutions_matrix_registers_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    isa = choose_isa("avx512")
    monkeypatch.setattr(isa_of, "dot_instructions", lambda: ("PF_DOT_BF16", "PF_AMX"))
    assert packed_blocks.fills_matrix_registers(matmul(64, 32), isa)
    assert packed_blocks.packed_width(matmul(64, 32), isa) == 32
    assert [packed_blocks.packed_width(matmul(n, 32), isa) for n in (48, 24)] == [16, 0]
    assert generator.prefers(matmul(64, 32), {}, isa) and generator.prepacks(matmul(64, 32), {}, isa)
    # what no register divides would be read beyond its end
    widths = {depth: packed_blocks.packed_width(matmul(64, depth), isa) for depth in (34, 1034, 144, 1056)}
    assert widths == {34: 0, 1034: 0, 144: 32, 1056: 32}
    others = {
        "a larger window": matmul(64, 32, taps=3),
        "another type": matmul(64, 32, DType.f16),
    }
    assert not [why for why, node in others.items() if packed_blocks.fills_matrix_registers(node, isa)]
    monkeypatch.setattr(isa_of, "dot_instructions", lambda: ("PF_DOT_BF16",))
    assert not generator.prefers(matmul(64, 32), {}, isa)


class Gated(nn.Module):
    """A feed-forward block with a gate, a bias and a residual."""

    def __init__(self, width: int, inside: int) -> None:
        super().__init__()
        self.up, self.gate = nn.Linear(width, inside), nn.Linear(width, inside, bias=False)
        self.down = nn.Linear(inside, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(nn.functional.gelu(self.up(x)) * nn.functional.silu(self.gate(x)))


@needs_tiles
@pytest.mark.quick(4)
@pytest.mark.parametrize(
    ("width", "inside", "rows"),
    [(64, 96, (7,)), (64, 160, (2, 19)), (768, 512, (128,)), (1056, 256, (65,)), (96, 4128, (256,))],
)
def test_linear_layers_are_rounded_once(width: int, inside: int, rows: tuple[int, ...]) -> None:
    """What follows is a part of their kernels."""
    torch.manual_seed(0)
    model = Gated(width, inside).eval().bfloat16()
    x = torch.randn(*rows, width).bfloat16()
    with torch.no_grad():
        found, eager = compiled(model, freezing=True)(x), model(x)
        exact = copy.deepcopy(model).double()(x.double())
    assert (found.double() - exact).norm() <= (eager.double() - exact).norm()
    assert found.stride() == eager.stride()
    assert not any(name.startswith(("aten.mm", "aten.addmm", "mkldnn")) for name in last_reports()[-1].calls)


@needs_tiles
def test_linear_layers_of_any_number_of_rows() -> None:
    torch.manual_seed(0)
    model = Gated(64, 96).eval().bfloat16()
    call = torch.compile(model, backend="polyfuse", dynamic=True, options={"strict": True, "freezing": True})
    with torch.no_grad():
        for rows in (40, 33, 100, 2, 31, 257, 1, 64):
            x = torch.randn(rows, 64).bfloat16()
            torch.testing.assert_close(call(x), model(x), rtol=2e-2, atol=2e-2)
            model.down.weight.mul_(-1)  # is seen


@needs_tiles
def test_numbers_that_are_none_stay_in_their_rows() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1056, 64), nn.ReLU()).eval().bfloat16()
    x = torch.randn(70, 1056).bfloat16()
    with torch.no_grad():
        x[3, 1050], x[64, 0], x[69, 7] = float("nan"), float("inf"), float("-inf")
        model[0].weight[5, 7], model[0].bias[9] = float("inf"), float("nan")
        found, expected = compiled(model, freezing=True)(x), model(x)
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2, equal_nan=True)


def layer(rows: int | IndexLike, columns: int, depth: int, dtype: DType = DType.bf16) -> Reduction:
    """The sums of a linear layer."""
    row, column, inside = axis("i0", rows), axis("i1", columns), axis("k0", depth)
    x, w = load("x", row * depth + inside, dtype), load("w", column * depth + inside, dtype)
    return Reduction("mm", (row, column), (inside,), ("o",), row * columns + column, "dot", (x, w))


def test_which_linear_layers_matrix_registers_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    isa, some = choose_isa("avx512"), symbol("s0")
    monkeypatch.setattr(isa_of, "dot_instructions", lambda: ("PF_DOT_BF16", "PF_AMX"))
    assert generator.prefers(layer(256, 3072, 768), {}, isa)
    assert generator.prefers(layer(some, 3072, 768), {"s0": 100}, isa)
    assert generator.prefers(layer(2048, 128, 128), {}, isa)
    others = {
        "many rows": (layer(512, 3072, 768), {}),
        "rows that may be many": (layer(some, 3072, 768), {"s0": 512}),
        "rows that nobody can guess": (layer(some, 3072, 768), {}),
        "another type": (layer(64, 64, 64, DType.f16), {}),
        "f32": (layer(64, 64, 64, DType.f32), {}),
    }
    assert not [why for why, (node, hints) in others.items() if generator.prefers(node, hints, isa)]
    monkeypatch.setattr(isa_of, "dot_instructions", lambda: ("PF_DOT_BF16",))
    assert not generator.prefers(layer(64, 64, 64), {}, isa)
