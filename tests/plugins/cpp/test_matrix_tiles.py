"""Convolutions and linear layers of bf16 in matrix registers, and weights packed in pairs for them."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cpp_matmuls import Matmul
from polyfuse.base.settings import Settings
from polyfuse.compiler.reports.report import last_reports, reset_reports
from polyfuse.compiler.session import forget_sessions
from polyfuse.ir.expr import load
from polyfuse.ir.nodes import Reduction
from polyfuse.ir.text.parse import parse_kernel
from polyfuse.ir.types import DType
from polyfuse.symbolic import IndexLike, axis, symbol
from polyfuse_cpp import generator, packed_blocks
from polyfuse_cpp import isa as isa_of
from polyfuse_cpp.backend import CppBackend
from polyfuse_cpp.isa import choose_isa
from polyfuse_cpp.loops.entry import plainly_named
from polyfuse_cpp.matmul.paths import OperandPath
from polyfuse_cpp.matmul.plans import matmul_plans
from polyfuse_cpp.matmul.problem import matmul_of
from requirements import HAS_AMX, needs_amx, needs_avx512, needs_pairs

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


@needs_amx
@pytest.mark.quick(1)
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


@needs_amx
@pytest.mark.quick(1)
@pytest.mark.parametrize("freezing", [False, True])
def test_numbers_that_are_none_stay_in_their_pixels(freezing: bool) -> None:
    torch.manual_seed(0)
    layer, x = nn.Conv2d(48, 64, 1).eval().bfloat16(), torch.randn(1, 48, 5, 7).bfloat16()
    with torch.no_grad():
        x[0, 3, 2, 4], x[0, 9, 4, 6] = float("nan"), float("inf")
        layer.weight[5, 7] = float("inf")
        found, expected = compiled(nn.Sequential(layer, nn.ReLU()), freezing=freezing)(x), layer(x).relu()
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2, equal_nan=True)


@pytest.mark.quick(1)
@needs_amx
@pytest.mark.parametrize("freezing", [False, True])
def test_changed_weights_are_seen(freezing: bool) -> None:
    model, x = Block(32, 64).eval().bfloat16(), torch.randn(1, 32, 8, 8).bfloat16()
    call = compiled(model, freezing=freezing)
    for _ in range(2):
        with torch.no_grad():
            torch.testing.assert_close(call(x), model(x), rtol=4e-2, atol=4e-2)
            model.wide.weight.mul_(-2)
    assert (PACK in last_reports()[-1].calls) == freezing


@pytest.mark.slow
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


class Windows(nn.Module):
    """A convolution under windows, of what a layer before it makes, with what follows it."""

    def __init__(self, channels: int, results: int, size: Any, bordered: bool = True, **options: Any) -> None:
        super().__init__()
        self.before = nn.Conv2d(channels, channels, 1)
        self.window = nn.Conv2d(channels, results, size, bias=not bordered, **options)
        self.norm, self.border = nn.BatchNorm2d(results), (1, 0, 2, 1) if bordered else (0, 0, 0, 0)
        nn.init.uniform_(self.norm.running_var, 0.5, 2.0)

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.pad(self.before(x), self.border)
        return nn.functional.relu(self.norm(self.window(y)))


WINDOWS: list[tuple[int, int, Any, tuple[int, int, int], bool, dict[str, Any]]] = [
    (32, 64, 3, (2, 7, 9), False, {"padding": 1}),
    (64, 32, 3, (1, 14, 14), False, {"padding": 1, "stride": 2}),
    (48, 96, 3, (3, 9, 6), True, {}),
    (24, 32, 3, (1, 11, 8), True, {"stride": (2, 1)}),
    (32, 16, 3, (2, 13, 12), False, {"padding": 2, "dilation": 2}),
    (16, 32, 3, (1, 17, 16), False, {"padding": 3, "dilation": 3, "stride": 2}),
    (16, 32, 5, (1, 19, 23), False, {"padding": 2, "stride": 3}),
    (32, 32, (3, 1), (2, 8, 9), False, {"padding": (1, 0), "stride": 2}),
    (32, 32, (1, 7), (1, 8, 9), False, {"padding": (0, 3)}),
    (32, 32, 3, (1, 3, 9), False, {}),
    (32, 32, 3, (2, 1, 40), False, {"padding": 1}),
    (3, 32, 3, (1, 33, 31), False, {"padding": 1, "stride": 2}),
    (3, 64, 7, (2, 30, 34), False, {"padding": 3, "stride": 2}),
    (13, 33, 3, (1, 9, 9), True, {}),
    (5, 20, 3, (2, 9, 9), False, {"padding": 2, "dilation": 2}),
    (32, 32, 3, (1, 40, 300), False, {"padding": 1}),
    (256, 64, 3, (1, 60, 70), False, {"padding": 1}),
]


@needs_amx
@pytest.mark.quick(1)
@pytest.mark.parametrize("freezing", [False, True])
@pytest.mark.parametrize(("channels", "results", "size", "image", "bordered", "options"), WINDOWS)
def test_windows_are_as_near_as_those_of_eager_mode(
    channels: int,
    results: int,
    size: Any,
    image: tuple[int, int, int],
    bordered: bool,
    options: dict[str, Any],
    freezing: bool,
) -> None:
    torch.manual_seed(0)
    model = Windows(channels, results, size, bordered, **options).eval().bfloat16()
    x = torch.randn(image[0], channels, *image[1:]).bfloat16()
    with torch.no_grad():
        found, eager = compiled(model, freezing=freezing)(x), model(x)
        exact = copy.deepcopy(model).double()(x.double())
    assert found.shape == eager.shape
    assert (found.double() - exact).norm() <= 1.1 * (eager.double() - exact).norm()
    assert not any("convolution" in name for name in last_reports()[-1].calls)


@needs_amx
@pytest.mark.slow
@pytest.mark.parametrize(("channels", "stride", "dilation"), [(32, 1, 1), (32, 2, 1), (16, 1, 2), (3, 2, 1)])
@pytest.mark.parametrize("freezing", [False, True])
def test_what_is_no_number_stays_under_its_windows(
    channels: int, stride: int, dilation: int, freezing: bool
) -> None:
    """Zeros of the border meet no infinite weight, and no channel that is not there an infinite pixel. (Three
    channels of an input come with their border when they are laid out.)
    """
    torch.manual_seed(0)
    layer = nn.Conv2d(channels, 32, 3, stride, dilation, dilation).eval().bfloat16()
    x = torch.randn(2, channels, 9, 12).bfloat16()
    with torch.no_grad():
        x[0, 1, 0, 0], x[0, 2, 8, 11], x[1, 0, 4, 11] = float("nan"), float("inf"), float("-inf")
        if channels > 3:
            layer.weight[3, 1, 0, 0], layer.weight[7, 0, 2, 2] = float("inf"), float("nan")
        call = compiled(nn.Sequential(layer, nn.ReLU()), freezing=freezing)
        found, expected = call(x), copy.deepcopy(layer).float()(x.float()).relu()
        plain = torch.zeros_like(x)
        zero = call(plain), copy.deepcopy(layer).float()(plain.float()).relu()
    for ours, wanted in ((found, expected), zero):
        torch.testing.assert_close(ours.float(), wanted, rtol=2e-2, atol=2e-2, equal_nan=True)


@pytest.mark.quick(1)
@needs_amx
@pytest.mark.parametrize("last", [False, True])
def test_results_with_pixels_side_by_side_have_a_loop_of_their_own(last: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(32, 64, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()).eval().bfloat16()
    x = torch.randn(2, 32, 9, 11).bfloat16()
    x = x.to(memory_format=torch.channels_last) if last else x
    with torch.no_grad():
        found, eager = compiled(model, freezing=True)(x), model(x)
    torch.testing.assert_close(found, eager, rtol=4e-2, atol=4e-2)
    assert found.stride() == eager.stride()
    refused = [d for d in last_reports()[-1].decisions if "channels apart" in d.reason]
    assert bool(refused) != last


@needs_amx
@pytest.mark.slow
@pytest.mark.parametrize("freezing", [False, True])
def test_changed_weights_of_windows_are_seen(freezing: bool) -> None:
    torch.manual_seed(0)
    model = Windows(32, 64, 3, False, padding=1).eval().bfloat16()
    x = torch.randn(1, 32, 8, 8).bfloat16()
    call = compiled(model, freezing=freezing)
    for step in range(3):
        with torch.no_grad():
            torch.testing.assert_close(call(x), model(x), rtol=4e-2, atol=4e-2)
            if step == 0:
                model.window.weight.mul_(-2)
            elif not freezing:
                model.window.weight.data[3] = 0.5


@needs_amx
@pytest.mark.parametrize(
    "images",
    [
        ((2, 9, 12), (3, 30, 7)),
        # with one image and one pixel, which are programs of their own
        pytest.param(((2, 9, 12), (1, 30, 7), (3, 1, 1), (2, 64, 65)), marks=pytest.mark.slow),
    ],
    ids=["two", "four"],
)
def test_sizes_of_images_may_vary(images: tuple[tuple[int, int, int], ...]) -> None:
    torch.manual_seed(0)
    model = Windows(32, 64, 3, False, padding=1, stride=2).eval().bfloat16()
    call = torch.compile(model, backend="polyfuse", dynamic=True, options={"strict": True})
    for image in images:
        x = torch.randn(image[0], 32, *image[1:]).bfloat16()
        with torch.no_grad():
            torch.testing.assert_close(call(x), model(x), rtol=4e-2, atol=4e-2)


@pytest.mark.quick(1)
@needs_amx
@pytest.mark.parametrize("layer", [nn.Conv1d, nn.Conv3d])
def test_windows_of_one_and_three_dimensions(layer: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model = layer(32, 32, 3, padding=1).eval().bfloat16()
    x = torch.randn(2, 32, *((7, 6, 5) if layer is nn.Conv3d else (50,))).bfloat16()
    with torch.no_grad():
        found = compiled(nn.Sequential(model, nn.ReLU()), freezing=True)(x)
        torch.testing.assert_close(found, model(x).relu(), rtol=4e-2, atol=4e-2)


@needs_amx
@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "layer", [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.Conv2d(64, 64, 1), nn.Conv1d(80, 64, 3, padding=1)]
)
def test_a_light_convolution_alone_is_a_kernel(layer: nn.Module) -> None:
    torch.manual_seed(0)
    model = copy.deepcopy(layer).eval().bfloat16()
    channels = model.weight.shape[1]
    x = torch.randn(1, channels, *((60, 56) if isinstance(layer, nn.Conv2d) else (1100,))).bfloat16()
    with torch.no_grad():
        found, eager = compiled(model)(x), model(x)
        exact = copy.deepcopy(model).double()(x.double())
    assert (found.double() - exact).norm() <= 1.05 * (eager.double() - exact).norm()
    assert found.stride() == eager.stride()
    assert not any("convolution" in name for name in last_reports()[-1].calls)


class Sound(nn.Module):
    """Two convolutions along one axis as at the beginning of a model of sounds, whose channels end last."""

    def __init__(self, channels: int, inside: int) -> None:
        super().__init__()
        self.first = nn.Conv1d(channels, inside, 3, padding=1)
        self.second = nn.Conv1d(inside, inside, 3, 2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        gelu = nn.functional.gelu
        return gelu(self.second(gelu(self.first(x)))).permute(0, 2, 1) + 1


@needs_amx
@pytest.mark.slow
@pytest.mark.parametrize("freezing", [False, True])
@pytest.mark.parametrize(("channels", "inside", "length"), [(80, 64, 301), (32, 512, 700), (1, 16, 90)])
def test_convolutions_along_one_axis(channels: int, inside: int, length: int, freezing: bool) -> None:
    """Of a long line, with all of whose tiles a block of the weight is not multiplied at once, too."""
    torch.manual_seed(0)
    model, x = Sound(channels, inside).eval().bfloat16(), torch.randn(2, channels, length).bfloat16()
    with torch.no_grad():
        found, eager = compiled(model, freezing=freezing)(x), model(x)
        exact = copy.deepcopy(model).double()(x.double())
    assert (found.double() - exact).norm() <= 1.05 * (eager.double() - exact).norm()
    assert found.stride() == eager.stride()
    if channels > 1:
        assert not any("convolution" in name for name in last_reports()[-1].calls)


@pytest.mark.slow
@needs_amx
def test_lengths_of_lines_may_vary_and_gradients_are_as_before() -> None:
    torch.manual_seed(0)
    model = Sound(32, 64).eval().bfloat16()
    call = torch.compile(model, backend="polyfuse", dynamic=True, options={"strict": True})
    for length in (50, 333, 64, 1025):
        x = torch.randn(1, 32, length).bfloat16()
        with torch.no_grad():
            torch.testing.assert_close(call(x), model(x), rtol=4e-2, atol=4e-2)
    call(x).float().square().mean().backward()
    found = model.second.weight.grad
    model.zero_grad()
    model(x).float().square().mean().backward()
    torch.testing.assert_close(found, model.second.weight.grad, rtol=6e-2, atol=1e-4)


def matmul(columns: int, depth: int, dtype: DType = DType.bf16, taps: int = 1) -> Reduction:
    """The sums of a convolution of 49 pixels, channels last."""
    image, channel = axis("i0", 1), axis("i1", columns)
    row, column = axis("i2", 7), axis("i3", 7)
    inside, down, over = axis("k0", depth), axis("k1", taps), axis("k2", taps)
    x = load("x", ((row + down) * 9 + column + over) * depth + inside, dtype)
    w = load("w", channel * depth * taps * taps + (inside * taps + down) * taps + over, dtype)
    where = (row * 7 + column) * columns + channel
    return Reduction("mm", (image, channel, row, column), (inside, down, over), ("o",), where, "dot", (x, w))


WINDOWS = """kernel windows on cpu {
  numerics fast
  axes p0{256} ~ 256, p1{7} ~ 7, p2{7} ~ 7
  raxes r0{3} ~ 3, r1{3} ~ 3, r2{160} ~ 160
  in in1: bf16[36000]
  in in2: bf16[368640]
  out out0: bf16[12544]
  loop {
    v13 = load bf16 in1[4800*p1 + 320*p2 + 2400*r0 + 160*r1 + r2]
    v14 = load bf16 in2[15360*r0 + 5120*r1 + 46080*(p0 // 32) + 64*(r2 // 2) + 2*(p0 % 32) + (r2 % 2)]
    v15 = reduce f32 dot (v13, v14)
  }
  once {
    v19 = cast bf16 (v15)
    store bf16 set out0[p0 + 1792*p1 + 256*p2] = v19
  }
}
"""


def test_pixels_behind_the_last_line_are_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are computed for nothing read them: a tile with a sum that is no number is added up again."""
    monkeypatch.setattr(isa_of, "dot_instructions", lambda: ("PF_DOT_BF16", "PF_AMX"))
    text = generator.text(parse_kernel(WINDOWS), None, choose_isa("avx512")).text
    for plane, further in ((0, 1), (1, 0)):
        assert (
            f"matrix_zeros(copy + {plane} * plane_size + (line_count + {further}) * line_size, 320);" in text
        )


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
    assert not packed_blocks.fills_matrix_registers(matmul(64, 32, DType.f16), isa)
    # steps of the taps in a line lie side by side; what registers do not divide is packed at each call
    windows = {n: packed_blocks.packed_width(matmul(64, n, taps=3), isa) for n in (8, 16, 32, 13, 38)}
    assert windows == {8: 32, 16: 32, 32: 32, 13: 0, 38: 0}
    sizes = [(64, 32), (64, 13), (640, 38), (64, 1)]
    assert [generator.prefers(matmul(*n, taps=3), {}, isa) for n in sizes] == [True, True, False, False]
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


@needs_pairs
@pytest.mark.quick(1)
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


@needs_pairs
@pytest.mark.quick(1)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    ("width", "inside", "rows"),
    [(256, 288, 7), (320, 256, 33), (768, 512, 128), (1056, 288, 65), (256, 4128, 256), (4128, 256, 5)],
)
def test_weights_are_read_as_they_are(width: int, inside: int, rows: int, threads: int) -> None:
    """Without `freezing`: nothing is packed, and a change of a weight needs no look at it."""
    torch.manual_seed(0)
    model = Gated(width, inside).eval().bfloat16()
    x, before = torch.randn(rows, width).bfloat16(), torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        with torch.no_grad():
            call = compiled(model)
            call(x)
            model.down.weight.data.mul_(-1)  # which no counter shows
            found, eager = call(x), model(x)
            exact = copy.deepcopy(model).double()(x.double())
    finally:
        torch.set_num_threads(before)
    assert (found.double() - exact).norm() <= (eager.double() - exact).norm()
    assert last_reports()[-1].calls == ()


@needs_amx
@pytest.mark.slow
@pytest.mark.parametrize("rows", [9, 40])
def test_columns_of_one_register(rows: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 272), nn.Tanh()).eval().bfloat16()
    with torch.no_grad():
        x = torch.randn(rows, 256).bfloat16()
        torch.testing.assert_close(compiled(model)(x), model(x), rtol=2e-2, atol=2e-2)
    assert last_reports()[-1].calls == ()


