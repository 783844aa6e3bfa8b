"""Linear layers and convolutions of quantised numbers: multiplied as bytes, with the reference's numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from packaged_models import in_a_process
from polyfuse.compiler.reports.report import GraphReport, last_reports, reset_reports
from polyfuse.frontend.freezing import packing
from polyfuse_quantized import product_rewrites, products

pytest.importorskip(
    "torch.ao.quantization.fx._decomposed", reason="this torch has no module that registers the operators"
)
needs_instructions = pytest.mark.skipif(
    not products.available(), reason="this CPU or this torch does not multiply bytes exactly"
)
ops = torch.ops.quantized_decomposed
FREEZING = {"strict": True, "freezing": True}
U8, S8 = (0, 255, torch.uint8), (-128, 127, torch.int8)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.compiler.reset()
    reset_reports()
    yield


class Quantised(nn.Module):
    """A linear layer or a convolution between conversions, as quantisation in two passes writes it.

    Args:
        function: `F.linear` or `F.conv2d`, with its further arguments.
        size: of the weight.
        stored: how the result is stored; None: as f32.
    """

    def __init__(
        self,
        function: Callable[..., Tensor],
        size: tuple[int, ...],
        *,
        bias: bool = True,
        x: tuple[int, int, torch.dtype] = U8,
        then: Callable[[Tensor], Tensor] = lambda x: x,
        stored: tuple[int, int, torch.dtype] | None = U8,
        symmetric: bool = True,
    ) -> None:
        super().__init__()
        self.function, self.x, self.then, self.stored = function, x, then, stored
        self.zero = -7 if x == S8 else 121
        self.weight = nn.Parameter(torch.randint(-127, 128, size, dtype=torch.int8), requires_grad=False)
        self.register_buffer("scales", torch.rand(size[0]) / 100 + 0.001)
        zeros = torch.zeros(size[0], dtype=torch.int64)
        self.register_buffer("zeros", zeros if symmetric else zeros + 3)
        self.bias = nn.Parameter(torch.randn(size[0])) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        q = ops.quantize_per_tensor.default(x, 0.03, self.zero, *self.x)
        x = ops.dequantize_per_tensor.default(q, 0.03, self.zero, *self.x)
        w = ops.dequantize_per_channel.default(self.weight, self.scales, self.zeros, 0, -128, 127, torch.int8)
        found = self.then(self.function(x, w, self.bias))
        return found if self.stored is None else ops.quantize_per_tensor.default(found, 0.05, 9, *self.stored)


def compiled(model: nn.Module, dynamic: bool = False, **options) -> Callable[..., Tensor]:
    return torch.compile(model, backend="polyfuse", options={**FREEZING, **options}, dynamic=dynamic)


def agrees(call: Callable[..., Tensor], model: nn.Module, x: Tensor) -> GraphReport:
    """Within a quantum of eager mode's result, and in its layout."""
    with torch.no_grad():
        found, expected = call(x), model(x)
    assert found.dtype is expected.dtype and found.shape == expected.shape
    assert found.stride() == expected.stride()
    if expected.dtype.is_floating_point:
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    else:
        assert (found.int() - expected.int()).abs().max() <= 1 if expected.numel() else True
        # rounding differs where a number is in the middle of two, which few are
        assert (found != expected).sum() <= 1 + expected.numel() // 50
    return last_reports()[-1]


def applied(report: GraphReport) -> dict[str, int]:
    prefix = "quantized.int8-"
    return {name.removeprefix(prefix): count for name, count in report.rewrites if name.startswith(prefix)}


