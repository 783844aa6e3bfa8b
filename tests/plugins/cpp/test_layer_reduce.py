"""Horizontal reductions, arg reductions and Welford combines of the vector layer, at every width."""

from __future__ import annotations

import pytest
import torch

from cpp_layer import DTYPES, FLOATS, SIGNED, UNSIGNED, Level, build, level_params

SIMPLE = {
    "add": ("0", FLOATS + SIGNED + UNSIGNED), "mul": ("1", FLOATS + SIGNED + UNSIGNED),
    "min": (None, FLOATS + SIGNED + UNSIGNED), "max": (None, FLOATS + SIGNED + UNSIGNED),
    "xor": ("0", SIGNED + UNSIGNED), "and": (None, SIGNED + UNSIGNED), "or": ("0", SIGNED + UNSIGNED),
}  # fmt: skip
OPERATOR = {
    "min": "minimum",
    "max": "maximum",
    "xor": "bitwise_xor",
    "and": "bitwise_and",
    "or": "bitwise_or",
}


def reduce_text(op: str, dtype: str) -> str:
    """Reduce full vectors, then the remainder by scalars; n is a positive multiple of nothing."""
    combine = OPERATOR.get(op, op)
    return f"""
extern "C" void {op}_{dtype}(const {dtype}* a, {dtype}* o, i64 n) {{
  {dtype} r = a[0]; i64 i = 1;
  if (n >= PF_W) {{
    auto v = load<Vec>(a);
    for (i = PF_W; i + PF_W <= n; i += PF_W) v = {combine}(v, load<Vec>(a + i));
    r = reduce_{op}(v);
  }}
  for (; i < n; ++i) r = {combine}(r, a[i]);
  *o = r;
}}
"""


@pytest.mark.parametrize("level", level_params())
def test_simple_reductions(level: Level) -> None:
    cases = [(op, dtype) for op, (_, dtypes) in SIMPLE.items() for dtype in dtypes]
    text = "".join(reduce_text(op, dtype) for op, dtype in cases)
    text += """
extern "C" void anyall(const bool* a, bool* o) {
  auto m = load<Vec>(a);
  o[0] = any(m); o[1] = all(m);
  o[2] = reduce_or(m); o[3] = reduce_and(m);
  o[4] = reduce_max(m); o[5] = reduce_min(m);
}
"""
    kernels = {f"{op}_{dtype}": "ppi" for op, dtype in cases} | {"anyall": "pp"}
    run = build(level, text, kernels, ("reduce",))
    for op, dtype in cases:
        for n in (1, 4, 16, 35, 64):
            a = torch.randint(1, 4, (n,)).to(DTYPES[dtype])
            out = torch.zeros(1, dtype=DTYPES[dtype])
            run[f"{op}_{dtype}"](a, out, n)
            wide = a.to(torch.float64 if dtype in FLOATS else torch.int64)
            expected = wide[0]
            for x in wide[1:]:
                expected = {
                    "add": torch.add, "mul": torch.mul, "min": torch.minimum, "max": torch.maximum,
                    "xor": torch.bitwise_xor, "and": torch.bitwise_and, "or": torch.bitwise_or,
                }[op](expected, x)  # fmt: skip
            expected = expected.to(DTYPES[dtype])
            if dtype == "f32" and op == "mul":
                assert torch.allclose(out[0], expected, rtol=1e-5), (op, dtype, n)
            else:
                assert torch.equal(out[0], expected), (op, dtype, n)
    for op in ("min", "max"):
        for dtype in FLOATS:
            for at in range(20):
                a = torch.arange(20, dtype=DTYPES[dtype])
                a[at] = float("nan")
                out = torch.zeros(1, dtype=DTYPES[dtype])
                run[f"{op}_{dtype}"](a, out, 20)
                assert out.isnan().all(), (op, dtype, at)
    for pattern in (0, 1, -1):
        a = torch.ones(16, dtype=torch.bool) if pattern < 0 else torch.zeros(16, dtype=torch.bool)
        if pattern == 1:
            a[level.lanes // 2] = True
        out = torch.zeros(6, dtype=torch.bool)
        run["anyall"](a, out)
        part = a[: level.lanes]
        assert out.tolist() == [part.any().item(), part.all().item()] * 3


ARG = """
extern "C" void arg{op}_{dtype}(const {dtype}* a, {dtype}* v, i64* x, i64 n) {{
  best<Vec::of<{dtype}>> b = {{load<Vec>(a), iota<Vec, i64>(0)}};
  i64 i = PF_W;
  for (; i + PF_W <= n; i += PF_W)
    b = arg{op}_combine(b, best<Vec::of<{dtype}>>{{load<Vec>(a + i), iota<Vec, i64>(i)}});
  auto r = arg{op}_reduce(b);
  for (; i < n; ++i) r = arg{op}_combine(r, best<{dtype}>{{a[i], i}});
  *v = r.value; *x = r.index;
}}
"""


@pytest.mark.parametrize("level", level_params())
def test_arg_reductions(level: Level) -> None:
    cases = [(op, dtype) for op in ("min", "max") for dtype in (*FLOATS, "i8", "i32", "i64", "u8")]
    text = "".join(ARG.format(op=op, dtype=dtype) for op, dtype in cases)
    run = build(level, text, {f"arg{op}_{dtype}": "pppi" for op, dtype in cases}, ("reduce",))
    for op, dtype in cases:
        for trial in range(6):
            n = 16 + 7 * trial
            a = torch.randint(0, 9, (n,), generator=torch.Generator().manual_seed(trial)).to(DTYPES[dtype])
            if dtype in FLOATS and trial > 2:
                a[trial * 3] = float("nan")
                a[trial * 5] = float("nan")
            value, index = torch.zeros(1, dtype=a.dtype), torch.zeros(1, dtype=torch.int64)
            run[f"arg{op}_{dtype}"](a, value, index, n)
            plain = a.tolist()
            nans = [i for i, x in enumerate(plain) if x != x]
            expected = nans[0] if nans else plain.index(min(plain) if op == "min" else max(plain))
            assert index.item() == expected, (op, dtype, trial)
            assert torch.equal(value, a[expected : expected + 1]) or value.isnan().all()


WELFORD = """
extern "C" void welford_{dtype}(const {dtype}* a, {dtype}* o, i64 n) {{
  moments<Vec::of<{dtype}>> m = {{}};
  i64 i = 0;
  for (; i + PF_W <= n; i += PF_W) m = welford_add(m, load<Vec>(a + i));
  auto r = welford_reduce(m);
  moments<{dtype}> t = {{}};
  for (; i < n; ++i) t = welford_add(t, a[i]);
  r = welford_combine(r, t);
  o[0] = r.mean; o[1] = r.m2 / r.count; o[2] = r.count;
}}
"""


@pytest.mark.parametrize("level", level_params())
def test_welford(level: Level) -> None:
    text = "".join(WELFORD.format(dtype=dtype) for dtype in FLOATS)
    run = build(level, text, {f"welford_{dtype}": "ppi" for dtype in FLOATS}, ("reduce",))
    for dtype in FLOATS:
        for n in (1, 3, 16, 100, 1001):
            a = torch.randn(n, dtype=DTYPES[dtype]) + 100
            out = torch.zeros(3, dtype=a.dtype)
            run[f"welford_{dtype}"](a, out, n)
            exact = torch.stack([a.double().mean(), a.double().var(unbiased=False), torch.tensor(float(n))])
            assert torch.allclose(out.double(), exact, rtol=1e-4 if dtype == "f32" else 1e-10, atol=1e-5), (
                dtype,
                n,
            )
