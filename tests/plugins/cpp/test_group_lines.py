"""Tiles of convolutions of groups that lie in one line of the image."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ir_samples import inside_image
from polyfuse.compiler.reports.report import last_reports
from polyfuse.ir.text.parse import parse_kernel
from polyfuse_cpp.isa import ISAS, detect_isa
from polyfuse_cpp.matmul.groups.lines import Bounds, GroupLines, group_lines, grouped_tile
from polyfuse_cpp.matmul.paths import plan_of
from polyfuse_cpp.matmul.plans import matmul_plans
from polyfuse_cpp.matmul.problem import Matmul, matmul_of
from requirements import needs_vectors

GROUPS = """
kernel groups on cpu {{
  numerics fast
  axes p0{{2}} ~ 2, p1{{{lines}}} ~ {lines}, p2{{{line}}} ~ {line}, p3{{4}} ~ 4, p4{{8}} ~ 8
  raxes r0{{3}} ~ 3, r1{{3}} ~ 3, r2{{8}} ~ 8
  in in0: f32[100000]
  in in1: f32[2304]
  out out0: f32[100000]
  loop {{
    y = index i64 <p1*{step} + r0*{apart} - {border}>
    x = index i64 <p2*{step} + r1*{apart} - {border}>
    {inside}
    a = load f32 in0[{index}] if inside else nothing
    b = load f32 in1[576*p3 + p4 + 192*r0 + 64*r1 + 8*r2]
    acc = reduce f32 dot (a, b)
  }}
  once {{
    store f32 set out0[p0*{image} + p1*{row} + p2*32 + p3*8 + p4] = acc
  }}
}}
"""


def groups(line: int, step: int = 1, apart: int = 1, border: int = 1) -> Matmul:
    """Four groups of eight channels under windows of 3x3, whose results have lines of `line` pixels."""
    width = step * (line - 1) + 2 * apart + 1 - 2 * border
    pitch, first = 32 * width, 32 * border * (width + 1)
    index = f"{32 * width * width}*p0 + {step * pitch}*p1 + {32 * step}*p2 + 8*p3"
    index += f" + {apart * pitch}*r0 + {32 * apart}*r1 + r2 - {first}"
    numbers = {
        "row": 32 * line,
        "image": 32 * line * line,
        "lines": line,
        "line": line,
        "step": step,
        "apart": apart,
        "border": border,
    }
    return matmul_of(parse_kernel(GROUPS.format(**numbers, index=index, inside=inside_image(width))))


def lines_of(matmul: Matmul) -> GroupLines | None:
    rows, vectors, _ = grouped_tile(matmul, 16, 32, 1)
    return group_lines(matmul, rows, vectors)


@pytest.mark.parametrize(
    ("line", "rows", "seen"),
    [
        (28, 14, {(1, 16): (0,), (0, 15): (14,)}),
        (56, 14, {(1, 16): (0,), (0, 15): (42,), (0, 16): ()}),
        (7, 7, {(1, 8): (0,)}),
        (40, 10, {(1, 12): (0,), (0, 11): (30,), (0, 12): ()}),
    ],
)
def test_what_tiles_see_of_a_line(line: int, rows: int, seen: dict[tuple[int, int], tuple[int, ...]]) -> None:
    matmul = groups(line)
    assert grouped_tile(matmul, 16, 32, 1) == (rows, 1, 1)
    found = lines_of(matmul)
    assert found is not None and found.cases(rows) == seen


def test_steps_and_dilated_windows_leave_out_pixels_by_their_number() -> None:
    found = lines_of(groups(28, step=2))
    assert found is not None and found.cases(14) == {(1, 29): (0,), (0, 28): (14,)}
    found = lines_of(groups(28, apart=2, border=2))
    assert found is not None and found.cases(14) == {(2, 18): (0,), (0, 16): (14,)}


def test_cases_of_a_line_with_a_border_at_one_end() -> None:
    """The last case is that of all tiles between, of which there are more than one."""
    right = GroupLines("x", 56, 2, 64, 64, Bounds(1, 1, 0, 56), "", "", 0, None, 64)
    assert list(right.cases(14).items()) == [((0, 14), (42,)), ((0, 15), ())]
    none = GroupLines("x", 56, 2, 64, 64, None, "", "", 0, None, 64)
    assert none.cases(14) == {(0, 1): ()}


def test_lines_that_no_tiles_fill_or_whose_inner_tiles_have_a_border_have_tables() -> None:
    assert lines_of(groups(17)) is None
    assert lines_of(groups(56, apart=20, border=20)) is None


def all_channels(line: int) -> Matmul:
    """A convolution of 8 to 64 channels, whose weight lies in blocks of 32 columns."""
    index = f"{8 * line * line}*p0 + {8 * line}*p1 + 8*p2 + {8 * line}*r0 + 8*r1 + r2 - {8 * line + 8}"
    numbers = {"row": 64 * line, "image": 64 * line * line, "lines": line, "line": line}
    text = GROUPS.format(**numbers, step=1, apart=1, border=1, index=index, inside=inside_image(line))
    text = text.replace(", p3{4} ~ 4, p4{8} ~ 8", ", p3{64} ~ 64").replace("p2*32 + p3*8 + p4", "p2*64 + p3")
    weight = "in1[2304*(p3 // 32) + (p3 % 32) + 768*r0 + 256*r1 + 32*r2]"
    text = text.replace("in1[576*p3 + p4 + 192*r0 + 64*r1 + 8*r2]", weight).replace("2304]", "4608]")
    return matmul_of(parse_kernel(text))


def test_all_channels_are_one_group_where_tiles_divide_a_line() -> None:
    plans = {line: matmul_plans(all_channels(line), ISAS["avx512"])[0] for line in (28, 7, 17)}
    assert {line: (plan.lines, plan.vectors) for line, plan in plans.items()} == {
        28: (True, 2),
        7: (True, 2),
        17: (False, 2),
    }
    assert (plans[28].rows, plans[7].rows) == (14, 7)
    assert plan_of(plans[28].config()) == plans[28]
    assert not any(plan.lines for plan in matmul_plans(all_channels(28), ISAS["avx2"]))


LANES = detect_isa().lanes
INF, NAN = float("inf"), float("nan")


def without_border(layer: nn.Conv2d, x: torch.Tensor) -> torch.Tensor:
    """The convolution tap by tap: eager mode may count a weight that is NaN where there is no pixel."""
    shape = layer(x).shape
    found = torch.zeros(shape) if layer.bias is None else layer.bias[:, None, None].expand(shape).clone()

    def inside(axis: int, tap: int) -> list[int]:
        first = tap * layer.dilation[axis] - int(layer.padding[axis])
        at = [first + n * layer.stride[axis] for n in range(shape[2 + axis])]
        return [n for n, pixel in enumerate(at) if 0 <= pixel < x.shape[2 + axis]]

    for line in range(layer.kernel_size[0]):
        for column in range(layer.kernel_size[1]):
            (ys, xs), taps = (inside(0, line), inside(1, column)), (line, column)
            if ys and xs:
                at = [
                    torch.tensor(each) * layer.stride[axis]
                    + taps[axis] * layer.dilation[axis]
                    - int(layer.padding[axis])
                    for axis, each in enumerate((ys, xs))
                ]
                weight = layer.weight[:, :, line : line + 1, column : column + 1]
                part = nn.functional.conv2d(x[:, :, at[0]][..., at[1]], weight, groups=layer.groups)
                found[:, :, ys[0] : ys[-1] + 1, xs[0] : xs[-1] + 1] += part
    return found


@pytest.mark.quick(2)
@needs_vectors
@pytest.mark.parametrize(
    ("layer", "size"),
    [
        (nn.Conv2d(16, 16, 3, padding=1, groups=2), (2, 16, 6, 42)),
        (nn.Conv2d(2 * LANES, 4 * LANES, 5, stride=2, padding=2, groups=2), (1, 2 * LANES, 16, 32)),
        (nn.Conv2d(32, 32, (1, 7), padding=(0, 3), dilation=(1, 2), groups=4, bias=False), (2, 32, 5, 22)),
        (nn.Conv2d(24, 24, 3, padding=4, dilation=4, groups=3), (1, 24, 9, 16)),
        (nn.Conv2d(3 * LANES, 3 * LANES, 1, groups=3), (2, 3 * LANES, 4, 14)),
        (nn.Conv2d(20, 4 * LANES, 3, padding=1), (2, 20, 6, 42)),
        (nn.Conv2d(10, 5 * LANES, 3, stride=2, padding=1), (3, 10, 13, 28)),
        (nn.Conv2d(12, 3 * LANES, (5, 3), padding=(2, 1)), (1, 12, 7, 14)),
    ],
    ids=[
        "three tiles a line",
        "5x5 by 2",
        "one line",
        "a wide border",
        "1x1",
        "all channels",
        "all by 2",
        "three vectors",
    ],
)
@pytest.mark.usefixtures("fresh_sessions")
def test_weights_beyond_the_border_do_not_count(layer: nn.Conv2d, size: tuple[int, ...]) -> None:
    model = nn.Sequential(layer, nn.BatchNorm2d(layer.out_channels), nn.ReLU()).eval()
    call = torch.compile(model, backend="polyfuse", options={"strict": True})
    x = torch.randn(size).to(memory_format=torch.channels_last)
    bad = x.clone(memory_format=torch.preserve_format)
    bad[0, 0, ..., 0], bad[-1, 9, ..., -1] = NAN, INF
    with torch.no_grad():
        for image in (x, bad, x):
            expected = model[1:](without_border(layer, image))
            torch.testing.assert_close(call(image), expected, rtol=1e-4, atol=1e-4, equal_nan=True)
            layer.weight[0, 0].fill_(INF)
            layer.weight[1, 1, ..., -1] = NAN
        if layer.groups == 1:
            layer.weight.normal_()
            torch.testing.assert_close(call(x), model(x), rtol=1e-4, atol=1e-4)
    assert "aten.convolution.default" not in last_reports()[-1].calls
