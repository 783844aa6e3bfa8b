"""Quotients by what many points share, and exponentials of which 16 bits are stored, at edges too."""

from __future__ import annotations

import pytest
import torch

from requirements import TRITON

pytest.importorskip("triton", reason=TRITON)

from polyfuse.ir.text.parse import parse
from polyfuse.plugin import Source
from polyfuse_triton.build.meta import KernelMeta
from polyfuse_triton.build.pipeline import compile_kernel, function_of
from polyfuse_triton.codegen import emit
from polyfuse_triton.target import known_target
from triton_interpreted import in_interpreter, run_text

EDGES = (0.0, -0.0, 1.0, -3.0, 1e-45, 1e-40, -1.2e-38, 3e-31, 7e29, 2e30, -3.4e38, float("inf"), float("nan"))


def quotients(m: int, n: int, divisor: str, numerics: str = "fast") -> str:
    return f"""kernel k on cuda {{
numerics {numerics}
axes p0{{{m}}} ~ {m}
raxes r0{{{n}}} ~ {n}
in in0: f32[{m * n}]
in in1: f32[{m}]
out out0: f32[{m * n}]
loop {{
  v1 = load f32 in0[{n}*p0 + r0]
  v2 = {divisor}
  v3 = div f32 (v1, v2)
  store f32 set out0[{n}*p0 + r0] = v3
}}
}}"""


def test_quotients_of_a_row_by_one_number():
    numerators = torch.cat([torch.tensor(EDGES), torch.randn(51) * 1e3])
    divisors = torch.cat([torch.tensor(EDGES), torch.randn(19), torch.randn(8) * 1e35])
    m, n = len(divisors), len(numerators)
    operands = [numerators.repeat(m), divisors, torch.zeros(m * n)]
    text = quotients(m, n, "load f32 in1[p0]")
    found, wanted, text = in_interpreter(run_text, text, None, operands)
    assert "inverse_of" in text and "div_rn" not in text
    torch.testing.assert_close(found[2], wanted[2], rtol=1e-6, atol=3e-45, equal_nan=True)
    zeros = wanted[2] == 0
    assert torch.equal(torch.signbit(found[2][zeros]), torch.signbit(wanted[2][zeros]))


@pytest.mark.parametrize("divisor", [9.0, -0.3, 1e20, 1e-20, 1e-35, 3e38])
def test_quotients_by_a_constant(divisor):
    numerators = torch.cat([torch.tensor(EDGES), torch.randn(51) * 1e3])
    n = len(numerators)
    operands = [numerators, torch.zeros(1), torch.zeros(n)]
    wanted_text = "divide_by" if 1e-30 < abs(divisor) < 1e30 else "div_rn"
    text = quotients(1, n, f"const f32 {torch.tensor(divisor).item()!r}")
    found, wanted, text = in_interpreter(run_text, text, None, operands)
    assert wanted_text in text
    torch.testing.assert_close(found[2], wanted[2], rtol=1e-6, atol=3e-45, equal_nan=True)


def test_rounding_of_eager_mode_needs_real_quotients():
    text = quotients(3, 16, "load f32 in1[p0]", "eager")
    operands = [torch.randn(48), torch.randn(3), torch.zeros(48)]
    found, wanted, text = in_interpreter(run_text, text, None, operands)
    assert "tl.div_rn" in text
    assert torch.equal(found[2], wanted[2])


def exponentials(kind: str, also: str = "") -> str:
    return f"""kernel k on cuda {{
numerics fast
axes p0{{64}} ~ 64
in in0: f32[64]
out out0: {kind}[64]
out out1: f32[64]
once {{
  v1 = load f32 in0[p0]
  v2 = exp f32 (v1)
  v3 = cast {kind} (v2)
  store {kind} set out0[p0] = v3
  {also}
}}
}}"""