@pytest.mark.quick(1)
@needs_amx
@pytest.mark.parametrize(("width", "inside"), [(264, 256), (256, 250), (128, 256)])
def test_weights_that_do_not_fill_matrix_registers_are_left_to_the_library(width: int, inside: int) -> None:
    model = nn.Linear(width, inside).eval().bfloat16()
    with torch.no_grad():
        x = torch.randn(40, width).bfloat16()
        torch.testing.assert_close(compiled(model)(x), model(x), rtol=2e-2, atol=2e-2)
    assert last_reports()[-1].calls != ()


@needs_pairs
@pytest.mark.parametrize("freezing", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "rows_of_calls",
    [
        (40, 31, 257),
        # with one row, which is a program of its own
        pytest.param((40, 33, 100, 2, 31, 257, 1, 64), marks=pytest.mark.slow),
    ],
    ids=["some", "more"],
)
def test_linear_layers_of_any_number_of_rows(freezing: bool, rows_of_calls: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    width = 64 if freezing else 256
    model = Gated(width, width + 32).eval().bfloat16()
    options = {"strict": True, "freezing": freezing}
    call = torch.compile(model, backend="polyfuse", dynamic=True, options=options)
    with torch.no_grad():
        for rows in rows_of_calls:
            x = torch.randn(rows, width).bfloat16()
            torch.testing.assert_close(call(x), model(x), rtol=2e-2, atol=2e-2)
            model.down.weight.mul_(-1)  # is seen


@needs_pairs
@pytest.mark.quick(1)
@pytest.mark.parametrize("freezing", [False, True])
def test_numbers_that_are_none_stay_in_their_rows(freezing: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1056, 64), nn.ReLU()).eval().bfloat16()
    x = torch.randn(70, 1056).bfloat16()
    with torch.no_grad():
        x[3, 1050], x[64, 0], x[69, 7] = float("nan"), float("inf"), float("-inf")
        model[0].weight[5, 7], model[0].bias[9] = float("inf"), float("nan")
        found, expected = compiled(model, freezing=freezing)(x), model(x)
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2, equal_nan=True)


