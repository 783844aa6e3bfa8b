"""Reductions and scans of the C++ backend against torch."""

from __future__ import annotations

import pytest
import torch

from cpp_kernels import KernelBuilder, compiled
from polyfuse.ir.types import DType
from polyfuse.symbolic import axis, symbol

f32, i64, boolean = DType.f32, DType.i64, DType.bool
pytestmark = pytest.mark.each_value
ISAS = ("", "avx2", "scalar")
TORCH = {"sum": torch.sum, "prod": torch.prod, "min": torch.amin, "max": torch.amax}


def reduction(kind: str, m: int, n: int, dim: int, dtype: DType = f32) -> KernelBuilder:
    """One reduction of an (m, n) tensor over a dimension."""
    k = KernelBuilder({"x0": n if dim == 0 else m}, {"r0": m if dim == 0 else n})
    k.arg("a", dtype), k.out("o", dtype)
    s = k.section(True)
    i = k["r0"] * n + k["x0"] if dim == 0 else k["x0"] * n + k["r0"]
    result = s.reduce(kind, s.load("a", i))
    s = k.section()
    s.store("o", k["x0"], result)
    return k


SHAPES = ((1, 1), (5, 3), (33, 70), (7, 16), (3, 1000), (1000, 3), (2, 33333))


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    ("shape", "isa"), [(s, isa) for s in SHAPES for isa in ISAS if not isa or s[0] * s[1] <= 3000]
)
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("kind", list(TORCH))
def test_plain(kind: str, shape: tuple[int, int], dim: int, isa: str) -> None:
    a = torch.rand(shape) + 0.5 if kind != "prod" else 1 + torch.randn(shape) * 0.001
    want = TORCH[kind](a.double(), dim).float()
    o = torch.zeros_like(want)
    compiled(reduction(kind, *shape, dim).build(), isa)(a, o)
    torch.testing.assert_close(o, want, rtol=2e-6 if kind != "prod" else 1e-4, atol=1e-6)


@pytest.mark.quick(2)
@pytest.mark.parametrize("dtype", [DType.f64, DType.i64, DType.i32, DType.u8])
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("kind", ["sum", "max", "min"])
def test_types(kind: str, dim: int, dtype: DType) -> None:
    a = torch.randint(0, 100, (41, 57)).to(dtype.torch)
    want = TORCH[kind](a, dim).to(dtype.torch)
    o = torch.zeros_like(want)
    compiled(reduction(kind, 41, 57, dim, dtype).build())(a, o)
    assert torch.equal(o, want)


@pytest.mark.quick(1)
@pytest.mark.parametrize("dim", [0, 1])
def test_nan_wins(dim: int) -> None:
    a = torch.randn(40, 50)
    a[3, 7] = a[20, 49] = float("nan")
    for kind in ("min", "max"):
        want = TORCH[kind](a, dim)
        o = torch.zeros_like(want)
        compiled(reduction(kind, 40, 50, dim).build())(a, o)
        torch.testing.assert_close(o, want, equal_nan=True)


@pytest.mark.quick(1)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("count", [1, 5, 12])
def test_many_results_of_one_long_row(count: int, isa: str) -> None:
    """Chunks have loops of their own: lanes do not run along them, whatever is stored for each."""
    n = 400_000
    k = KernelBuilder({}, {"r0": n})
    k.arg("a")
    for i in range(count):
        k.out(f"o{i}")
    s = k.section(True)
    value = s.load("a", k["r0"])
    results = [s.reduce("sum", s.op("mul", value, s.const(float(i + 1)))) for i in range(count)]
    s = k.section()
    for i, result in enumerate(results):
        s.store(f"o{i}", 0, result)
    a = torch.rand(n)
    out = [torch.zeros(1) for _ in range(count)]
    compiled(k.build(), isa)(a, *out)
    for i, result in enumerate(out):
        torch.testing.assert_close(result[0], (a.double().sum() * (i + 1)).float(), rtol=2e-6, atol=0)


@pytest.mark.quick(2)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("kind", ["any", "all"])
def test_bool(kind: str, dim: int, isa: str) -> None:
    a = torch.rand(37, 45) > (0.97 if kind == "any" else 0.03)
    want = getattr(torch, kind)(a, dim)
    o = torch.zeros_like(want)
    compiled(reduction(kind, 37, 45, dim, boolean).build(), isa)(a, o)
    assert torch.equal(o, want)


