"""Convolution networks without options: channels last, weights packed once, what eager mode computes."""

from __future__ import annotations

import copy
import zipfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import polyfuse
import polyfuse.aot
from polyfuse.base.settings import Settings
from polyfuse.compiler.reports.report import GraphReport, last_reports, reset_reports
from polyfuse.compiler.session import forget_sessions, session_for
from polyfuse.ir.types import DType, from_torch
from polyfuse.runtime.frozen import calls as packing
from polyfuse_cpp import generator
from polyfuse_cpp.isa import dot_instructions
from polyfuse_cpp.onednn import library, preferences
from polyfuse_cpp.onednn.choices import library_choices

pytestmark = pytest.mark.skipif(
    not library_choices(), reason="this torch is built without oneDNN, whose operators are tested"
)
LAYS_OUT = "mkldnn._reorder_convolution_weight.default"
PACKS, PACK = f"checked.together.{LAYS_OUT}", f"checked.{LAYS_OUT}"
X = torch.randn(2, 4, 13, 13)
FROZEN = {"strict": True, "freezing": True}


@pytest.fixture(autouse=True)
def small_weights_count(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Small convolutions are treated as large ones are; graphs are compiled anew, since that is patched."""
    monkeypatch.setattr(preferences, "_LARGE_WEIGHT", 0)
    monkeypatch.setattr(generator, "_SMALL_PRODUCTS", 0)
    monkeypatch.setenv("POLYFUSE_GRAPH_CACHE", "0")
    forget_sessions()
    reset_reports()
    torch.compiler.reset()
    yield
    forget_sessions()


def compiled(model: Any, **options: Any) -> Any:
    return torch.compile(model, backend="polyfuse", options={"strict": True}, **options)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        # whether other windows of so few channels are generated depends on how long vectors are
        nn.Conv2d(4, 9, 3, padding=2, dilation=2),
        nn.BatchNorm2d(9),
        nn.ReLU(),
        nn.Conv2d(9, 9, 3, groups=9),
        nn.Conv2d(9, 6, 1),
        nn.ReLU6(),
        nn.Conv2d(6, 6, 3, dilation=2),
    ).eval()


def agrees(call: Any, model: nn.Module, x: torch.Tensor) -> GraphReport:
    with torch.no_grad():
        found, expected = call(x), model(x)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, equal_nan=True)
    sides = zip(found.shape, found.stride(), expected.stride(), strict=True)
    assert all(a == b for extent, a, b in sides if extent > 1)
    return last_reports()[-1]


def set_data(weight: nn.Parameter) -> None:
    weight.data = torch.randn_like(weight)


def write_data(weight: nn.Parameter) -> None:
    weight.data.mul_(-0.5)


def write_one(weight: nn.Parameter) -> None:
    weight.data[-1, -1, -1, -1] += 2


def write_array(weight: nn.Parameter) -> None:
    weight.detach().numpy()[...] *= -1


def swap_rows(weight: nn.Parameter) -> None:
    weight.data.copy_(weight.data.flip(0))


def step(weight: nn.Parameter) -> None:
    weight.grad = torch.randn_like(weight)
    torch.optim.AdamW([weight], lr=0.1).step()
    weight.grad = None


CHANGES: tuple[Callable[[nn.Parameter], None], ...]
CHANGES = (set_data, write_data, write_one, write_array, swap_rows, step)


def test_weights_are_packed_again_after_every_kind_of_change() -> None:
    model = network()
    call = compiled(model)
    report = agrees(call, model, X)
    assert report.calls.count(PACKS) == 1  # those with a window of 3x3, but for the depthwise one
    for change in CHANGES:
        for layer in (model[0], model[3], model[6]):
            change(layer.weight)
            agrees(call, model, X)
    model.load_state_dict({name: value * 0.5 for name, value in model.state_dict().items()})
    agrees(call, model, X)
    assert len(last_reports()) == 1


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("inside", "outside", "extent"),
    [(16, 24, 11), (24, 33, 9), pytest.param(1040, 8, 9, marks=pytest.mark.slow), (64, 16, 5)],
    ids=["tail of rows", "tail of columns", "cut depth", "small images"],
)
def test_pointwise_convolutions_are_generated_with_what_follows(
    inside: int, outside: int, extent: int
) -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(outside)
    model = nn.Sequential(
        nn.Conv2d(inside, outside, 1, bias=False), norm, nn.ReLU6(), nn.Conv2d(outside, inside, 1, stride=2)
    ).eval()
    call, x = compiled(model), torch.randn(4, inside, extent, extent)
    assert not any("conv" in name for name in agrees(call, model, x).calls)
    for values in (norm.running_var, norm.running_mean, norm.weight.data):
        values.uniform_(0.5, 2)
        agrees(call, model, x)
    model[0].weight.data.mul_(-0.5)
    agrees(call, model, x)
    x[0, 1, 2, 2], x[1, 1, 4, 4] = float("nan"), float("inf")
    agrees(call, model, x)
    agrees(call, model, torch.randn(5, inside, extent, extent))  # compiled again with a batch of any size


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("channels", "inner", "calls"),
    [(40, 10, 0), (17, 1, 1), pytest.param(1040, 33, 0, marks=pytest.mark.slow)],
    ids=["40", "one inside", "1040"],
)
def test_squeeze_and_excitation_of_one_image_is_generated(channels: int, inner: int, calls: int) -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before = nn.Conv2d(4, channels, 1)
            self.inner, self.outer = nn.Conv2d(channels, inner, 1), nn.Conv2d(inner, channels, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.before(x)
            return x * self.outer(self.inner(x.mean((2, 3), keepdim=True)).relu()).sigmoid()

    torch.manual_seed(0)
    block = Block().eval()
    call, x = compiled(block), torch.randn(1, 4, 7, 5)
    # one number is no matrix, so a library makes it
    assert sum("conv" in name for name in agrees(call, block, x).calls) == calls
    block.inner.weight.data.mul_(-0.5)
    agrees(call, block, x)
    x[0, 1, 2, 2] = float("nan")
    agrees(call, block, x)
    agrees(call, block, torch.randn(3, 4, 7, 5))  # compiled again with a batch of any size


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("margin", "stride", "padding", "absorbed"),
    [
        (nn.ZeroPad2d((0, 1, 0, 1)), 2, 0, True),
        (nn.ZeroPad2d((1, 2, 2, 0)), 1, 0, True),
        (nn.ZeroPad2d((1, 1, 1, 1)), 1, 1, False),
        (nn.ZeroPad2d((1, -1, 0, 1)), 1, 0, False),
        (nn.ConstantPad2d((1, 1, 1, 1), 0.5), 1, 0, False),
    ],
    ids=["behind", "around", "and padding", "cut", "of another value"],
)
def test_margins_of_depthwise_convolutions(
    margin: nn.Module, stride: int, padding: int, absorbed: bool
) -> None:
    torch.manual_seed(0)
    depthwise = nn.Conv2d(16, 16, 3, stride=stride, padding=padding, groups=16)
    model = nn.Sequential(nn.Conv2d(8, 16, 1), nn.BatchNorm2d(16), nn.ReLU6(), margin, depthwise).eval()
    call, x = compiled(model), torch.randn(2, 8, 12, 10)
    report = agrees(call, model, x)
    written = any("constant_pad" in op for launch in report.launches for op in launch.ops)
    assert written is not absorbed
    agrees(call, model, torch.randn(3, 8, 12, 10))
    depthwise.weight.data[3, 0, 2, 2] = float("inf")  # times the zeros of a margin, that is no number
    agrees(call, model, x)


@pytest.mark.quick(1)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_no_number_stays_so(value: float) -> None:
    model = network()
    x = X.clone()
    x[0, 1, 2, 3] = value
    agrees(compiled(model), model, x)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("layer", "size"),
    [
        (nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2), (3, 4, 9, 11)),
        (nn.Conv2d(4, 6, (3, 1), padding=(1, 0), bias=False), (1, 4, 9, 11)),
        (nn.Conv2d(4, 6, 3, padding="same", padding_mode="reflect"), (2, 4, 9, 11)),
        (nn.Conv2d(4, 1, 3), (1, 4, 3, 3)),
        (nn.Conv2d(8, 16, 3, padding=1, groups=8), (1, 8, 9, 11)),
        (nn.ConvTranspose2d(4, 6, 3, stride=2, output_padding=1), (2, 4, 5, 7)),
        (nn.Conv1d(4, 6, 3), (2, 4, 17)),
        (nn.Conv3d(4, 6, 2), (2, 4, 5, 6, 7)),
        (nn.ConvTranspose3d(4, 6, 2, groups=2), (1, 4, 3, 4, 5)),
    ],
    ids=[
        "groups",
        "3x1",
        "reflect",
        "one pixel",
        "twice",
        "transposed",
        "1d",
        "3d",
        "transposed 3d",
    ],
)
def test_kinds_of_convolutions(layer: nn.Module, size: tuple[int, ...]) -> None:
    model = nn.Sequential(layer, nn.ReLU()).eval()
    report = agrees(compiled(model), model, torch.randn(size))
    assert not report.fallbacks and not report.eager


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("layer", "size"),
    [
        (nn.Conv2d(17, 17, 3, padding=1, groups=17), (2, 17, 7, 9)),
        (nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=8, bias=False), (1, 8, 8, 9)),
        (nn.Conv2d(8, 8, (5, 3), padding=(4, 0), dilation=(2, 1), groups=8), (2, 8, 9, 5)),
        (nn.Conv2d(8, 8, 3, groups=8), (1, 8, 3, 3)),
        (nn.Conv2d(8, 8, 2, padding=5, groups=8), (1, 8, 1, 1)),
        (nn.Conv2d(24, 24, 3, padding=1, groups=6), (2, 24, 7, 9)),
        (nn.Conv2d(14, 14, (3, 2), stride=2, padding=1, groups=7, bias=False), (2, 14, 8, 9)),
        (nn.Conv2d(18, 18, 7, padding=3, groups=18), (1, 18, 9, 12)),
        (nn.Conv3d(17, 17, 3, padding=1, groups=17), (2, 17, 3, 4, 9)),
        (nn.Conv3d(16, 16, (5, 1, 1), padding=(2, 0, 0), groups=16, bias=False), (1, 16, 4, 3, 8)),
        (nn.Conv3d(16, 16, 3, stride=(1, 2, 2), padding=1, groups=16), (1, 16, 1, 9, 11)),
    ],
    ids=[
        *("17 channels", "stride", "dilation", "one pixel", "wide border", "groups of 4", "groups of 2"),
        *("large", "volume", "along time", "one image"),
    ],
)
def test_depthwise_convolutions_are_generated(layer: nn.Module, size: tuple[int, ...]) -> None:
    volume = isinstance(layer, nn.Conv3d)
    norm = (nn.BatchNorm3d if volume else nn.BatchNorm2d)(size[1])
    model = nn.Sequential(layer, norm, nn.ReLU6()).eval()
    last = torch.channels_last_3d if volume else torch.channels_last
    report = agrees(compiled(model), model, torch.randn(size).to(memory_format=last))
    assert not report.calls and report.kernels == 2  # its weight laid out, then all


@pytest.mark.quick(1)
@pytest.mark.parametrize("groups", [24, 6])
def test_weights_of_depthwise_convolutions_are_laid_out_once_with_freezing(groups: int) -> None:
    layer, norm = nn.Conv2d(24, 24, (3, 2), padding=1, groups=groups, bias=False), nn.BatchNorm2d(24)
    model = nn.Sequential(layer, norm, nn.ReLU6()).eval()
    options = {"strict": True, "freezing": True}
    call = torch.compile(model, backend="polyfuse", options=options)
    x = torch.randn(2, 24, 7, 9).to(memory_format=torch.channels_last)
    for change in (lambda: norm.running_mean.add_(0.5), lambda: layer.weight.mul_(-0.5), lambda: None):
        report = agrees(call, model, x)
        assert report.calls == ("frozen.aten.as_strided_copy.default",) and report.kernels == 1
        with torch.no_grad():
            change()


@pytest.mark.quick(1)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("sizes", [(1, 9), (9, 1), (1, 1), (2, 9), (3, 1, 5), (1, 3, 5), (1, 1, 5)], ids=str)
def test_channels_joined_with_lines_of_one_pixel(sizes: tuple[int, ...], dynamic: bool) -> None:
    """Traced views take them for contiguous there, with channels last, too."""
    convolution = nn.Conv2d if len(sizes) == 2 else nn.Conv3d
    model = nn.Sequential(convolution(3, 4, 3, padding=1), nn.Hardswish(), nn.Flatten(1))
    run = torch.compile(model, backend="polyfuse", dynamic=dynamic, options={"strict": True})
    for x in (torch.randn(2, 3, *sizes), torch.randn(5, 3, *sizes)):
        torch.testing.assert_close(run(x), model(x))
        with torch.no_grad():
            torch.testing.assert_close(run(x), model(x))


@pytest.mark.quick(1)
@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_that_are_expanded(window: int, dtype: torch.dtype) -> None:
    """No kernel is made of what adds up products with one number."""
    layer = nn.Conv2d(64, 32, window, padding=window // 2).to(dtype).requires_grad_(False)
    layer.weight = nn.Parameter(torch.randn(32, 1, 1, 1).to(dtype).expand(32, 64, window, window), False)
    x = torch.randn(2, 64, 3, 3).to(dtype)
    for options in ({"strict": True}, FROZEN):
        got = torch.compile(nn.Sequential(layer, nn.ReLU()), backend="polyfuse", options=options)(x)
        torch.testing.assert_close(got, layer(x).relu())


def test_depthwise_convolutions_of_sizes_that_vary() -> None:
    model = nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=8).eval()
    call = compiled(model, dynamic=True)
    for size in ((2, 8, 7, 9), (3, 8, 2, 5), (1, 8, 8, 8)):
        x = torch.randn(size).to(memory_format=torch.channels_last)
        assert not agrees(call, model, x).calls


@pytest.mark.quick(1)
@pytest.mark.parametrize("groups", [2, 8])
def test_weights_of_depthwise_convolutions_that_are_infinite(groups: int) -> None:
    model = nn.Conv2d(8, 8, 3, padding=1, groups=groups).eval()
    with torch.no_grad():
        model.weight[0, 0, 0, 0], model.weight[1, 0, 2, 1] = float("inf"), float("nan")
    x = torch.rand(1, 8, 5, 5).to(memory_format=torch.channels_last) + 1
    x[0, 2, 2, 2] = float("-inf")
    assert not agrees(compiled(model), model, x).calls


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (nn.Conv2d(8, 8, 9, padding=4, groups=8), "its window is too large"),
        (
            nn.Conv2d(8, 8, 7, padding=3, groups=8),
            "its window is too large for its type, or for so few columns or channels",
        ),
        (nn.Conv2d(8, 8, 1, groups=8), "its window is too large"),
        (nn.Conv2d(4, 4, 3, groups=4), "its channels are few"),
        (nn.Conv2d(8, 16, 3, groups=4), "it is not depthwise"),
        (nn.Conv2d(8, 8, 3, groups=8).double(), "it is not of f32 or of a type of 16 bits"),
        (nn.ConvTranspose2d(8, 8, 3, groups=8), "it is no convolution of images"),
    ],
)
def test_depthwise_convolutions_that_are_the_librarys(layer: nn.Module, reason: str) -> None:
    x = torch.randn(1, layer.in_channels, 9, 9, dtype=layer.weight.dtype)
    report = agrees(compiled(layer.eval()), layer, x.to(memory_format=torch.channels_last))
    assert reason in {d.reason for d in report.decisions if d.second == "cpp"}


def test_packages_convolve_as_compiled_models_do(tmp_path: Path) -> None:
    model = network()
    path = polyfuse.aot.package(model, (X,), path=str(tmp_path / "network.polyfuse"))
    loaded = polyfuse.aot.load(path)
    found, expected = loaded(X), model(X)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert found.stride() == expected.stride()
    with zipfile.ZipFile(path) as archive:
        texts = [archive.read(name).decode() for name in archive.namelist() if name.endswith(".py")]
    assert any(PACKS in text for text in texts)


@pytest.mark.slow
def test_a_batch_that_varies() -> None:
    model = network()
    call = compiled(model, dynamic=True)
    for batch in (2, 5, 1, 3):
        agrees(call, model, torch.randn(batch, 4, 9, 9))


def test_activations_that_keep_nan_and_residuals_are_done_at_once() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(nn.functional.silu(self.first(x)))

    block = Block().eval()
    report = agrees(compiled(block), block, X)
    assert "mkldnn._convolution_pointwise.default" in report.calls


def test_packed_weights_stay_within_their_room(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network()
    monkeypatch.setattr(packing, "_BYTES", min(layer.weight.numel() * 4 for layer in (model[0], model[6])))
    report = agrees(compiled(model), model, X)
    assert report.calls.count(PACK) == 1 and PACKS not in report.calls
    why = {d.reason for d in report.decisions if d.second == "cpp:onednn_conv_packed"}
    assert any("packed once for all calls" in reason for reason in why)
    assert any("may take 0 MB together" in reason for reason in why)


def test_room_is_a_tenth_of_many_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "_BYTES", 1)
    monkeypatch.setattr(packing, "_PART", 1000)
    model = network()
    assert not {PACKS, PACK} & set(agrees(compiled(model), model, X).calls)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("instructions", [frozenset(), frozenset({DType.bf16})])
def test_types_whose_channels_come_last(
    dtype: torch.dtype, instructions: frozenset[DType], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "narrow_types", lambda: instructions)
    wants = session_for(Settings()).wants_channels_last
    value, weight = torch.empty(1, dtype=dtype), torch.empty(8, 8, 3, 3)
    narrow = from_torch(dtype) in instructions
    assert bool(wants(value, weight, False)) == (narrow or dtype is torch.float32)
    assert bool(wants(value, weight, True)) == narrow


@pytest.mark.slow
def test_graphs_with_gradients_stay_as_they_are() -> None:
    model = network()
    call = compiled(model)
    call(X).square().sum().backward()
    gradients = [p.grad for p in model.parameters()]
    model.zero_grad()
    model(X).square().sum().backward()
    torch.testing.assert_close(gradients, [p.grad for p in model.parameters()], rtol=1e-3, atol=1e-4)
    assert all(name.startswith("aten.convolution") for r in last_reports() for name in r.calls)


@pytest.mark.slow
def test_eager_numerics_and_switched_off_layouts_leave_all_to_torch() -> None:
    model = network()
    for options in ({"numerics": "eager"}, {"channels_last": "off"}):
        torch.compiler.reset()
        call = torch.compile(model, backend="polyfuse", options={"strict": True, **options})
        assert set(agrees(call, model, X).calls) == {"aten.convolution.default"}


@pytest.mark.quick(1)
@pytest.mark.parametrize("freezing", [False, True])
def test_bf16_goes_to_the_library_where_it_has_instructions(
    freezing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    computes = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    monkeypatch.setattr(library, "narrow_types", lambda: frozenset({DType.bf16}))
    torch.manual_seed(0)
    layers = (nn.Conv2d(4, 16, 3), nn.SiLU(), nn.Conv2d(16, 16, 3, groups=16), nn.Conv2d(16, 8, 1))
    model, x = nn.Sequential(*layers).eval().bfloat16(), X.bfloat16()
    call = compiled(model) if not freezing else torch.compile(model, backend="polyfuse", options=FROZEN)
    refused = nullcontext() if computes else pytest.raises(RuntimeError, match="bf16 path needs the cpu")
    with torch.no_grad(), refused:
        torch.testing.assert_close(call(x), model(x), rtol=2e-2, atol=2e-2)
    found = last_reports()[-1].calls
    if "PF_AMX" in dot_instructions():  # all of them are kernels
        assert not any("convolution" in name for name in found)
        return
    # the activation is the library's, the depthwise convolution a loop, and only freezing may miss no change
    assert found.count("mkldnn._convolution_pointwise.default") == (2 if freezing else 1)
    assert any("_reorder_convolution_weight" in name for name in found) == freezing
    assert found.count("aten.convolution.default") == (0 if freezing else 1)


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_depthwise_loops_add_up_16_bits_in_single_precision(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    margin, layer = nn.ZeroPad2d((0, 1, 0, 1)), nn.Conv2d(16, 16, 3, stride=2, groups=16)
    model = nn.Sequential(margin, layer, nn.Hardswish()).eval().to(dtype)
    x = torch.randn(2, 16, 9, 7, dtype=dtype).to(memory_format=torch.channels_last)
    with torch.no_grad():
        found = compiled(model)(x)
        exact = copy.deepcopy(model).double()(x.double())
    report = last_reports()[-1]
    assert report.calls == ()
    assert not any("constant_pad" in op for launch in report.launches for op in launch.ops)
    ulp = torch.finfo(dtype).eps
    torch.testing.assert_close(found.double(), exact, rtol=2 * ulp, atol=ulp)


@pytest.mark.parametrize("freezing", [False, True])
def test_generated_convolutions_read_weights_packed_once(freezing: bool) -> None:
    """As in packages without Python, whose every kernel is generated; without freezing by one call that looks
    whether they changed, of windows of one pixel, too.
    """
    layers = nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, stride=2), nn.Conv2d(32, 64, 1)
    model = nn.Sequential(*layers).eval()
    call = torch.compile(
        model, backend="polyfuse", options={"strict": True, "gemm": "generated", "freezing": freezing}
    )
    report = agrees(call, model, torch.randn(1, 16, 12, 28))
    pack = "aten.as_strided_copy.default"
    assert report.calls == ((f"frozen.{pack}",) * 3 if freezing else (f"checked.together.{pack}",))
    with torch.no_grad():
        layers[0].weight.mul_(2)
    agrees(call, model, torch.randn(1, 16, 12, 28))