@needs_instructions
@pytest.mark.quick(2)
@pytest.mark.parametrize("size", [(5, 24), (3, 7, 24), (1, 24), (0, 24)], ids=str)
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"bias": False},
        {"x": S8},
        {"stored": None},
        {"stored": S8},
        {"then": F.relu},
        {"then": F.gelu},
        {"then": F.relu, "stored": S8},
        {"symmetric": False},
        {"symmetric": False, "then": F.relu},
    ],
    ids=lambda how: "-".join(how) or "plain",
)
def test_linear_layers(size: tuple[int, ...], how: dict) -> None:
    model = Quantised(F.linear, (40, 24), **how)
    call = compiled(model)
    for _ in range(2):
        found = applied(agrees(call, model, torch.randn(size) * 3))
    requantised = how == {"stored": S8} or ("stored" not in how and how.get("then") is not F.gelu)
    assert found == {"linear": 1, **({"results": 1} if requantised else {})}
    called = sum(name.startswith("object.linear") for name in last_reports()[-1].calls)
    assert called == (1 if size[0] else 0)


@needs_instructions
@pytest.mark.quick(2)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    ("size", "window"),
    [
        ((16, 8, 3, 3), {"padding": 1}),
        ((16, 8, 1, 1), {}),
        ((16, 4, 3, 3), {"groups": 2, "stride": 2}),
        ((8, 1, 5, 3), {"groups": 8, "padding": (2, 1)}),
        ((6, 8, 3, 3), {"dilation": 2, "padding": (0, 3)}),
    ],
    ids=["3x3", "1x1", "groups", "depthwise", "dilated"],
)
@pytest.mark.parametrize("stored", [None, U8, S8], ids=["f32", "u8", "s8"])
def test_convolutions(last: bool, size: tuple[int, ...], window: dict, stored) -> None:
    function = lambda x, w, b: F.conv2d(x, w, b, **window)  # noqa: E731
    then = F.relu if stored is U8 else lambda x: x
    model = Quantised(function, size, then=then, stored=stored, bias=last)
    x = torch.randn(2, 8, 11, 9)
    x = x.to(memory_format=torch.channels_last) if last else x
    report = agrees(compiled(model), model, x)
    assert applied(report)["convolution"] == 1
    assert sum(name.startswith("object.convolution") for name in report.calls) == 1


CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


class OneScale(nn.Module):
    """A convolution whose weight has one scale, and perhaps a zero point, for all of it."""

    def __init__(self, zero: int = 0) -> None:
        super().__init__()
        numbers = torch.randint(-127, 128, (8, 8, 3, 3), dtype=torch.int8)
        self.weight, self.zero = nn.Parameter(numbers, requires_grad=False), zero

    def forward(self, x: Tensor) -> Tensor:
        q = ops.quantize_per_tensor.default(x, 0.03, 121, *U8)
        x = ops.dequantize_per_tensor.default(q, 0.03, 121, *U8)
        w = ops.dequantize_per_tensor.default(self.weight, 0.01, self.zero, *S8)
        return F.conv2d(x, w, None, 1, 1).relu()


@needs_instructions
@pytest.mark.quick(1)
@pytest.mark.parametrize("freezing", [False, True])
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
def test_weights_of_convolutions_are_packed_once(
    freezing: bool, dims: int, last: bool, symmetric: bool
) -> None:
    """Without freezing, any write is seen; with it, those that torch counts."""
    function = lambda x, w, b: CONVOLUTIONS[dims](x, w, b, padding=1)  # noqa: E731
    model = Quantised(function, (16, 8) + (3,) * dims, stored=None, symmetric=symmetric)
    x = torch.randn(2, 8, *(9, 7, 5)[:dims])
    if last and dims > 1:
        x = x.to(memory_format=torch.channels_last if dims == 2 else torch.channels_last_3d)
    call = compiled(model, freezing=freezing)
    for change in (Tensor.neg_, lambda weight: weight.view(-1)[5:6].add_(9)):
        report = agrees(call, model, x)
        with torch.no_grad():
            change(model.weight if freezing else model.weight.data)
    agrees(call, model, x)
    begin = "frozen." if freezing else "checked."
    assert report.calls[0] == f"{begin}polyfuse_quantized.pack_convolution.default"
    assert applied(report)["convolution"] == 1