@pytest.mark.quick(2)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("kind", ["argmax", "argmin"])
@pytest.mark.parametrize("content", ["random", "ties", "nan", "infinite"])
def test_arg(content: str, kind: str, dim: int, isa: str) -> None:
    m, n = 37, 75
    k = KernelBuilder({"x0": n if dim == 0 else m}, {"r0": m if dim == 0 else n})
    k.arg("a"), k.out("o"), k.out("p", i64)
    s = k.section(True)
    i = k["r0"] * n + k["x0"] if dim == 0 else k["x0"] * n + k["r0"]
    value, position = s.reduce(kind, s.load("a", i), s.index(k["r0"]))
    s = k.section()
    s.store("o", k["x0"], value)
    s.store("p", k["x0"], position)
    a = {
        "random": torch.randn(m, n),
        "ties": torch.randint(0, 3, (m, n)).float(),
        "nan": torch.where(torch.rand(m, n) < 0.05, torch.nan, torch.randn(m, n)),
        "infinite": torch.full((m, n), float("-inf") if kind == "argmax" else float("inf")),
    }[content]
    want, at = (torch.max if kind == "argmax" else torch.min)(a, dim)
    at = getattr(torch, kind)(a, dim)
    o, p = torch.zeros_like(want), torch.zeros_like(at)
    compiled(k.build(), isa)(a, o, p)
    torch.testing.assert_close(o, want, equal_nan=True)
    assert torch.equal(p, at)


