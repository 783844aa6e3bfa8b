"""Linear layers of quantised numbers whose weights are not packed: exact sums, with and without freezing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyfuse.compiler.reports.report import GraphReport, last_reports, reset_reports
from polyfuse_quantized import products

pytest.importorskip(
    "torch.ao.quantization.fx._decomposed", reason="this torch has no module that registers the operators"
)
pytestmark = pytest.mark.skipif(
    not products.available(), reason="this CPU or this torch does not multiply bytes exactly"
)
ops = torch.ops.quantized_decomposed
U8, S8 = (0, 255, torch.uint8), (-128, 127, torch.int8)
MULTIPLIES = "aten._int_mm.out"


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.compiler.reset()
    reset_reports()
    yield


class Layer(nn.Module):
    """A linear layer between conversions.

    Args:
        weights: `"symmetric"` and `"asymmetric"` have parameters for each row, `"one scale"` one for all.
        dynamic: whether the scale and zero point of the input are tensors.
    """

    def __init__(
        self,
        columns: int = 40,
        depth: int = 24,
        *,
        weights: str = "symmetric",
        kind: tuple[int, int, torch.dtype] = U8,
        zero: int = 121,
        dynamic: bool = False,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.kind, self.zero, self.weights, self.dynamic = kind, zero, weights, dynamic
        numbers = torch.randint(-128, 128, (columns, depth), dtype=torch.int8)
        self.weight = nn.Parameter(numbers, requires_grad=False)
        self.register_buffer("scales", torch.rand(columns) / 100 + 0.001)
        zeros = torch.randint(-128, 128, (columns,))
        self.register_buffer("zeros", zeros.fill_(0) if weights == "symmetric" else zeros)
        self.register_buffer("x_scale", torch.tensor([0.03], dtype=torch.float64))
        self.register_buffer("x_zero", torch.tensor([zero]))
        self.bias = nn.Parameter(torch.randn(columns)) if bias else None

    def stored(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The input and the weight, as quantisation leaves them."""
        if self.dynamic:
            q = ops.quantize_per_tensor.tensor(x, self.x_scale, self.x_zero, *self.kind)
            x = ops.dequantize_per_tensor.tensor(q, self.x_scale, self.x_zero, *self.kind)
        else:
            q = ops.quantize_per_tensor.default(x, 0.03, self.zero, *self.kind)
            x = ops.dequantize_per_tensor.default(q, 0.03, self.zero, *self.kind)
        if self.weights == "one scale":
            return x, ops.dequantize_per_tensor.default(self.weight, 0.01, -3, *S8)
        return x, ops.dequantize_per_channel.default(self.weight, self.scales, self.zeros, 0, *S8)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(*self.stored(x), self.bias)

    def exact(self, x: Tensor) -> Tensor:
        """The result in f64."""
        x, w = self.stored(x)
        found = x.double() @ w.double().t()
        return found if self.bias is None else found + self.bias.double()


def run(model: Layer, x: Tensor, freezing: bool = False, dynamic: bool = False) -> GraphReport:
    """Compile and run a layer; its result is as near to the exact one as f32 is."""
    options = {"strict": True, "freezing": freezing}
    call = torch.compile(model, backend="polyfuse", options=options, dynamic=dynamic)
    with torch.no_grad():
        found, exact = call(x), model.exact(x)
    assert found.dtype is torch.float32 and found.is_contiguous()
    scale = exact.abs().max() if exact.numel() else 1.0
    torch.testing.assert_close(found.double(), exact, rtol=1e-6, atol=1e-6 * float(scale))
    return last_reports()[-1]


@pytest.mark.quick(2)
@pytest.mark.parametrize("size", [(5, 24), (3, 7, 24), (1, 24), (0, 24)], ids=str)
@pytest.mark.parametrize("weights", ["symmetric", "asymmetric", "one scale"])
@pytest.mark.parametrize("kind", [U8, S8], ids=["u8", "s8"])
def test_without_freezing(size: tuple[int, ...], weights: str, kind: tuple[int, int, torch.dtype]) -> None:
    model = Layer(weights=weights, kind=kind, zero=121 if kind is U8 else -7, bias=weights != "asymmetric")
    report = run(model, torch.randn(*size))
    assert report.calls.count(MULTIPLIES) == (0 not in size)


@pytest.mark.quick(1)
@pytest.mark.parametrize("freezing", [False, True])
@pytest.mark.parametrize("weights", ["symmetric", "asymmetric", "one scale"])
@pytest.mark.parametrize("kind", [U8, S8], ids=["u8", "s8"])
def test_scales_that_are_computed(freezing: bool, weights: str, kind: tuple[int, int, torch.dtype]) -> None:
    model = Layer(weights=weights, kind=kind, zero=3, dynamic=True)
    assert run(model, torch.randn(5, 24), freezing).calls.count(MULTIPLIES) == 1


@pytest.mark.quick(1)
@pytest.mark.parametrize("zero", [0, 128, 255])
def test_the_longest_sums_of_the_largest_numbers(zero: int) -> None:
    model = Layer(3, 1 << 15, zero=zero, weights="asymmetric", bias=False)
    with torch.no_grad():
        model.weight[0], model.zeros[0] = 127, -128
        model.weight[1], model.zeros[1] = -128, 127
    x = torch.cat([torch.full((1, 1 << 15), s) for s in (-9.0, 9.0)])
    assert MULTIPLIES in run(model, x).calls
    longer = Layer(3, (1 << 15) + 1, bias=False)
    assert MULTIPLIES not in run(longer, torch.randn(2, (1 << 15) + 1)).calls


@pytest.mark.slow
def test_rows_that_vary() -> None:
    model = Layer()
    for rows in (7, 2, 30):
        run(model, torch.randn(rows, 24), dynamic=True)
    assert len(last_reports()) == 1


@pytest.mark.parametrize("freezing", [False, True])
def test_any_write_to_a_weight_is_seen(freezing: bool) -> None:
    model = Layer(weights="one scale")
    call = torch.compile(model, backend="polyfuse", options={"strict": True, "freezing": freezing})
    x = torch.randn(5, 24)
    with torch.no_grad():
        for write in (lambda: model.weight.neg_(), lambda: None if freezing else model.weight.data.neg_()):
            torch.testing.assert_close(call(x).double(), model.exact(x), rtol=1e-5, atol=1e-4)
            write()
        torch.testing.assert_close(call(x).double(), model.exact(x), rtol=1e-5, atol=1e-4)


def test_what_follows_is_one_kernel() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = Layer(24, 24)

        def forward(self, x: Tensor) -> Tensor:
            y = F.gelu(self.layer(x) + x)
            return ops.quantize_per_tensor.default(y, 0.05, 9, *U8)

    model, x = Block(), torch.randn(5, 24)
    call = torch.compile(model, backend="polyfuse", options={"strict": True})
    with torch.no_grad():
        found, expected = call(x), model(x)
    assert (found.int() - expected.int()).abs().max() <= 1
    # quantised numbers, their sums, and all that follows
    assert last_reports()[-1].kernels == 3 and last_reports()[-1].calls == (MULTIPLIES,)