@pytest.mark.each_value
@pytest.mark.parametrize("kind", ["bf16", "f16", "f32"])
@pytest.mark.parametrize("also", ["", "store f32 set out1[p0] = v2"])
def test_exponentials_stored_in_halves(kind, also):
    x = torch.cat([torch.tensor([*EDGES, 88.0, -87.0, float("-inf")]), torch.linspace(-20, 20, 48)])
    out = torch.zeros(64, dtype={"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}[kind])
    text = exponentials(kind, also).replace("v3 = cast f32 (v2)", "v3 = mul f32 (v2, v2)")
    found, wanted, text = in_interpreter(run_text, text, None, [x, out, torch.zeros(64)])
    assert ("quick_exp" in text) == (kind != "f32" and not also)
    for got, true in zip(found[1:], wanted[1:], strict=True):
        torch.testing.assert_close(got, true, equal_nan=True)


@pytest.mark.each_value
@pytest.mark.parametrize("op", ["tanh", "sigmoid"])
@pytest.mark.parametrize("kind", ["bf16", "f16", "f32"])
def test_what_is_made_of_exponentials(op, kind):
    near = torch.tensor([1e-30, 1e-4, 0.0624, 0.0625, 0.0626, 9.0, 88.0, 200.0])
    x = torch.cat([torch.tensor(EDGES), near, -near, torch.linspace(-4, 4, 64)])[:64]
    out = torch.zeros(64, dtype={"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}[kind])
    text = exponentials(kind, "").replace("exp f32", f"{op} f32")
    found, wanted, text = in_interpreter(run_text, text, None, [x, out, torch.zeros(64)])
    assert (f"quick_{op}" in text) == (kind != "f32")
    torch.testing.assert_close(found[1], wanted[1], equal_nan=True)
    signs = [out.nan_to_num().signbit() for out in (found[1], wanted[1])]
    assert torch.equal(*signs)


GELU = """kernel k on cuda {
numerics NUMERICS
axes p0{65536} ~ 65536
in in0: KIND[65536]
out out0: KIND[65536]
out out1: KIND[65536]
once {
  v1 = load KIND in0[p0]
  v2 = cast f32 (v1)
  v3 = const f32 0.7071067690849304
  v4 = mul f32 (v2, v3)
  v5 = erf f32 (v4)
  v6 = const f32 1.0
  v7 = add f32 (v5, v6)
  v8 = mul f32 (v2, v7)
  v9 = cast KIND (v8)
  store KIND set out0[p0] = v9
  v10 = cast KIND (v5)
  store KIND set out1[p0] = v10
}
}"""


@pytest.mark.parametrize(("kind", "numerics"), [("bf16", "fast"), ("bf16", "eager"), ("f16", "fast")])
def test_error_functions_of_all_numbers(kind, numerics):
    """Rounded to bf16 alone it takes fewer instructions: that and what GELU makes of it are rounded well."""
    dtype = {"bf16": torch.bfloat16, "f16": torch.float16}[kind]
    x = torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16).view(dtype)
    made = GELU.replace("KIND", kind).replace("NUMERICS", numerics)
    found, wanted, text = in_interpreter(run_text, made, None, [x, x * 0, x * 0])
    assert ("quick_erf" in text) == (kind == "bf16" and numerics == "fast")
    exact = torch.special.erf(x.double() * 0.7071067690849304)
    kinds = torch.finfo(dtype)
    off = (found[2].double() - exact).abs() - kinds.smallest_normal * kinds.eps
    worst = (off / exact.abs()).nan_to_num().max()
    assert worst <= 2.0**-8 + 2.0**-13
    small = x.abs() < 3e38
    torch.testing.assert_close(found[1][small], wanted[1][small], rtol=2.0**-7, atol=1e-6)
    assert torch.equal(found[2].signbit(), wanted[2].signbit())
    assert torch.equal(found[2].isnan(), x.isnan())


PRODUCTS = """kernel k on cuda {
numerics NUMERICS
axes p0{999} ~ 999
in in0: f32[999]
in in1: f32[999]
out out0: f32[999]
once {
  v1 = load f32 in0[p0]
  v2 = load f32 in1[p0]
  v3 = mul f32 (v1, v2)
  v4 = round f32 (WHICH)
  v5 = sub f32 (v3, v4)
  store f32 set out0[p0] = v5
}
}"""


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("numerics", "which", "contracted"),
    [("fast", "v3", False), ("fast", "v1", True), ("eager", "v3", False), ("eager", "v1", False)],
)
def test_a_product_that_is_used_twice_is_one_number(numerics, which, contracted):
    """`p - round(p)` is zero where `p` is an integer that f32 holds, though `p` was rounded to it."""
    kernel = parse(PRODUCTS.replace("NUMERICS", numerics).replace("WHICH", which))
    source = emit(kernel, None, known_target("sm_90"))
    function = function_of(source.text.replace(Source.SYMBOL, "k_test"), "k_test")
    made = compile_kernel(function, KernelMeta.parse(source.meta), 90, 0, True)
    # a multiplication without `rn` may be contracted by the assembler
    assert ("fma.rn.f32" in made.ptx) == contracted
    assert ("mul.rn.f32" in made.ptx) == (not contracted)


def test_products_that_are_used_twice_are_interpreted():
    text = PRODUCTS.replace("NUMERICS", "fast").replace("WHICH", "v3")
    operands = [torch.randn(999), torch.randn(999) * 1e4, torch.zeros(999)]
    found, wanted, text = in_interpreter(run_text, text, None, operands)
    assert "mul_rn" in text and torch.equal(found[2], wanted[2])
