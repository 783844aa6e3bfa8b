"""Convolutions whose weight a kernel lays out at each call, a block of columns at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from ir_samples import inside_image
from polyfuse.compiler.reports.report import last_reports
from polyfuse.ir.text.parse import parse_kernel
from polyfuse_cpp.isa import ISAS
from polyfuse_cpp.matmul.groups.stored import block_vectors
from polyfuse_cpp.matmul.paths import OperandPath
from polyfuse_cpp.matmul.plans import matmul_plans
from polyfuse_cpp.matmul.problem import matmul_of
from polyfuse_cpp.matmul.split_k import matmul_text
from requirements import needs_avx512

WINDOW = """
kernel window on cpu {{
  numerics fast
  axes p0{{{columns}}} ~ {columns}, p1{{14}} ~ 14, p2{{14}} ~ 14
  raxes r0{{{channels}}} ~ {channels}, r1{{3}} ~ 3, r2{{3}} ~ 3
  in in0: f32[100000]
  in in1: f32[{weight}]
  out out0: f32[100000]
  loop {{
    y = index i64 <p1 + r1 - 1>
    x = index i64 <p2 + r2 - 1>
    {inside}
    a = load f32 in0[{image}] if inside else nothing
    b = load f32 in1[{depth}*p0 + 9*r0 + 3*r1 + r2]
    acc = reduce f32 dot (a, b)
  }}
  once {{
    store f32 set out0[{result}] = acc
  }}
}}
"""


def window(columns: int, channels: int, last: bool = True) -> Any:
    """A convolution of 14x14 pixels, whose result has channels last, or second."""
    line = 14 * channels
    result = f"{14 * columns}*p1 + {columns}*p2 + p0" if last else "196*p0 + 14*p1 + p2"
    text = WINDOW.format(
        columns=columns,
        channels=channels,
        weight=columns * channels * 9,
        image=f"{line}*p1 + {channels}*p2 + r0 + {line}*r1 + {channels}*r2 - {line + channels}",
        depth=9 * channels,
        result=result,
        inside=inside_image(14),
    )
    return matmul_of(parse_kernel(text))


@pytest.mark.parametrize("last", [True, False], ids=["channels last", "channels second"])
def test_blocks_are_laid_out_one_by_one(last: bool) -> None:
    matmul, isa = window(64, 32, last), ISAS["avx512"]
    plan = matmul_plans(matmul, isa)[0]
    assert (plan.path, plan.lines, plan.rows, plan.vectors) == (OperandPath.PACKED, True, 14, 2)
    text = "".join(str(part) for part in vars(matmul_text(matmul, plan, isa)).values())
    assert "matmul_taps_across<9, 2>" in text


@pytest.mark.parametrize(
    ("columns", "channels", "name"),
    [(64, 24, "avx512"), (40, 32, "avx512"), (64, 32, "avx2")],
    ids=["channels that fill no vector", "columns that fill no vector", "half the registers"],
)
def test_other_weights_are_not(columns: int, channels: int, name: str) -> None:
    assert not any(plan.lines for plan in matmul_plans(window(columns, channels), ISAS[name]))


def test_blocks_have_whole_vectors() -> None:
    sizes = [(64, 32, 9), (48, 32, 9), (16, 32, 9), (24, 32, 9), (64, 24, 9), (64, 32, 1), (64, 32, 25)]
    assert [block_vectors(*size, 16) for size in sizes] == [2, 3, 1, 0, 0, 0, 0]
    assert block_vectors(64, 32, 9, 1) == 0


@needs_avx512
@pytest.mark.quick(2)
@pytest.mark.usefixtures("fresh_sessions")
@pytest.mark.parametrize(
    ("layer", "size", "second"),
    [
        (nn.Conv2d(32, 64, 3, padding=1), (2, 16, 14, 14), False),
        (nn.Conv2d(32, 32, 3, padding=1), (1, 16, 10, 7), True),
        (nn.Conv2d(64, 48, 3, stride=2, padding=1, bias=False), (1, 16, 28, 27), False),
        (nn.Conv2d(16, 80, (1, 3), padding=(0, 1)), (1, 16, 9, 56), False),
        (nn.Conv2d(32, 64, 2, stride=2), (3, 16, 28, 28), False),
        (nn.Conv2d(48, 32, 3, padding=1, dilation=1), (1, 16, 3, 40), True),
    ],
    ids=["3x3", "channels second", "stride", "1x3", "2x2", "lines of 40"],
)
def test_results_are_eager_modes(layer: nn.Conv2d, size: tuple[int, ...], second: bool) -> None:
    """Nothing is packed before, and a change that no version counter tells is seen."""
    torch.manual_seed(0)
    after = [] if second else [nn.Conv2d(layer.out_channels, 16, 1)]
    model = nn.Sequential(nn.Conv2d(16, layer.in_channels, 1), nn.ReLU(), layer, nn.ReLU(), *after).eval()
    call = torch.compile(model, backend="polyfuse", dynamic=False, options={"strict": True})
    x = torch.randn(size)
    with torch.no_grad():
        for change in (lambda: None, layer.weight.data.normal_):
            change()
            torch.testing.assert_close(call(x), model(x), rtol=1e-4, atol=1e-4)
        assert not last_reports()[-1].calls


@needs_avx512
@pytest.mark.usefixtures("fresh_sessions")
def test_infinite_weights_beyond_the_border_do_not_count() -> None:
    layer, x = nn.Conv2d(32, 32, 3, padding=1), torch.ones(1, 32, 8, 14)
    call = torch.compile(layer.eval(), backend="polyfuse", dynamic=False, options={"strict": True})
    with torch.no_grad():
        layer.weight[0].fill_(float("inf"))
        found = call(x.to(memory_format=torch.channels_last))
    assert not last_reports()[-1].calls and not found.isnan().any() and found[0, 0].isinf().all()
