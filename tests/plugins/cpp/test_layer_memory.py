"""Loads, stores, gathers, scatters and atomics of the vector layer, with their tails, at every width."""

from __future__ import annotations

import mmap

import pytest
import torch

from cpp_layer import DTYPES, Level, build, level_params

MEMORY_TYPES = tuple(DTYPES)


def text_for(dtype: str) -> tuple[str, dict[str, str]]:
    """Kernels that move elements of *dtype* in every way."""
    value = "f32" if dtype in ("bf16", "f16") else dtype
    text = f"""
extern "C" void copy_{dtype}(const {dtype}* a, {dtype}* o, i64 n) {{
  i64 i = 0;
  for (; i + PF_W <= n; i += PF_W) store(o + i, load<Vec>(a + i));
  if (i < n) store_n(o + i, load_n<Vec>(a + i, n - i), n - i);
}}
extern "C" void strided_{dtype}(const {dtype}* a, {dtype}* o, i64 n, i64 s) {{
  i64 i = 0;
  for (; i + PF_W <= n; i += PF_W) store_strided(o + i * s, load_strided<Vec>(a + i * s, s), s);
  if (i < n) store_strided_n(o + i * s, load_strided_n<Vec>(a + i * s, s, n - i), s, n - i);
}}
extern "C" void gather_{dtype}(const {dtype}* a, const i64* x, {dtype}* o, i64 n) {{
  i64 i = 0;
  for (; i + PF_W <= n; i += PF_W) store(o + i, gather(a, load<Vec>(x + i)));
  for (; i < n; ++i) store(o + i, gather(a, load<Sca>(x + i)));
}}
extern "C" void gather32_{dtype}(const {dtype}* a, const i32* x, const bool* m, {dtype}* o, i64 n) {{
  i64 i = 0;
  for (; i + PF_W <= n; i += PF_W) store(o + i, gather(a, load<Vec>(x + i), load<Vec>(m + i)));
  if (i < n) {{
    auto mask = bitwise_and(load_n<Vec>(m + i, n - i), first_n<Vec>(n - i));
    store_n(o + i, gather(a, load_n<Vec>(x + i, n - i), mask), n - i);
  }}
}}
extern "C" void scatter_{dtype}({dtype}* o, const i64* x, const bool* m, const {dtype}* a, i64 n) {{
  i64 i = 0;
  for (; i + PF_W <= n; i += PF_W) scatter(o, load<Vec>(x + i), load<Vec>(a + i), load<Vec>(m + i));
  for (; i < n; ++i) scatter(o, load<Sca>(x + i), load<Sca>(a + i), load<Sca>(m + i));
}}
extern "C" void fill_{dtype}({dtype}* o) {{
  store(o, splat<Vec>({value}(1)));
  for (int i = 0; i < PF_W; i += 2) {{ auto v = load<Vec>(o); store(o, set_lane(v, i, {value}(0))); }}
}}
"""
    return text, {
        f"copy_{dtype}": "ppi", f"strided_{dtype}": "ppii", f"gather_{dtype}": "pppi",
        f"gather32_{dtype}": "ppppi",
        f"scatter_{dtype}": "ppppi", f"fill_{dtype}": "p",
    }  # fmt: skip