@pytest.mark.quick(1)
@needs_instructions
@pytest.mark.parametrize("freezing", [False, True])
def test_a_convolution_with_one_scale(freezing: bool) -> None:
    x = torch.randn(2, 8, 7, 6)
    assert applied(agrees(compiled(model := OneScale(), freezing=freezing), model, x)) == {"convolution": 1}
    assert applied(agrees(compiled(model := OneScale(3), freezing=freezing), model, x)) == {}


@needs_instructions
def test_packed_weights_have_a_limit_and_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(
                Quantised(lambda x, w, b: F.conv2d(x, w, b, padding=1), (8, 8, 3, 3), stored=None)
                for _ in range(2)
            )

        def forward(self, x: Tensor) -> Tensor:
            return self.layers[1](self.layers[0](x) / 50)

    monkeypatch.setattr(packing, "room_of", lambda parameters: 8 * 8 * 9 + 1)
    model, x = Two(), torch.randn(2, 8, 7, 6)
    report = agrees(compiled(model, freezing=False), model, x)
    assert applied(report) == {"convolution": 1}
    chosen = [d for d in report.decisions if d.second == "quantized:int8-convolution"]
    assert len(chosen) == 1 and "computed once for all calls, 0.0 MB of at most" in chosen[0].reason
    torch.compiler.reset()
    assert applied(agrees(compiled(model), model, x)) == {"convolution": 2}


@needs_instructions
@pytest.mark.parametrize("freezing", [False, True])
def test_parameters_may_be_exchanged(freezing: bool) -> None:
    model, other = (Quantised(lambda x, w, b: F.conv2d(x, w, b), (8, 4, 3, 3), stored=None) for _ in "ab")
    call, x = compiled(model, freezing=freezing), torch.randn(2, 4, 7, 6)
    agrees(call, model, x)
    torch.utils.swap_tensors(model.weight, other.weight)
    agrees(call, model, x)


SCRIPT = """
import json, torch
from polyfuse.cache.graphs import graph_counts
from test_products import F, Quantised, agrees, compiled
torch.manual_seed(0)
model = torch.nn.Sequential(
    Quantised(lambda x, w, b: F.conv2d(x, w, b, padding=1), (8, 8, 3, 3), stored=None),
    torch.nn.Flatten(), Quantised(F.linear, (5, 8 * 9), stored=None),
)
for freezing in (False, True):
    agrees(compiled(model, freezing=freezing), model, torch.randn(2, 8, 3, 3))
print(json.dumps([graph_counts().hits, graph_counts().misses, list(graph_counts().bypasses)]))
"""


@needs_instructions
@pytest.mark.slow
def test_a_new_process_finds_the_graph(tmp_path: Path) -> None:
    here = Path(__file__).parent
    environment = {"PYTHONPATH": f"{here}:{here.parents[1]}", "POLYFUSE_CACHE_DIR": str(tmp_path)}
    environment["POLYFUSE_BACKENDS"] = "interpreter"
    assert in_a_process(SCRIPT, POLYFUSE_GRAPH_CACHE="1", **environment) == [0, 2, []]
    assert in_a_process(SCRIPT, POLYFUSE_GRAPH_CACHE="1", **environment) == [2, 0, []]


@needs_instructions
def test_a_network_with_residuals_and_pooling() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            conv = lambda x, w, b: F.conv2d(x, w, b, padding=1)  # noqa: E731
            self.first = Quantised(conv, (8, 8, 3, 3), then=F.relu)
            self.second = Quantised(conv, (8, 8, 3, 3), stored=None)
            self.last = Quantised(F.linear, (10, 8), stored=None)

        def forward(self, x: Tensor) -> Tensor:
            y = ops.dequantize_per_tensor.default(self.first(x), 0.05, 9, *U8)
            return self.last((self.second(y) + x).relu().mean((2, 3)))

    model = Block()
    report = agrees(compiled(model), model, torch.randn(2, 8, 10, 12))
    assert applied(report) == {"linear": 1, "convolution": 2, "results": 1}
    assert sum(name.startswith("object.") for name in report.calls) == 3


