"""Reductions over rows that do not fit in registers, joined so that memory is read once less."""

from __future__ import annotations

import math

import pytest
import torch

from requirements import TRITON

pytest.importorskip("triton", reason=TRITON)

from polyfuse.plugin import Config
from triton_interpreted import in_interpreter, run_text

LOOPED = Config.of(rows=2, r=16)


def rows(m: int, n: int, body: str, outputs: str = "", local: str = "") -> str:
    return (
        f"kernel k on cuda {{\nnumerics fast\naxes p0{{{m}}} ~ {m}\nraxes r0{{{n}}} ~ {n}\n"
        f"in in0: f32[{m * n}]\nout out0: f32[{m * n}]\n{outputs}{local}{body}\n}}"
    )


def softmax(m: int, n: int) -> str:
    at = f"{n}*p0 + r0"
    return rows(
        m,
        n,
        f"""
loop {{
  v1 = load f32 in0[{at}]
  v2 = reduce f32 max (v1)
}}
loop {{
  v3 = load f32 in0[{at}]
  v4 = sub f32 (v3, v2)
  v5 = exp f32 (v4)
  store f32 set row0[r0] = v5
  v6 = reduce f32 sum (v5)
}}
loop {{
  v7 = load f32 row0[r0]
  v8 = div f32 (v7, v6)
  store f32 set out0[{at}] = v8
}}""",
        local=f"row_buffer row0: f32[{n}]\n",
    )


def centred(m: int, n: int, share: float) -> str:
    at = f"{n}*p0 + r0"
    return rows(
        m,
        n,
        f"""
once {{
  c1 = const f32 {share!r}
}}
loop {{
  v1 = load f32 in0[{at}]
  v2 = reduce f32 sum (v1)
}}
once {{
  v3 = mul f32 (v2, c1)
}}
loop {{
  v4 = load f32 in0[{at}]
  v5 = sub f32 (v4, v3)
  v6 = mul f32 (v5, v5)
  v7 = reduce f32 sum (v6)
}}
once {{
  store f32 set out1[p0] = v7
  store f32 set out2[p0] = v2
}}
loop {{
  v8 = load f32 in0[{at}]
  v9 = sub f32 (v8, v3)
  store f32 set out0[{at}] = v9
}}""",
        outputs=f"out out1: f32[{m}]\nout out2: f32[{m}]\n",
    )