@pytest.mark.parametrize("level", level_params())
def test_moving_elements(level: Level) -> None:
    texts, kernels = [], {}
    for dtype in MEMORY_TYPES:
        text, signatures = text_for(dtype)
        texts.append(text)
        kernels.update(signatures)
    run = build(level, "".join(texts), kernels, ("gather",))
    # the last page of a mapping: one element too far is not ours (and usually faults)
    page = mmap.mmap(-1, mmap.PAGESIZE)
    edge = torch.frombuffer(page, dtype=torch.uint8)
    for dtype in MEMORY_TYPES:
        torch_type = DTYPES[dtype]
        size = torch.empty(0, dtype=torch_type).element_size()
        for n in (1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 40):
            bits = torch.randint(0, 2 if dtype == "bool" else 120, (n * 8,), dtype=torch.uint8)
            a = bits[: n * size].view(torch_type) if dtype != "bool" else bits[:n].view(torch.bool)
            raw = edge[edge.numel() - n * size :]
            raw.copy_(a.view(torch.uint8))
            at_edge = raw.view(torch_type)
            out = torch.zeros(n + 20, dtype=torch_type)
            run[f"copy_{dtype}"](at_edge, out, n)
            assert torch.equal(out[:n].view(torch.uint8), a.view(torch.uint8)), (dtype, n)
            assert not out[n:].view(torch.uint8).any(), (dtype, n)
            source = torch.zeros(3 * n, dtype=torch_type)
            source[::3] = a
            out = torch.zeros(3 * n, dtype=torch_type)
            run[f"strided_{dtype}"](source, out, n, 3)
            assert torch.equal(out, source), (dtype, n)
            index = torch.randperm(n)
            out = torch.zeros(n, dtype=torch_type)
            run[f"gather_{dtype}"](a, index, out, n)
            expected = torch.stack([a[i] for i in index.tolist()])
            assert torch.equal(out, expected), (dtype, n)
            mask = torch.rand(n) < 0.6
            far = torch.where(mask, index, torch.tensor(2**30)).to(torch.int32)
            run[f"gather32_{dtype}"](a, far, mask, out, n)
            zero = torch.zeros((), dtype=torch_type)
            assert torch.equal(
                out, torch.stack([e if k else zero for e, k in zip(expected, mask.tolist(), strict=True)])
            )
            out = torch.zeros(n, dtype=torch_type)
            run[f"scatter_{dtype}"](out, torch.where(mask, index, torch.tensor(2**40)), mask, a, n)
            expected = torch.zeros(n, dtype=torch_type)
            for i, k, j in zip(range(n), mask.tolist(), index.tolist(), strict=True):
                if k:
                    expected[j] = a[i]
            assert torch.equal(out, expected), (dtype, n)
        out = torch.zeros(16, dtype=torch_type)
        run[f"fill_{dtype}"](out)
        ones = torch.tensor([i % 2 if i < max(level.lanes, 1) else 0 for i in range(16)]).to(torch_type)
        assert torch.equal(out, ones), dtype


@pytest.mark.parametrize("level", level_params())
def test_atomics(level: Level) -> None:
    dtypes = ("f32", "f64", "bf16", "f16", "i8", "i16", "i32", "i64", "u8", "bool")
    texts, kernels = [], {}
    for dtype in dtypes:
        for op in ("add", "mul", "min", "max"):
            texts.append(
                f'extern "C" void {op}_{dtype}({dtype}* o, const i64* x, const {dtype}* a, i64 n) {{\n'
                "#pragma omp parallel for\n"
                f"  for (i64 i = 0; i < n; ++i) atomic_{op}(o + x[i], load<Sca>(a + i));\n}}\n"
            )
            kernels[f"{op}_{dtype}"] = "pppi"
    run = build(level, "".join(texts), kernels, ("atomic", "omp"))
    reduce = {"add": "sum", "mul": "prod", "min": "amin", "max": "amax"}
    for dtype in dtypes:
        torch_type = DTYPES[dtype]
        for op, name in reduce.items():
            n = 600
            index = torch.arange(n) % 7
            # small integers, so that no order of the sums rounds
            a = (
                (torch.arange(n) * 5 % 4 - 1).to(torch_type)
                if op != "mul"
                else ((torch.arange(n) % 2) * 2 - 1).to(torch_type)
            )
            start = torch.tensor([3, 1, 2, 1, 1, 0, 5]).to(torch_type)
            out = start.clone()
            run[f"{op}_{dtype}"](out, index, a, n)
            work = torch.int64 if not torch_type.is_floating_point else torch.float64
            expected = start.to(work).scatter_reduce(0, index, a.to(work), name)
            if dtype == "bool":
                expected = expected > 0
            assert torch.equal(out, expected.to(torch_type)), (op, dtype)
    out = torch.tensor([1.0, 2.0])
    run["max_f32"](out, torch.tensor([0, 1, 0]), torch.tensor([float("nan"), 5.0, 7.0]), 3)
    assert out[0].isnan() and out[1] == 5