@needs_instructions
def test_nothing_runs_between_two_convolutions() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            conv = lambda x, w, b: F.conv2d(x, w, b, padding=1)  # noqa: E731
            self.first = Quantised(conv, (8, 8, 3, 3), then=F.relu)
            self.second = Quantised(conv, (8, 8, 3, 3))
            self.first.stored, self.second.zero = U8, 9

        def forward(self, x: Tensor) -> Tensor:
            y = ops.dequantize_per_tensor.default(self.first(x), 0.05, 9, *U8)
            w = self.second
            weight = ops.dequantize_per_channel.default(w.weight, w.scales, w.zeros, 0, -128, 127, torch.int8)
            return F.conv2d(y, weight, w.bias, padding=1).relu()

    model = Two()
    report = agrees(compiled(model), model, torch.randn(2, 8, 10, 12))
    kinds = [n.rstrip("0123456789") for n in report.calls if not n.startswith("frozen.")]
    # one kernel before quantises the image, with its channels last, and one behind has the caller's layout
    assert kinds == ["object.convolution"] * 2 and report.kernels == 2


class Residual(nn.Module):
    """A convolution of quantised numbers plus others, stored as bytes."""

    def __init__(self, then: Callable[[Tensor], Tensor], swapped: bool, kind: tuple[int, int, torch.dtype]):
        super().__init__()
        self.layer = Quantised(lambda x, w, b: F.conv2d(x, w, b, padding=1), (8, 8, 3, 3), stored=None)
        self.then, self.swapped, self.kind = then, swapped, kind

    def forward(self, x: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
        q = ops.quantize_per_tensor.default(r, 0.07, 99, *U8)
        y, z = self.layer(x), ops.dequantize_per_tensor.default(q, 0.07, 99, *U8)
        found = self.then(z + y if self.swapped else y + z)
        # what is added has another reader, behind
        return ops.quantize_per_tensor.default(found, 0.05, 9, *self.kind), q + 1


@needs_instructions
@pytest.mark.quick(1)
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(("then", "kind"), [(F.relu, U8), (lambda x: x, U8), (lambda x: x, S8), (F.gelu, U8)])
def test_residuals(then: Callable[[Tensor], Tensor], kind, swapped: bool, last: bool) -> None:
    model = Residual(then, swapped, kind)
    order = torch.channels_last if last else torch.contiguous_format
    args = [torch.randn(2, 8, 7, 9).to(memory_format=order) for _ in range(2)]
    call = compiled(model)
    with torch.no_grad():
        for _ in range(2):
            for found, expected in zip(call(*args), model(*args), strict=True):
                assert found.stride() == expected.stride()
                assert (found.int() - expected.int()).abs().max() <= 1
                assert (found != expected).sum() <= 8
    inside = kind is U8 and then is not F.gelu
    assert applied(last_reports()[-1]) == {"convolution": 1, **({"results": 1} if inside else {})}


@needs_instructions
def test_a_residual_that_broadcasts_is_added_behind() -> None:
    model = Residual(F.relu, False, U8)
    with torch.no_grad():
        args = torch.randn(2, 8, 7, 9), torch.randn(2, 8, 1, 1)
        found, expected = compiled(model)(*args), model(*args)
    assert (found[0].int() - expected[0].int()).abs().max() <= 1
    assert applied(last_reports()[-1]) == {"convolution": 1}


@needs_instructions
def test_sizes_that_vary() -> None:
    model = Quantised(F.linear, (40, 24), then=F.relu)
    call = compiled(model, dynamic=True)
    for rows in (7, 1, 30):
        agrees(call, model, torch.randn(rows, 24))


@needs_instructions
@pytest.mark.parametrize("what", ["weight", "zeros", "other weight"])
def test_weights_are_packed_again_after_a_change(what: str) -> None:
    model = Quantised(F.linear, (40, 24), stored=None)
    call, x = compiled(model), torch.randn(5, 24)
    agrees(call, model, x)
    with torch.no_grad():
        if what == "weight":
            model.weight.copy_(model.weight.flip(0))
        elif what == "zeros":
            model.zeros.add_(5)
        else:
            model.weight.data = model.weight.data.flip(0)
    agrees(call, model, x)


@needs_instructions
def test_a_shared_weight_and_results_with_several_readers() -> None:
    layer = Quantised(F.linear, (24, 24), stored=None)

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor) -> Tensor:
            y = self.layer(x)
            q = ops.quantize_per_tensor.default(y, 0.2, 0, *S8)
            return self.layer(y.sin()) + ops.dequantize_per_tensor.default(q, 0.2, 0, *S8)

    model = Twice()
    with torch.no_grad():
        found, expected = compiled(model)(x := torch.randn(5, 24)), model(x)
    torch.testing.assert_close(found, expected, rtol=0, atol=0.21)
    assert applied(last_reports()[-1]) == {"linear": 2}


