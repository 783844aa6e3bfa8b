"""Sums of products under a window, a tile of columns at a time: depthwise convolutions with channels last."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from cpp_kernels import KernelBuilder, backend, compiled
from polyfuse.ir.interpreter.interpret import run_kernel
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.types import DType

f32 = DType.f32


def depthwise(
    height: int,
    width: int,
    channels: int,
    *,
    taps: int = 3,
    step: int = 1,
    gap: int = 1,
    own: bool = True,
    mean: bool = False,
    numerics: str = "fast",
    dtype: DType = f32,
) -> Kernel:
    """A convolution of two images, each channel times a factor that is computed, and perhaps the sums of it.

    `own`: weights beyond the border count as zero, too; `dtype`: of images and weights.
    """
    margin = taps // 2 * gap
    down, over = ((n + 2 * margin - gap * (taps - 1) - 1) // step + 1 for n in (height, width))
    rows = {"r0": down, "r1": over}
    k = KernelBuilder(
        {"x0": 2, "x3": channels} if mean else {"x0": 2, **rows, "x3": channels}, rows if mean else {}
    )
    for name in ("a", "w"):
        k.arg(name, dtype)
    k.arg("v", f32)
    k.out("o", f32)
    if mean:
        k.out("s", f32), k.out("f", f32)
        once = k.section()
        once.store("f", k["x3"] + k["x0"] * channels, once.op("sqrt", once.load("v", k["x3"])))
    s = k.section(looped=mean)
    zero, nothing, total = s.const(0.0, f32), s.const(0.0, dtype), ""
    for at in range(taps * taps):
        y, x = (k[f"r{d}"] * step + ((at // taps, at % taps)[d] * gap - margin) for d in (0, 1))
        mask = ""
        for index, size in ((y, height), (x, width)):
            for test in (s.op("ge", s.index(index), s.index(0)), s.op("lt", s.index(index), s.index(size))):
                mask = s.op("bitwise_and", mask, test) if mask else test
        where = ((k["x0"] * height + y) * width + x) * channels + k["x3"]
        read = s.load("a", where, mask=mask, other=nothing)
        weight = s.load("w", k["x3"] + at * channels, **({"mask": mask, "other": nothing} if own else {}))
        if dtype is not f32:
            read, weight = s.cast(read, f32), s.cast(weight, f32)
        term = s.op("mul", read, weight)
        total = s.op("add", total, term) if total else term
    done = s.op("mul", total, s.op("sqrt", s.load("v", k["x3"])))
    s.store("o", ((k["x0"] * down + k["r0"]) * over + k["r1"]) * channels + k["x3"], done)
    outputs = [2 * down * over]
    if mean:
        every = s.reduce("sum", s.op("maximum", zero, done))
        last = k.section()
        last.store("s", k["x0"] * channels + k["x3"], last.op("div", every, last.const(7.0, f32)))
        outputs += [2, 2]
    sizes = (2 * height * width, taps * taps, 1, *outputs)
    kernel = k.build()
    args = tuple(replace(a, numel=n * channels) for a, n in zip(kernel.args, sizes, strict=True))
    return replace(kernel, args=args, numerics=numerics)


def agrees(kernel: Kernel, *, infinite: bool = False) -> None:
    """Whether a kernel stores what the interpreter does, and nothing behind it; one position is NaN."""
    run = compiled(kernel)  # first, so that those built ahead are interpreted once
    torch.manual_seed(0)
    made = []
    for a in kernel.args:
        assert isinstance(a.numel, int)
        made.append(torch.randn(a.numel).to(a.dtype.torch))
    image, weight, factor, *outs = made
    image[len(image) // 2] = float("nan")
    if infinite:
        weight[1], weight[-1] = float("inf"), float("-inf")
    factor.abs_()
    wanted, fenced = [out.clone() for out in outs], [torch.cat((out, out)) for out in outs]
    run_kernel(kernel, [image, weight, factor, *wanted])
    run(image, weight, factor, *(f[: len(f) // 2] for f in fenced))
    for out, right, found in zip(outs, wanted, fenced, strict=True):
        torch.testing.assert_close(found[: len(out)], right, equal_nan=True, rtol=1e-5, atol=1e-5)
        assert torch.equal(found[len(out) :], out)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("height", "width", "channels", "options"),
    [
        (5, 17, 16, {}),
        (7, 7, 19, {"taps": 5}),
        (3, 9, 17, {"own": False}),
        (6, 29, 16, {"step": 2}),
        (9, 8, 16, {"gap": 2, "own": False}),
        (5, 16, 32, {"mean": True}),
        (4, 9, 21, {"mean": True, "taps": 5, "step": 2}),
    ],
    ids=["odd", "large window", "zeros count", "stride", "dilation", "sums", "sums of odd channels"],
)
def test_tiles_of_columns_give_what_the_interpreter_does(
    height: int, width: int, channels: int, options: dict[str, int]
) -> None:
    kernel = depthwise(height, width, channels, **options)  # type: ignore[arg-type]
    assert "add_taps<" in backend("avx2").emit(kernel).text
    agrees(kernel)
    agrees(kernel, infinite=True)


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", [DType.bf16, DType.f16])
@pytest.mark.parametrize(
    "options",
    [{}, {"own": False}, {"step": 2}, {"gap": 2}, {"taps": 5}, {"mean": True}],
    ids=["", "zeros count", "stride", "dilation", "large window", "sums"],
)
def test_numbers_of_16_bits_are_widened_once_for_all_taps(options: dict[str, int], dtype: DType) -> None:
    kernel = depthwise(5, 17, 19, dtype=dtype, **options)  # type: ignore[arg-type]
    text = backend("avx2").emit(kernel).text
    assert "const vf32 image_0 = load<Vec>(arg_0" in text and "add_taps<" not in text
    agrees(kernel)
    agrees(kernel, infinite=True)


def test_what_is_left_to_other_loops() -> None:
    assert "add_taps<" not in backend("avx2").emit(depthwise(5, 3, 16)).text  # few columns
    assert "add_taps<" not in backend("avx2").emit(depthwise(5, 9, 7)).text  # less than a vector
    assert "add_taps<" not in backend("avx2").emit(depthwise(5, 9, 16, numerics="eager")).text


@pytest.mark.quick(1)
@pytest.mark.quick(1)
@pytest.mark.parametrize("pooled", [False, True])
def test_windows_over_space_and_time(pooled: bool, tmp_path: Path) -> None:
    """Frames beyond the border are left out, also where a mean over all points is taken."""
    layers = nn.Conv3d(8, 20, 1), nn.ReLU(), nn.Conv3d(20, 20, 3, padding=1, groups=20), nn.SiLU()
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool3d(1) if pooled else nn.Conv3d(20, 8, 1)).eval()
    nn.init.constant_(model[2].weight[3, 0, 0, 0, 0], float("inf"))
    x = torch.randn(2, 8, 3, 5, 9)
    with torch.no_grad():
        options = {"strict": True, "dump": str(tmp_path)}
        found = torch.compile(model, backend="polyfuse", options=options, dynamic=False)(x)
        torch.testing.assert_close(found, model(x), rtol=1e-4, atol=1e-5, equal_nan=True)
    assert any("add_taps<" in file.read_text() for file in tmp_path.rglob("*.c++"))


@pytest.mark.parametrize("channels", [24, 27])
def test_squeeze_and_excitation_behind_a_depthwise_convolution(channels: int) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.Conv2d(channels, channels, 5, 2, 2, groups=channels, bias=False)
            self.layers = nn.Sequential(layer, nn.BatchNorm2d(channels), nn.Hardswish())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.layers(x)
            return y * torch.sigmoid(y.mean((2, 3), keepdim=True))

    model, x = Model().eval(), torch.randn(2, channels, 19, 17)
    with torch.no_grad():
        found = torch.compile(model, backend="polyfuse", options={"strict": True})(x)
        torch.testing.assert_close(found, model(x), rtol=1e-5, atol=1e-5)
