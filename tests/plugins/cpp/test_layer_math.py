"""Elementary functions of the vector layer: error in units in the last place, and special values, at every
width."""

from __future__ import annotations

import ctypes
import ctypes.util
import math
from collections.abc import Callable

import pytest
import torch

from cpp_kernels import KernelBuilder, compiled
from cpp_layer import Level, Op, build_ops, level_params, run
from polyfuse.checking.launch import check_launch
from polyfuse.checking.operands import layout_of
from polyfuse.ir.text.parse import parse_kernel
from polyfuse.ir.types import DType

_NOT_EXACT_ALONE = 0x1F
"""Flags of the C library on x86 that say more than that a result was rounded."""
INF, NAN = float("inf"), float("nan")
SPECIALS = [
    NAN,
    INF,
    -INF,
    0.0,
    -0.0,
    1.0,
    -1.0,
    1e-45,
    -1e-45,
    1e-40,
    -1e-40,
    3.4e38,
    -3.4e38,
    0.5,
    -0.5,
    2.0,
    -2.0,
]

# name: (function of torch, error allowed in ulp for f32, range worth extra samples)
UNARY: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], float, tuple[float, float]]] = {
    "exp": (torch.exp, 1.5, (-105, 90)),
    "exp2": (torch.exp2, 1.5, (-151, 129)),
    "expm1": (torch.expm1, 2, (-20, 90)),
    "log": (torch.log, 1.5, (0, 3)),
    "log2": (torch.log2, 2, (0, 3)),
    "log10": (torch.log10, 2, (0, 3)),
    "log1p": (torch.log1p, 2, (-1, 2)),
    "sin": (torch.sin, 1.5, (-1000, 1000)),
    "cos": (torch.cos, 1.5, (-1000, 1000)),
    "tan": (torch.tan, 2.5, (-1000, 1000)),
    "asin": (torch.asin, 2, (-1, 1)),
    "acos": (torch.acos, 2, (-1, 1)),
    "atan": (torch.atan, 2, (-4, 4)),
    "sinh": (torch.sinh, 2, (-90, 90)),
    "cosh": (torch.cosh, 2, (-90, 90)),
    "tanh": (torch.tanh, 2, (-10, 10)),
    "asinh": (torch.asinh, 2.5, (-10, 10)),
    "acosh": (torch.acosh, 3, (1, 10)),
    "atanh": (torch.atanh, 2.5, (-1, 1)),
    "erf": (torch.erf, 1.8, (-4, 4)),
    "erfc": (torch.erfc, 4, (-4, 10.2)),
    "erfinv": (torch.erfinv, 3.5, (-1, 1)),
    "sigmoid": (torch.sigmoid, 2.5, (-88, 88)),
    "rsqrt": (torch.rsqrt, 1.5, (0, 4)),
    "lgamma": (torch.lgamma, 4, (0, 30)),
    "digamma": (torch.digamma, 3, (0.01, 30)),
}
BINARY: dict[str, tuple[Callable[..., torch.Tensor], float]] = {
    "pow": (torch.pow, 1.5),
    "atan2": (torch.atan2, 2.5),
    "hypot": (torch.hypot, 1.0),
}


def samples(low: float, high: float, dtype: torch.dtype) -> torch.Tensor:
    """Every exponent of f32, the interesting range, and special values."""
    generator = torch.Generator().manual_seed(0)
    bits = (
        torch.randint(-(2**31), 2**31 - 1, (60000,), generator=generator).to(torch.int32).view(torch.float32)
    )
    dense = torch.rand(60000, generator=generator, dtype=torch.float64) * (high - low) + low
    every = torch.tensor(SPECIALS, dtype=torch.float64)
    return torch.cat([every, bits.double(), dense]).to(dtype)