class Heads(nn.Module):
    """A layer whose results are stored by heads."""

    def __init__(self, head: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.head, self.layer = head, nn.Linear(64, 4 * head, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.layer(x).view(-1, 4, self.head).transpose(0, 1)
        return (heads * 2).contiguous()


@needs_avx512
@pytest.mark.parametrize(("head", "launches"), [(64, 1), (40, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=needs_pairs)])
def test_heads_have_whole_blocks_of_a_packed_weight(head: int, launches: int, dtype: torch.dtype) -> None:
    """What divides blocks is a loop of its own."""
    torch.manual_seed(0)
    model, x = Heads(head, dtype).eval(), torch.randn(70, 64).to(dtype)
    with torch.no_grad():
        found = compiled(model, freezing=True)(x)
        torch.testing.assert_close(found, model(x), rtol=2e-2, atol=2e-2)
    report = last_reports()[-1]
    assert PACK in report.calls and report.kernels == launches


class Along(nn.Module):
    """A layer whose weight has a row for each step of the depth, as those of GPT-2 have."""

    def __init__(self, width: int, inside: int) -> None:
        super().__init__()
        self.weight, self.bias = (
            nn.Parameter(torch.randn(width, inside) / 8),
            nn.Parameter(torch.randn(inside)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.gelu(torch.addmm(self.bias, x, self.weight))


@needs_pairs
@pytest.mark.parametrize("freezing", [False, True])
@pytest.mark.parametrize(
    ("inside", "rows", "depth"),
    [(96, 37, 64), (96, 37, 74), pytest.param(80, 5, 74, marks=pytest.mark.slow), (70, 64, 74)],
)
def test_weights_whose_columns_lie_side_by_side(inside: int, rows: int, depth: int, freezing: bool) -> None:
    torch.manual_seed(0)
    model, x = Along(depth, inside).eval().bfloat16(), torch.randn(rows, depth).bfloat16()
    with torch.no_grad():
        found, exact = compiled(model, freezing=freezing)(x), copy.deepcopy(model).double()(x.double())
    torch.testing.assert_close(found.double(), exact, rtol=1e-2, atol=1e-2)
    if not HAS_AMX:
        # blocks have whole vectors
        assert last_reports()[-1].calls == ((PACK,) if freezing and inside % 16 == 0 else ())


def layer(
    rows: int | IndexLike, columns: int, depth: int, dtype: DType = DType.bf16, *, beside: bool = False
) -> Reduction:
    """The sums of a linear layer; `beside`: whether columns of the weight lie side by side, not its depth."""
    row, column, inside = axis("i0", rows), axis("i1", columns), axis("k0", depth)
    where = inside * columns + column if beside else column * depth + inside
    x, w = load("x", row * depth + inside, dtype), load("w", where, dtype)
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
    }
    assert not [why for why, (node, hints) in others.items() if generator.prefers(node, hints, isa)]
    # which weights have to be packed
    assert not generator.prepacks(layer(some, 3072, 768), {}, isa)
    assert not generator.prepacks(layer(3136, 32, 32), {}, isa)
    for node in (layer(64, 3072, 80), layer(64, 3072, 776), layer(64, 1000, 768)):
        assert generator.prepacks(node, {}, isa)
    # many threads pack one whose columns lie side by side at each call, if there are several rows
    for rows, again in ((16, True), (17, False), (some, False)):
        assert generator.prepacks(layer(rows, 3072, 768, beside=True), {"s0": 100}, isa, 8) is again
    assert generator.prepacks(layer(64, 3072, 768, beside=True), {}, isa, 2)
    assert generator.prepacks(layer(64, 1000, 768, beside=True), {}, isa, 8)


def test_which_linear_layers_are_multiplied_in_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    isa, some = choose_isa("avx512"), symbol("s0")
    monkeypatch.setattr(isa_of, "dot_instructions", lambda: ("PF_DOT_BF16",))
    packed, plain = (generator.most_rows(1, freezing, isa) for freezing in (True, False))
    assert (packed, plain) == (512, 2048)
    for rows in (2, 64, 512):
        assert generator.prefers(layer(rows, 1000, 776), {}, isa, packed)
        assert not generator.prepacks(layer(rows, 1000, 776), {}, isa)
    many, small = layer(513, 3072, 768), layer(5000, 384, 96)
    assert generator.prefers(many, {}, isa, plain) and not generator.prefers(many, {}, isa, packed)
    assert generator.prefers(small, {}, isa, packed)
    for node in (layer(1, 96, 70), layer(some, 3072, 768), layer(64, 96, 70, DType.f16)):
        assert not generator.prefers(node, {}, isa, packed)
    # of a layer and of its heads
    widths = {n: packed_blocks.packed_width(layer(64, n, 70), isa) for n in (96, 512, 80, 40)}
    assert widths == {96: 32, 512: 32, 80: 16, 40: 0}
    assert not packed_blocks.packed_width(layer(64, 96, 71), isa)
    row, column, inside = axis("i0", 64), axis("i1", 96), axis("k0", 70)
    for at, plain in ((inside * 96 + column, True), (inside * 192 + column * 2, False)):
        x, w = load("x", row * 70 + inside, DType.bf16), load("w", at, DType.bf16)
        node = Reduction("mm", (row, column), (inside,), ("o",), row * 96 + column, "dot", (x, w))
        assert generator.prefers(node, {}, isa, packed) == plain
    monkeypatch.setattr(isa_of, "dot_instructions", lambda: ())
    assert not generator.prefers(layer(64, 1000, 776), {}, isa)


@pytest.mark.parametrize(
    ("rows", "columns", "turned"),
    [(512, 64, True), (513, 64, False), (1024, 3072, True), (1025, 3072, False)],
)
def test_up_to_how_many_rows_a_weight_is_read_as_it_is(
    rows: int, columns: int, turned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isa_of, "dot_instructions", lambda: ("PF_DOT_BF16", "PF_AMX"))
    kernel = plainly_named(Matmul(rows, columns, 768, dtype=DType.bf16, right="nk").kernel())
    (plan, *_) = matmul_plans(matmul_of(kernel), choose_isa("avx512"))
    assert plan.path is (OperandPath.TURNED if turned else OperandPath.TILES)


@pytest.mark.parametrize(
    ("threads", "packed", "rows"),
    [(1, True, 256), (7, True, 256), (8, True, 1536), (16, True, 1536), (7, False, 512), (8, False, 1536)],
)
def test_more_rows_are_generated_with_many_threads(
    threads: int, packed: bool, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isa_of, "dot_instructions", lambda: ("PF_DOT_BF16", "PF_AMX"))
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    backend = CppBackend(Settings.resolve(None, {"freezing": packed, "cpp.isa": "avx512"}))

    def prefers(count: int) -> bool:
        row, column, inside = axis("i0", count), axis("i1", 2816), axis("k0", 1024)
        x, w = load("x", row * 1024 + inside, DType.bf16), load("w", column * 1024 + inside, DType.bf16)
        at = row * 2816 + column
        return backend.preferred_gemm(
            Reduction("mm", (row, column), (inside,), ("sums",), at, "dot", (x, w)), {}
        )

    assert prefers(rows) and not prefers(rows + 1)