@pytest.mark.parametrize(
    "case", ["eager numerics", "no instructions", "limits", "weight computed", "wide bias"]
)
def test_what_stays_as_it_is(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, options = Quantised(F.linear, (40, 24), stored=None), {"graph_cache": False}
    monkeypatch.setattr(product_rewrites, "available", lambda: case != "no instructions")
    if case == "eager numerics":
        options["numerics"] = "eager"
    elif case == "limits":
        model.x = (0, 255, torch.int16)
    elif case == "weight computed":
        model.function = lambda x, w, b: F.linear(x, w * 2, b)
    elif case == "wide bias":
        model.function = lambda x, w, b: torch.addmm(b.repeat(5, 1), x, w.t())
    report = agrees(compiled(model, **options), model, torch.randn(5, 24))
    assert applied(report).get("linear", 0) == 0


@needs_instructions
def test_the_operator_adds_a_residual() -> None:
    x, other = (torch.randint(0, 255, (2, 4, 5, 6), dtype=torch.uint8) for _ in range(2))
    w, zeros = torch.randint(-9, 9, (4, 4, 1, 1), dtype=torch.int8), torch.tensor([0, 1, 2, 3])
    window = [1, 1], [0, 0], [1, 1], 1, True
    found = torch.ops.polyfuse_quantized.convolution(
        x, 0.1, 7, w, torch.ones(4), 1.0, zeros, None, other, 0.5, 3, *window, 1.0, 0, torch.float32, "none"
    )
    exact = (
        F.conv2d((x.double() - 7) * 0.1, w.double() - zeros.reshape(-1, 1, 1, 1)) + (other.double() - 3) / 2
    )
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-4)
    assert found.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.int8], ids=str)
def test_the_operators_compute_what_they_say(dtype: torch.dtype) -> None:
    x, w = torch.randint(0, 255, (5, 24), dtype=torch.uint8), torch.randint(-9, 9, (4, 24), dtype=torch.int8)
    scales, zeros, bias = torch.rand(4), torch.tensor([0, 1, 2, 3]), torch.randn(4)
    found = torch.ops.polyfuse_quantized.linear(
        x, 0.1, 7, w, scales, 1.0, zeros, bias, 0.5, 2 if dtype is not torch.float32 else 0, dtype, "relu"
    )
    exact = (x.double() - 7) * 0.1 @ ((w.double() - zeros[:, None]) * scales.double()[:, None]).t() + bias
    exact = exact.relu()
    if dtype is torch.float32:
        torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-4)
    else:
        limits = torch.iinfo(dtype)
        stored = ((exact / 0.5).round() + 2).clamp(limits.min, limits.max)
        assert (found.double() - stored).abs().max() <= 1