@pytest.mark.quick(4)
@pytest.mark.parametrize(
    ("shape", "isa"),
    [(s, isa) for s in ((4, 7), (33, 200)) for isa in ISAS] + [((3, 5000), ""), ((5000, 17), "")],
)
@pytest.mark.parametrize("dim", [0, 1])
def test_welford(shape: tuple[int, int], dim: int, isa: str) -> None:
    m, n = shape
    k = KernelBuilder({"x0": n if dim == 0 else m}, {"r0": m if dim == 0 else n})
    k.arg("a"), k.out("o"), k.out("p"), k.out("q")
    s = k.section(True)
    i = k["r0"] * n + k["x0"] if dim == 0 else k["x0"] * n + k["r0"]
    results = s.reduce("welford", s.load("a", i))
    s = k.section()
    for buffer, result in zip("opq", results):
        s.store(buffer, k["x0"], result)
    a = torch.randn(shape) + 100
    out = [torch.zeros(k["x0"].terms[0][0][0].args[0]) for _ in range(3)]
    compiled(k.build(), isa)(a, *out)
    size = shape[dim]
    torch.testing.assert_close(out[0], a.double().mean(dim).float(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(
        out[1] / size, a.double().var(dim, unbiased=False).float(), rtol=1e-4, atol=1e-6
    )
    assert torch.equal(out[2], torch.full_like(out[2], size))


@pytest.mark.quick(2)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("shape", [(4, 7), (33, 200), (3, 5000)])
def test_online_softmax(shape: tuple[int, int], dim: int, isa: str) -> None:
    m, n = shape
    k = KernelBuilder({"x0": n if dim == 0 else m}, {"r0": m if dim == 0 else n})
    k.arg("a"), k.out("o"), k.out("p")
    s = k.section(True)
    i = k["r0"] * n + k["x0"] if dim == 0 else k["x0"] * n + k["r0"]
    high, total = s.reduce("online_softmax", s.load("a", i))
    s = k.section()
    s.store("o", k["x0"], high)
    s.store("p", k["x0"], s.op("add", s.op("log", total), high))
    a = torch.randn(shape) * 5
    a[1, :3] = float("-inf")
    want = a.amax(dim)
    o, p = torch.zeros_like(want), torch.zeros_like(want)
    compiled(k.build(), isa)(a, o, p)
    assert torch.equal(o, want)
    torch.testing.assert_close(p, a.double().logsumexp(dim).float())


@pytest.mark.quick(2)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("shape", [(6, 10), (40, 130), (1, 1)])
def test_softmax_with_a_row_buffer(shape: tuple[int, int], dim: int, isa: str) -> None:
    m, n = shape
    k = KernelBuilder({"x0": n if dim == 0 else m}, {"r0": m if dim == 0 else n})
    k.arg("a"), k.out("o"), k.local("e", m if dim == 0 else n)
    i = k["r0"] * n + k["x0"] if dim == 0 else k["x0"] * n + k["r0"]
    s = k.section(True)
    high = s.reduce("max", s.load("a", i))
    s = k.section(True)
    e = s.op("exp", s.op("sub", s.load("a", i), high))
    s.store("e", k["r0"], e)
    total = s.reduce("sum", e)
    s = k.section(True)
    s.store("o", i, s.op("div", s.load("e", k["r0"]), total))
    a, o = torch.randn(shape), torch.zeros(shape)
    compiled(k.build(), isa)(a, o)
    torch.testing.assert_close(o, a.softmax(dim))


@pytest.mark.parametrize("threads", [1, 2])
def test_layer_norm_of_any_size(threads: int) -> None:
    rows, cols = symbol("s0"), symbol("s1", 1)
    k = KernelBuilder({"x0": rows}, {"r0": cols}, hints=(64, 768))
    (
        k.arg("a", DType.bf16),
        k.arg("w"),
        k.arg("b"),
        k.out("o", DType.bf16),
        k.out("mean"),
        k.size("s0"),
        k.size("s1"),
    )
    i = k["x0"] * cols + k["r0"]
    s = k.section(True)
    mean, m2, count = s.reduce("welford", s.cast(s.load("a", i), f32))
    s = k.section()
    scale = s.op("rsqrt", s.op("add", s.op("div", m2, count), s.const(1e-5)))
    s.store("mean", k["x0"], mean)
    s = k.section(True)
    x = s.op("mul", s.op("sub", s.cast(s.load("a", i), f32), mean), scale)
    x = s.op("add", s.op("mul", x, s.load("w", k["r0"])), s.load("b", k["r0"]))
    s.store("o", i, s.cast(x, DType.bf16))
    run = compiled(k.build())
    torch.set_num_threads(threads)
    for m, n in ((0, 5), (1, 1), (3, 15), (4, 16), (300, 17), (200, 768), (2, 3000)):
        a, w, b = torch.randn(m, n).bfloat16(), torch.randn(n), torch.randn(n)
        o, mu = torch.zeros_like(a), torch.zeros(m)
        run(a, w, b, o, mu, m, n)
        want = torch.nn.functional.layer_norm(a.float(), (n,), w, b).bfloat16()
        torch.testing.assert_close(o, want, rtol=1.6e-2, atol=1e-2)
        torch.testing.assert_close(mu, a.float().mean(-1), rtol=1e-4, atol=1e-5)
    torch.set_num_threads(1)


@pytest.mark.quick(2)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dims", [(0, 2), (1, 2), (0, 1, 2), (0, 1)])
def test_several_reduction_axes(dims: tuple[int, ...], isa: str) -> None:
    shape = (5, 19, 37)
    names = ["d0", "d1", "d2"]
    k = KernelBuilder(
        {names[d]: shape[d] for d in range(3) if d not in dims}, {names[d]: shape[d] for d in dims}
    )
    k.arg("a"), k.out("o"), k.out("p")
    i = k["d0"] * (19 * 37) + k["d1"] * 37 + k["d2"]
    left = [d for d in range(3) if d not in dims]
    j = 0
    for d in left:
        j = j * shape[d] + k[names[d]]
    s = k.section(True)
    x = s.load("a", i)
    total = s.reduce("sum", x)
    mean, m2, _ = s.reduce("welford", x)
    s = k.section()
    s.store("o", j, total)
    s.store("p", j, s.op("add", s.op("mul", mean, s.const(2.0)), m2))
    a = torch.randn(shape)
    want = a.double().sum(dims)
    o, p = torch.zeros(want.shape), torch.zeros(want.shape)
    compiled(k.build(), isa)(a, o, p)
    torch.testing.assert_close(o, want.float(), rtol=1e-5, atol=1e-5)
    n = a.numel() // max(1, want.numel())
    torch.testing.assert_close(
        p, (a.double().mean(dims) * 2 + a.double().var(dims, unbiased=False) * n).float()
    )


def test_large_sum_is_accurate() -> None:
    for m, n, dim in ((1, 3_000_000, 1), (2_000_000, 1, 0), (100_000, 24, 0)):
        a = torch.rand(m, n)
        want = a.double().sum(dim)
        o = torch.zeros(want.shape)
        compiled(reduction("sum", m, n, dim).build())(a, o)
        torch.testing.assert_close(o.double(), want, rtol=1e-6, atol=0)


@pytest.mark.quick(3)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("kind", ["sum", "prod", "logsumexp", "max", "min"])
def test_scans(kind: str, dim: int, isa: str) -> None:
    m, n = 23, 50
    k = KernelBuilder({"x0": n if dim == 0 else m}, {"r0": m if dim == 0 else n})
    k.arg("a"), k.out("o")
    i = k["r0"] * n + k["x0"] if dim == 0 else k["x0"] * n + k["r0"]
    s = k.section(True)
    x = s.load("a", i)
    if kind in ("max", "min"):
        k.out("p", i64)
        result, position = s.scan(kind, x, s.index(k["r0"]))
        s.store("p", i, position)
    else:
        result = s.scan(kind, x)
    s.store("o", i, result)
    a = torch.randn(m, n)
    if kind in ("max", "min"):
        a = torch.randint(0, 5, (m, n)).float()
    o, p = torch.zeros(m, n), torch.zeros(m, n, dtype=torch.int64)
    compiled(k.build(), isa)(a, o, *((p,) if kind in ("max", "min") else ()))
    if kind in ("max", "min"):
        want, at = getattr(torch, f"cum{kind}")(a, dim)
        assert torch.equal(o, want) and torch.equal(p, at)
    else:
        function = {"sum": torch.cumsum, "prod": torch.cumprod, "logsumexp": torch.logcumsumexp}[kind]
        torch.testing.assert_close(o, function(a, dim), rtol=1e-4, atol=1e-4)


def test_sum_by_index() -> None:
    k = KernelBuilder({"x0": 30}, {"r0": 100})
    k.arg("a"), k.arg("ids", i64), k.out("o")
    s = k.section(True)
    total = s.reduce("sum", s.load("a", axis("@0", 50) * 100 + k["r0"], s.load("ids", k["x0"])))
    s = k.section()
    s.store("o", k["x0"], total)
    a, ids, o = torch.randn(50, 100), torch.randint(0, 50, (30,)), torch.zeros(30)
    compiled(k.build())(a, ids, o)
    torch.testing.assert_close(o, a[ids].sum(-1), rtol=1e-5, atol=1e-5)
