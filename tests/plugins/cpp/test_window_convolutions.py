"""Convolutions with windows larger than 1x1 as generated kernels compute what eager mode does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from polyfuse.compiler.reports.report import last_reports
from polyfuse.ir.text.parse import parse_kernel
from polyfuse_cpp.isa import ISAS, detect_isa
from polyfuse_cpp.matmul.paths import OperandPath
from polyfuse_cpp.matmul.plans import matmul_plans, nearby_plans
from polyfuse_cpp.matmul.problem import matmul_of
from requirements import needs_vectors

pytestmark = [
    needs_vectors,
    pytest.mark.usefixtures("fresh_sessions", "packed_once"),
]
LANES = detect_isa().lanes
"""Channels of a block: groups of whole blocks are generated."""
PACKS = "checked.aten.as_strided_copy.default"
INF, NAN = float("inf"), float("nan")


def compiled(model: nn.Module, **options: Any) -> Any:
    torch.manual_seed(0)
    if "mode" not in options:
        options["options"] = {"strict": True}
    return torch.compile(model.eval(), backend="polyfuse", **options)


def agrees(call: Any, model: nn.Module, x: torch.Tensor) -> None:
    with torch.no_grad():
        found, expected = call(x), model(x)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4, equal_nan=True)
    assert found.stride() == expected.stride()
    assert {name.replace("together.", "") for name in last_reports()[-1].calls} == {PACKS}


def test_small_weights_are_packed_in_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """To look whether one has changed takes longer."""
    monkeypatch.setattr("polyfuse.autotune.gemm_candidates._FEW_NUMBERS", 2048)
    model, x = nn.Sequential(nn.Conv2d(3, 2 * LANES, 3, 2, 1), nn.ReLU()), torch.randn(1, 3, 32, 32)
    call = compiled(model)
    with torch.no_grad():
        torch.testing.assert_close(call(x), model(x), rtol=1e-4, atol=1e-4)
        model[0].weight.data.normal_()
        torch.testing.assert_close(call(x), model(x), rtol=1e-4, atol=1e-4)
    assert not last_reports()[-1].calls


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("layer", "size", "last"),
    [
        (nn.Conv2d(17, 32, 3, padding=1), (2, 17, 9, 11), True),
        (nn.Conv2d(5, 16, 3, stride=2, padding=1, bias=False), (3, 5, 13, 12), False),
        (nn.Conv2d(3, 64, 7, stride=2, padding=3), (2, 3, 20, 21), False),
        (nn.Conv2d(16, 48, 3, padding=2, dilation=2), (1, 16, 68, 71), True),
        (nn.Conv2d(8, 16, (1, 3), padding=(0, 1)), (2, 8, 7, 8), True),
        (nn.Conv2d(160, 16, 3, padding=1), (2, 160, 8, 9), True),
        (nn.Conv2d(6, 5 * LANES, 2), (2, 6, 9, 9), True),
        (nn.Conv2d(5, 32, 5, padding=2), (2, 5, 9, 28), True),
        (nn.Conv2d(104, 32, 3, padding=1), (2, 104, 7, 14), True),
        (nn.Conv2d(7, 32, (5, 4), stride=(1, 3), padding=(3, 1)), (2, 7, 9, 85), True),
        (nn.Conv2d(24, 3 * LANES, 3, padding=1, groups=3), (2, 24, 9, 7), True),
        (nn.Conv2d(20, 6 * LANES, 3, stride=2, padding=1, groups=2, bias=False), (3, 20, 13, 12), True),
        (nn.Conv2d(15, 15 * LANES, (3, 2), padding=(1, 2), groups=3), (2, 15, 9, 7), True),
        (nn.Conv2d(32, 64, 3, dilation=2, groups=2), (2, 32, 12, 12), True),
        (nn.Conv2d(24, 24, 3, padding=1, groups=3), (2, 24, 9, 7), True),
        (nn.Conv2d(104, 104, 3, stride=2, padding=1, groups=13), (1, 104, 57, 55), True),
        (nn.Conv2d(28, 24, 3, stride=2, padding=1, groups=2, bias=False), (3, 28, 13, 12), True),
        (nn.Conv2d(9, 72, (3, 2), padding=(1, 2), groups=3), (2, 9, 9, 7), True),
        (nn.Conv2d(40, 80, 3, dilation=2, groups=2), (2, 40, 12, 12), True),
        (nn.Conv2d(15, 100, 3, padding=3, groups=5), (1, 15, 5, 6), True),
        (nn.Conv2d(3 * LANES, 3 * LANES, 3, padding=1, groups=3), (1, 3 * LANES, 7, 7), True),
        (nn.Conv2d(2 * LANES, 2 * LANES, 3, stride=2, padding=1, groups=2), (2, 2 * LANES, 19, 16), True),
        (nn.Conv2d(10, 5 * LANES, (3, 5), padding=2, groups=5, bias=False), (1, 10, 14, 14), True),
        (nn.Conv2d(3, LANES + LANES // 2, 3, stride=2, padding=1), (2, 3, 20, 21), False),
        (nn.Conv2d(17, 2 * LANES + 1, 3, padding=1, bias=False), (2, 17, 9, 11), True),
        (nn.Conv2d(160, 3 * LANES + LANES // 4, 3, padding=1), (2, 160, 8, 9), True),
        (nn.Conv2d(7, 4 * LANES - 1, (5, 4), stride=(1, 3), padding=(3, 1)), (2, 7, 9, 85), True),
        (nn.Conv2d(8, LANES + 1, 3, dilation=2), (2, 8, 12, 14), True),
        (nn.Conv2d(3, LANES, 3, stride=2, padding=1), (2, 3, 11, 112), True),
        (nn.Conv2d(20, 2 * LANES, 3, padding=1), (2, 20, 9, 40), True),
        (nn.Conv2d(20, 2 * LANES, 3, padding=1), (2, 20, 6, 10), False),
    ],
    ids=[
        *("17 channels", "stride", "stem", "dilation", "1x3", "cut depth", "no border"),
        *("lines", "passes of a line", "lines and strides"),
        *("groups", "groups and stride", "groups of five blocks", "groups and no border"),
        *("groups of 8", "many groups of 8", "groups of 12", "groups of 24", "groups of 40", "groups of 20"),
        *("groups of a vector", "groups of a vector and stride", "two channels to a vector each"),
        *(
            "part of a vector",
            "one number more",
            "part and cut depth",
            "one number less",
            "part and no border",
        ),
        *("lines of 56 in one block", "lines of 40", "lines of 10"),
    ],
)
def test_kinds_of_windows(layer: nn.Conv2d, size: tuple[int, ...], last: bool) -> None:
    """Beyond the border of an image a weight does not count, whatever it is."""
    model = nn.Sequential(layer, nn.BatchNorm2d(layer.out_channels), nn.ReLU6())
    call, x = compiled(model), torch.randn(size)
    if last:
        x = x.to(memory_format=torch.channels_last)
    agrees(call, model, x)
    bad = x.clone(memory_format=torch.preserve_format)
    bad[0, 0, 1, 1], bad[-1, 1, 0, 0], bad[-1, 2, -1, -1] = NAN, INF, -INF
    agrees(call, model, bad)
    with torch.no_grad():
        layer.weight[0, 0, 0, 0], layer.weight[1, 1, -1, -1], layer.weight[2, 0, -1, 0] = INF, NAN, -INF
    agrees(call, model, x)
    agrees(call, model, bad)
    layer.weight.data.normal_()  # packed anew, though no version counter tells
    agrees(call, model, x)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("layer", "size"),
    [
        (nn.Conv2d(1, 2 * LANES, 5, padding=2), (2, 1, 9, 28)),
        (nn.Conv2d(1, LANES, (3, 7), stride=(1, 2), padding=(2, 3)), (1, 1, 8, 61)),
        (nn.Conv2d(1, LANES, 3, padding=1), (2, 1, 17, 23)),
        (nn.Conv1d(1, 4 * LANES, 20, 4, padding=10), (2, 1, 200)),
    ],
    ids=["5x5", "3x7 and stride", "3x3", "along one axis"],
)
def test_images_of_one_channel(layer: Any, size: tuple[int, ...]) -> None:
    """Taps of a line are read side by side, as channels of a pixel are."""
    line, channels = len(size) == 3, layer.out_channels
    norm, pool = (nn.BatchNorm1d, nn.MaxPool1d(2)) if line else (nn.BatchNorm2d, nn.MaxPool2d(2))
    first = nn.Sequential(layer, norm(channels), nn.ReLU(), pool)
    second = type(layer)(channels, LANES, 3)

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = first, second

        def forward(self, x: torch.Tensor) -> Any:
            found = self.first(x)
            return found, self.second(found)

    model = Both()
    call, x = compiled(model), torch.randn(size)
    bad = x.clone()
    bad[0, 0, ..., 3], bad[-1, 0, ..., -1] = NAN, INF
    for image in (x, bad):
        with torch.no_grad():
            torch.testing.assert_close(call(image), model(image), rtol=1e-4, atol=1e-4, equal_nan=True)
    assert {name.replace("together.", "") for name in last_reports()[-1].calls} == {PACKS}
    with torch.no_grad():
        layer.weight[0].fill_(INF)
        found, _ = call(torch.ones(size))
    assert not found.isnan().any(), "weights beyond the border count"


@pytest.mark.slow
@pytest.mark.parametrize("groups", [1, 2])
def test_windows_over_images_of_any_size(groups: int) -> None:
    model = nn.Conv2d(8, 2 * LANES, 3, stride=2, padding=1, groups=groups)
    call = compiled(model, dynamic=True)
    for size in ((2, 8, 17, 19), (3, 8, 12, 5), (1, 8, 33, 8), (5, 8, 9, 9)):
        agrees(call, model, torch.randn(size).to(memory_format=torch.channels_last))


SECOND = """
kernel convolution_then_clone on cpu {
  numerics fast
  axes p0{2} ~ 2, p1{32} ~ 32, p2{4} ~ 4, p3{8} ~ 8
  raxes r0{2} ~ 2, r1{2} ~ 2, r2{16} ~ 16
  in in0: f32[1440]
  in in1: f32[2048]
  out out0: f32[2048]
  loop {
    v1 = load f32 in0[720*p0 + 144*p2 + 16*p3 + 144*r0 + 16*r1 + r2]
    v2 = load f32 in1[512*r0 + 256*r1 + 16*r2 + 1024*(p1 // 16) + (p1 % 16)]
    v3 = reduce f32 dot (v1, v2)
  }
  once {
    store f32 set out0[1024*p0 + 32*p1 + 8*p2 + p3] = v3
  }
}
"""


def test_a_packed_weight_stays_along_the_lanes_where_results_have_their_channels_second() -> None:
    """Otherwise each tile gathers its pixels and unpacks the weight: half as fast as the library."""
    matmul = matmul_of(parse_kernel(SECOND))
    assert (matmul.b.axes, matmul.b.packed_width) == (("p1",), 16)
    assert matmul.a.axes == ("p0", "p2", "p3")


STEM = """
kernel stem on cpu {{
  numerics fast
  axes p0{{2}} ~ 2, p1{{32}} ~ 32, p2{{32}} ~ 32, p3{{{columns}}} ~ {columns}
  raxes r0{{3}} ~ 3, r1{{3}} ~ 3, r2{{3}} ~ 3
  in in0: f32[6936]
  in in1: f32[{weight}]
  out out0: f32[{out}]
  loop {{
    v1 = load f32 in0[3468*p0 + 102*p1 + 3*p2 + 102*r0 + 3*r1 + r2]
    v2 = load f32 in1[{tap}*r0 + {line}*r1 + {columns}*r2 + p3]
    v3 = reduce f32 dot (v1, v2)
  }}
  once {{
    store f32 set out0[{image}*p0 + {row}*p1 + {columns}*p2 + p3] = v3
  }}
}}
"""


@pytest.mark.parametrize("isa", ["avx2", "avx512"])
def test_no_tile_reads_behind_the_last_step_of_a_weight(isa: str) -> None:
    """What lies there is no number of the program's, and adding up denormal ones takes ten times as long."""
    machine = ISAS[isa]
    for columns in (machine.lanes, 2 * machine.lanes, 3 * machine.lanes, 4 * machine.lanes):
        sizes = {"columns": columns, "weight": 27 * columns, "tap": 9 * columns, "line": 3 * columns}
        sizes |= {"row": 32 * columns, "image": 1024 * columns, "out": 2048 * columns}
        matmul = matmul_of(parse_kernel(STEM.format(**sizes)))
        plans = matmul_plans(matmul, machine)
        plans += [near for plan in plans for near in nearby_plans(matmul, machine, plan)]
        assert any(plan.path is OperandPath.PREPACKED for plan in plans)
        assert all(columns % (plan.vectors * machine.lanes) == 0 for plan in plans)


def test_where_calls_are_timed_weights_are_packed_once_too() -> None:
    """Timed were the library and kernels that pack the weight, or rows, at each call."""
    model = nn.Sequential(nn.Conv2d(17, 2 * LANES, 3, padding=1), nn.ReLU())
    call = compiled(model, mode="max-autotune-no-cudagraphs")
    agrees(call, model, torch.randn(2, 17, 16, 16).to(memory_format=torch.channels_last))


def test_a_cached_block_is_seen_as_a_type_in_each_part_of_a_program() -> None:
    """Recordings divide a program into functions, in and between which the block is used."""
    model = nn.Sequential(nn.Conv2d(3, LANES, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    model = nn.Sequential(*model, nn.Conv2d(LANES, LANES, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)).eval()
    x = torch.randn(64 * 16 // LANES, 3, 32, 32)
    call = torch.compile(model, backend="polyfuse", mode="reduce-overhead")
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(call(x), model(x), rtol=1e-4, atol=1e-4)
    assert last_reports()[-1].kernels > 2


def test_what_follows_is_done_in_the_same_kernel() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
            self.norm = nn.BatchNorm2d(16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            inner = nn.functional.silu(self.first(x))
            return nn.functional.hardswish(self.norm(self.second(inner)) + x)

    block = Block()
    call = compiled(block)
    agrees(call, block, torch.randn(2, 16, 8, 10).to(memory_format=torch.channels_last))
    assert last_reports()[-1].kernels == 2


def test_small_convolutions_to_few_channels_are_generated() -> None:
    """What a library's call costs is more than the lanes that stay empty; a large image is the library's."""
    for size, calls in ((28, 0), (300, 1)):
        model = nn.Sequential(nn.Conv2d(3, 6, 5), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 1)).eval()
        torch._dynamo.reset()
        x = torch.randn(1, 3, size, size)
        with torch.no_grad():
            torch.testing.assert_close(compiled(model)(x), model(x), rtol=1e-4, atol=1e-5)
        found = last_reports()[-1].calls
        assert len([n for n in found if "pack" not in n and "reorder" not in n and "conv" in n]) == calls


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("layer", "size", "reason"),
    [
        (nn.Conv2d(64, 6, 3), (1, 64, 100, 100), "not known to be faster"),
        (nn.Conv2d(4, 16, 3), (1, 4, 3, 5), "not known to be faster here"),
        (nn.Conv2d(16, 16, 5, groups=4), (1, 16, 20, 20), "its 4 columns are no multiple of"),
        (nn.Conv2d(4, 16, 3).double(), (1, 4, 20, 20), "not known to be faster here"),
        (nn.Conv2d(1, 16, 3, dilation=2), (1, 1, 20, 20), "not known to be faster here"),
        (nn.Conv2d(8, 32, 3, padding=9, dilation=9), (1, 8, 14, 14), "not known to be faster here"),
    ],
    ids=["6 channels", "few pixels", "groups of 4", "f64", "one channel", "dilated over the border"],
)
def test_windows_that_are_the_librarys(layer: nn.Conv2d, size: tuple[int, ...], reason: str) -> None:
    x = torch.randn(size, dtype=layer.weight.dtype).to(memory_format=torch.channels_last)
    call = compiled(layer)
    with torch.no_grad():
        torch.testing.assert_close(call(x), layer(x), rtol=1e-4, atol=1e-4)
    assert any(reason in d.reason for d in last_reports()[-1].decisions if d.second == "cpp")