def ulp_error(actual: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Distance to *exact* (f64) in units of the last place of the dtype of *actual*; 0 where both are not
    finite alike."""
    rounded = exact.to(actual.dtype)
    inf = torch.tensor(INF, dtype=actual.dtype)
    spacing = torch.nextafter(rounded.abs(), inf) - rounded.abs()
    error = ((actual.double() - exact) / spacing.double()).abs()
    alike = (actual == rounded) | (actual.isnan() & rounded.isnan())
    error = torch.where(alike & ~torch.isfinite(rounded), torch.zeros_like(error), error)
    return torch.where(torch.isfinite(error), error, torch.full_like(error, INF))


def report(
    name: str, inputs: tuple[torch.Tensor, ...], actual: torch.Tensor, exact: torch.Tensor, allowed: float
) -> str:
    """An empty string, or the worst cases."""
    error = ulp_error(actual, exact)
    if (error <= allowed).all():
        return ""
    worst = error.argsort(descending=True)[:4]
    rows = [
        (tuple(x[i].item() for x in inputs), actual[i].item(), exact[i].item(), error[i].item())
        for i in worst
    ]
    return f"{name}: {int((error > allowed).sum())} beyond {allowed} ulp; (inputs, ours, exact, ulp): {rows}"


def known(name: str, x: torch.Tensor) -> torch.Tensor:
    """Inputs on which the f64 function of torch is a fair reference."""
    if name == "sigmoid":  # exp(-x) overflows below, in torch too
        return x[~((x < -88) & (x > -200))].clone()
    if name in ("lgamma", "digamma"):  # cancellation at the zeros, poles below zero
        return x[
            ~((x < 0.001) & (x != 0))
            & ~(((x - 1.4616).abs() < 0.2) | ((x - 2).abs() < 0.2) | ((x - 1).abs() < 0.2))
        ].clone()
    return x


@pytest.mark.parametrize("first", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("level", level_params())
def test_f32_functions(level: Level, first: int) -> None:
    """Every second function, beginning with `first`; models' tests compile all of them."""
    ops = [Op(f"{name}__f32", f"{name}(a)", ("f32",), "f32") for name in list(UNARY)[first::2]]
    ops += [Op(f"{name}__f32", f"{name}(a, b)", ("f32", "f32"), "f32") for name in list(BINARY)[first::2]]
    kernels = build_ops(level, ops)
    failures = []
    for op in ops:
        name = op.name.split("__")[0]
        if name in UNARY:
            function, allowed, (low, high) = UNARY[name]
            inputs: tuple[torch.Tensor, ...] = (known(name, samples(low, high, torch.float32)),)
        else:
            function, allowed = BINARY[name]
            x, y = samples(0, 20, torch.float32), samples(-10, 10, torch.float32)
            grid = torch.tensor([*SPECIALS, 3.0, -3.0, 2.5, -2.5, 1e10])
            inputs = (
                torch.cat([x, grid.repeat(len(grid))]),
                torch.cat([y.flip(0), grid.repeat_interleave(len(grid))]),
            )
        exact = function(*(x.double() for x in inputs))
        for form in "vs":
            got = run(kernels, form, op, *inputs)
            failures.append(report(f"{form}_{op.name}", inputs, got, exact, allowed))
            odd = (got == 0) & (exact == 0) & (got.signbit() != exact.signbit())
            if odd.any():
                where = odd.nonzero().flatten()[:3]
                failures.append(
                    f"{op.name}: sign of zero at {[tuple(x[i].item() for x in inputs) for i in where]}"
                )
    assert not any(failures), "\n".join(filter(None, failures))


@pytest.mark.parametrize("level", level_params())
def test_f64_functions(level: Level) -> None:
    ops = [Op(f"{name}__f64", f"{name}(a)", ("f64",), "f64") for name in UNARY]
    ops += [Op(f"{name}__f64", f"{name}(a, b)", ("f64", "f64"), "f64") for name in BINARY]
    kernels = build_ops(level, ops)
    failures = []
    for op in ops:
        name = op.name.split("__")[0]
        allowed = 6.0  # torch's own error included
        if name in UNARY:
            function, _, (low, high) = UNARY[name]
            inputs: tuple[torch.Tensor, ...] = (known(name, samples(low, high, torch.float64)),)
            if name == "digamma":
                allowed = 20
        else:
            function, _ = BINARY[name]
            inputs = (samples(0, 20, torch.float64), samples(-10, 10, torch.float64).flip(0))
        exact = function(*inputs)
        for form in "vs":
            failures.append(
                report(f"{form}_{op.name}", inputs, run(kernels, form, op, *inputs), exact, allowed)
            )
    assert not any(failures), "\n".join(filter(None, failures))


@pytest.mark.parametrize("level", level_params())
def test_lgamma_is_zero_where_it_should_be(level: Level) -> None:
    ops = [Op(f"lgamma__{kind}", "lgamma(a)", (kind,), kind) for kind in ("f32", "f64")]
    kernels = build_ops(level, ops)
    for op, dtype in zip(ops, (torch.float32, torch.float64), strict=True):
        x = torch.tensor([1.0, 2.0, 3.0], dtype=dtype).repeat(11)
        for form in "vs":
            assert torch.equal(run(kernels, form, op, x) == 0, x < 3)


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", [DType.f32, DType.f64])
@pytest.mark.parametrize("name", ["exp", "exp2"])
def test_what_is_masked_is_nothing_special(name: str, dtype: DType) -> None:
    flags = ctypes.CDLL(ctypes.util.find_library("m"))
    k = KernelBuilder({"x0": 100})
    k.arg("a", dtype), k.out("o", dtype)
    s = k.section()
    s.store("o", k["x0"], s.op(name, s.load("a", k["x0"])))
    kernel = k.build()
    a, out = torch.randn(100, dtype=dtype.torch), torch.zeros(100, dtype=dtype.torch)
    a[::3], a[1::3] = -torch.inf, torch.finfo(dtype.torch).min
    want = getattr(torch, name)(a.double()).to(dtype.torch)
    for isa in ("", "avx2", "sse"):
        compiled(kernel, isa)(a, out)
        flags.feclearexcept(_NOT_EXACT_ALONE)
        compiled(kernel, isa)(a, out)
        assert not flags.fetestexcept(_NOT_EXACT_ALONE)
        torch.testing.assert_close(out, want)


@pytest.mark.parametrize("level", level_params())
def test_erf_ends_at_one_and_has_one_value_in_vectors_and_alone(level: Level) -> None:
    op = Op("erf__f32", "erf(a)", ("f32",), "f32")
    kernels = build_ops(level, [op])
    # around where results are looked up elsewhere, and where they become one
    edges = torch.arange(0, 62) / 15.0
    near = torch.cat([edges, edges.nextafter(edges + 1), edges.nextafter(edges - 1)])
    x = torch.cat([samples(-5, 5, torch.float32), near, -near])
    vectors, alone = (run(kernels, form, op, x) for form in "vs")
    assert torch.equal(vectors.view(torch.int32)[~x.isnan()], alone.view(torch.int32)[~x.isnan()])
    assert (vectors.abs() <= 1)[~x.isnan()].all()
    assert (vectors.abs() == 1)[x.abs() >= 4].all()
    assert report("erf", (x,), vectors, torch.erf(x.double()), 1.8) == ""


@pytest.mark.parametrize("level", level_params())
def test_the_form_of_erf_for_results_of_bf16(level: Level) -> None:
    op = Op("coarse_erf__f32", "coarse_erf(a)", ("f32",), "f32")
    kernels = build_ops(level, [op])
    x = samples(-5, 5, torch.float32)
    exact, rest = torch.erf(x.double()), torch.erfc(x.double().abs())
    for form in "vs":
        got = run(kernels, form, op, x)
        assert torch.equal(got.isnan(), x.isnan())
        assert torch.equal(got.signbit()[~x.isnan()], x.signbit()[~x.isnan()])
        error = (got.double() - exact).abs()
        sane = x.abs() > 1e-37
        assert (error <= 2**-13 * exact.abs() + 1e-45)[sane].all()
        assert (error <= 2**-13 * rest + 2e-7)[~x.isnan()].all()


GELU = """kernel k on cpu {
  numerics fast
  axes p0{65536} ~ 65536
  in in0: bf16[65536]
  out out0: bf16[65536]
  once {
    v0 = load bf16 in0[p0]
    v1 = cast f32 (v0)
    v2 = const f32 0.5
    v3 = mul f32 (v1, v2)
    v4 = const f32 0.7071067811865476
    v5 = mul f32 (v1, v4)
    v6 = erf f32 (v5)
    v7 = const f32 1.0
    v8 = add f32 (v6, v7)
    v9 = mul f32 (v3, v8)
    v10 = cast bf16 (v9)
    store bf16 set out0[p0] = v10
  }
}
"""


def test_a_gelu_of_bf16_agrees_with_the_interpreter() -> None:
    """Its `erf` is coarser than the table of operations allows elsewhere; `check="first"` knows."""
    every = torch.arange(-(2**15), 2**15).short().view(torch.bfloat16)
    kernel, operands = parse_kernel(GELU), (every, torch.empty_like(every))
    layout = layout_of(kernel, operands)
    assert layout is not None
    found = check_launch(kernel, compiled(kernel), operands, layout)
    assert not found.problem and not found.unknown


@pytest.mark.parametrize("level", level_params())
def test_fmod_of_f64_is_exact(level: Level) -> None:
    op = Op("fmod__f64", "fmod(a, b)", ("f64", "f64"), "f64")
    kernels = build_ops(level, [op])
    y = samples(-3, 3, torch.float64)
    multiples = y * torch.randint(1, 1 << 20, y.shape)
    above = torch.nextafter(multiples, torch.tensor(INF, dtype=torch.float64))
    edges = torch.tensor([*SPECIALS, 5e-324, 1.7e308, 2.0**52, 2.0**53 + 2], dtype=torch.float64)
    a = torch.cat([multiples, above, y.flip(0), edges.repeat(len(edges))])
    b = torch.cat([y, y, y, edges.repeat_interleave(len(edges))])

    def one(m: float, n: float) -> float:
        return math.fmod(m, n) if n != 0 and math.isfinite(m) and not math.isnan(n) else NAN

    exact = torch.tensor(
        [one(m, n) for m, n in zip(a.tolist(), b.tolist(), strict=True)], dtype=torch.float64
    )
    for form in "vs":
        got = run(kernels, form, op, a, b)
        same = got.view(torch.int64) == exact.view(torch.int64)
        assert (same | (got.isnan() & exact.isnan())).all()