@pytest.mark.parametrize("n", [1, 16, 37, 64])
def test_softmax_takes_two_passes(n):
    m = 7
    x = torch.randn(m, n) * 30
    x[1] = float("-inf")
    x[2, 0] = float("-inf")
    x[3, n // 2] = float("inf")
    x[4, n - 1] = float("nan")
    x[5] = -3.0e38
    operands = [x.reshape(-1), torch.zeros(m * n)]
    found, wanted, text = in_interpreter(run_text, softmax(m, n), LOOPED, operands)
    assert text.count("tl.load(in0") == (2 if n > 16 else 1)
    if n > 16:
        assert "softmax_step" in text and "row0" not in text
    torch.testing.assert_close(found[1], wanted[1], rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("n", [33, 64, 100])
def test_sum_and_squared_differences_take_one_pass(n):
    m = 5
    x = torch.randn(m, n) + 100
    share = torch.tensor(1 / n, dtype=torch.float32).item()
    operands = [x.reshape(-1), torch.zeros(m * n), torch.zeros(m), torch.zeros(m)]
    found, wanted, text = in_interpreter(run_text, centred(m, n, share), LOOPED, operands)
    assert "moments_step" in text and text.count("tl.load(in0") == 2
    for got, true in zip(found[1:], wanted[1:], strict=True):
        torch.testing.assert_close(got, true, rtol=1e-4, atol=1e-4)


def test_moments_of_lines_that_end_within_a_chunk():
    """Lanes beyond the end of a line count numbers that are not there: none that are may follow."""
    lines, channels, n = 3, 2, 12544
    text = f"""kernel k on cuda {{
numerics fast
axes p0{{{channels}}} ~ {channels}
raxes r0{{{lines}}} ~ {lines}, r1{{{n}}} ~ {n}
in in0: f32[{lines * channels * n}]
out out0: f32[{channels}]
out out1: f32[{channels}]

loop {{
  v1 = load f32 in0[{n}*p0 + {channels * n}*r0 + r1]
  v2, v3, _ = reduce f32 welford (v1)
}}
once {{
  store f32 set out0[p0] = v2
  store f32 set out1[p0] = v3
}}
}}"""
    x = torch.randn(lines, channels, n)
    operands = [x.reshape(-1), torch.zeros(channels), torch.zeros(channels)]
    found, _, code = in_interpreter(run_text, text, Config(), operands)
    assert "for q0" in code and "where(rm" in code
    spread, mean = torch.var_mean(x.double(), (0, 2), correction=0)
    torch.testing.assert_close(found[1].double(), mean, rtol=0, atol=1e-7)
    torch.testing.assert_close(found[2].double() / (lines * n), spread, rtol=1e-6, atol=0)


@pytest.mark.quick(1)
@pytest.mark.parametrize("n", [37, 500])
@pytest.mark.parametrize("serial", [False, True])
def test_moments_far_from_zero(serial, n):
    """A mean that moved from number to number would be rounded more than each moves it; and so would the
    squares of distances from a number far from all others.
    """
    m, k = 3, 2 if serial else 1
    raxes = f"r0{{{n}}} ~ {n}, r1{{{k}}} ~ {k}"
    body = f"""
loop {{
  v1 = load f32 in0[{n * k}*p0 + {k}*r0 + r1]
  v2, v3, _ = reduce f32 welford (v1)
}}
once {{
  store f32 set out0[p0] = v2
  store f32 set out1[p0] = v3
}}"""
    text = (
        f"kernel k on cuda {{\nnumerics fast\naxes p0{{{m}}} ~ {m}\nraxes {raxes}\n"
        f"in in0: f32[{m * n * k}]\nout out0: f32[{m}]\nout out1: f32[{m}]\n{body}\n}}"
    )
    given = torch.randn(5, m, n * k) + torch.tensor([0.0, 1e6, 0.0, 0.0, 0.0]).view(5, 1, 1)
    given[4, :, 0] = 1e4
    given[2, 0, 0], given[2, 1, n // 2], given[2, 2, -1] = math.inf, -math.inf, math.inf
    given[3, 0, 0], given[3, 1, n // 2], given[3, 2, -1] = 1e38, -1e38, 1e38
    for x in given:
        operands = [x.reshape(-1), torch.zeros(m), torch.zeros(m)]
        for config in (LOOPED, Config.of(rows=2, r=4096)):
            found, _, _ = in_interpreter(run_text, text, config, operands)
            if x.isinf().any():
                torch.testing.assert_close(found[1], x.mean(-1), rtol=0, atol=0)
                assert found[2].isnan().all()
                continue
            if (x.abs() > 1e30).any():
                # no lane without numbers makes NaN of a square that is infinite
                torch.testing.assert_close(
                    found[1], x.mean(-1), rtol=0, atol=1e31
                )  # a rounding of the largest
                assert (found[2] == math.inf).all()
                continue
            spread, mean = torch.var_mean(x.double(), -1, correction=0)
            # a distance is rounded as its number is, or the one it is taken from
            outlier = bool(x[0, 0] == 1e4)
            rounding = outlier * 6e-8 * 1e4
            torch.testing.assert_close(found[1].double(), mean, rtol=2e-7, atol=2e-6 + rounding)
            torch.testing.assert_close(found[2].double() / (n * k), spread, rtol=2e-6, atol=0)


def test_differences_from_the_mean_add_up_to_nothing():
    """The sum that corrects two passes is none beside moments, and takes no pass of its own."""
    m, n = 3, 100
    share = torch.tensor(1 / n, dtype=torch.float32).item()
    rest = "  v10 = reduce f32 sum (v6)\n  v7 = reduce f32 sum (v5)\n"
    text = centred(m, n, share).replace("  v7 = reduce f32 sum (v6)\n", rest)
    text = text.replace("out1[p0] = v7", "out1[p0] = v10").replace("out2[p0] = v2", "out2[p0] = v7")
    x = torch.randn(m, n) + 1e6
    operands = [x.reshape(-1), torch.zeros(m * n), torch.zeros(m), torch.ones(m)]
    found, _, code = in_interpreter(run_text, text, LOOPED, operands)
    assert "moments_step" in code and code.count("tl.load(in0") == 2
    assert torch.count_nonzero(found[3]) == 0
    spread, mean = torch.var_mean(x.double(), -1, keepdim=True)
    torch.testing.assert_close(found[2].double() / (n - 1), spread[:, 0], rtol=2e-6, atol=0)
    torch.testing.assert_close(found[1].view(m, n).double(), x.double() - mean, rtol=0, atol=0.07)


def test_differences_from_something_else_than_the_mean_stay():
    m, n = 3, 64
    operands = [torch.randn(m * n), torch.zeros(m * n), torch.zeros(m), torch.zeros(m)]
    found, wanted, text = in_interpreter(run_text, centred(m, n, 0.125), LOOPED, operands)
    assert "moments" not in text and text.count("tl.load(in0") == 3
    for got, true in zip(found[1:], wanted[1:], strict=True):
        torch.testing.assert_close(got, true, rtol=1e-4, atol=1e-4)


def test_rounding_of_eager_mode_keeps_the_passes_apart():
    text = softmax(3, 64).replace("numerics fast", "numerics eager")
    found, wanted, text = in_interpreter(run_text, text, LOOPED, [torch.randn(192), torch.zeros(192)])
    assert "softmax_step" not in text
    torch.testing.assert_close(found[1], wanted[1])
