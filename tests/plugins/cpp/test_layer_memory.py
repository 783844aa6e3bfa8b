"""Loads, stores, gathers, scatters and atomics of the vector layer, with their tails, at every width."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable

import pytest
import torch

from cpp_layer import DTYPES, Level, build, level_params

MEMORY_TYPES = tuple(DTYPES)
FEW_TYPES = ("f32", "f64", "bf16", "i8", "i64", "bool")
"""Types of one size are moved alike."""


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


@pytest.mark.parametrize(
    "types", [FEW_TYPES, pytest.param(MEMORY_TYPES, marks=pytest.mark.slow)], ids=["few", "all"]
)
@pytest.mark.parametrize("gathers", [1, pytest.param(0, marks=pytest.mark.slow)])
@pytest.mark.parametrize("level", level_params())
def test_moving_elements(level: Level, gathers: int, types: tuple[str, ...]) -> None:
    texts, kernels = [], {}
    for dtype in types:
        text, signatures = text_for(dtype)
        texts.append(text)
        kernels.update(signatures)
    run = build(level, "".join(texts), kernels, ("gather",), gathers)
    # the last page of a mapping: one element too far is not ours (and usually faults)
    page = mmap.mmap(-1, mmap.PAGESIZE)
    edge = torch.frombuffer(page, dtype=torch.uint8)
    for dtype in types:
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


class Fenced:
    """Memory between pages that must not be touched."""

    def __init__(self) -> None:
        self._page = mmap.PAGESIZE
        self._pages = mmap.mmap(-1, 3 * self._page)
        whole = torch.frombuffer(self._pages, dtype=torch.uint8)
        self._middle = whole[self._page : 2 * self._page]
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        for offset in (0, 2 * self._page):
            assert protect(ctypes.c_void_p(whole.data_ptr() + offset), ctypes.c_size_t(self._page), 0) == 0

    def tensor(self, a: torch.Tensor, at_end: bool) -> torch.Tensor:
        """A copy that ends, or begins, where the memory does."""
        size = a.numel() * a.element_size()
        raw = self._middle[self._page - size :] if at_end else self._middle[:size]
        raw.copy_(a.view(torch.uint8))
        return raw.view(a.dtype)


def patterns(lanes: int) -> dict[str, list[int]]:
    """Offsets of lanes: steps, repeats, and what has no rule."""
    uneven = [0]
    for k in range(1, lanes):
        uneven.append(min(uneven[-1] + k * 5 % 4, 4 * lanes - 1))
    return {
        "step2": [2 * k for k in range(lanes)],
        "step4": [4 * k for k in range(lanes)],
        "twice": [k // 2 for k in range(lanes)],
        "shifted": [(k + 1) // 2 for k in range(lanes)],
        "half_more": [3 * k // 2 for k in range(lanes)],
        "same": [0] * lanes,
        "uneven": uneven,
    }


def check_backwards(run: Callable[..., None], dtype: str, lanes: int, memory: Fenced) -> None:
    """Lanes under a mask that read backwards touch nothing beyond the first and the last that are true."""
    out = torch.zeros(lanes, dtype=DTYPES[dtype])
    for trial in range(12):
        values = (torch.randn(lanes) * 50).to(DTYPES[dtype])
        mask = torch.rand(lanes) < 0.1 * trial
        lanes_read = (lanes - 1 - torch.arange(lanes))[mask]
        low, high = (int(lanes_read.min()), int(lanes_read.max())) if lanes_read.numel() else (0, 0)
        for at_end in (False, True):
            held = memory.tensor(values[low : high + 1], at_end)
            first_lane = held.data_ptr() + (lanes - 1 - low) * held.element_size()
            run(first_lane, mask, out)
            wanted = torch.where(mask, values.flip(0), torch.zeros_like(values))
            assert torch.equal(out, wanted), (dtype, mask)


@pytest.mark.slow
@pytest.mark.parametrize("level", [p for p in level_params() if p.values[0].lanes > 1])
def test_windows(level: Level) -> None:
    dtypes = ("f32", "f64", "bf16", "i8", "i64", "bool")
    texts, kernels = [], {}
    known = patterns(level.lanes)
    for dtype in dtypes:
        for name, at in known.items():
            pattern = ", ".join(map(str, at))
            texts.append(
                f'extern "C" void {name}_{dtype}(const {dtype}* a, {dtype}* o) {{\n'
                f"  store(o, load_window<Vec, {pattern}>(a));\n}}\n"
                f'extern "C" void masked_{name}_{dtype}(const {dtype}* a, const bool* m, {dtype}* o) {{\n'
                f"  store(o, load_window<Vec, {pattern}>(a, load<Vec>(m)));\n}}\n"
            )
            kernels[f"{name}_{dtype}"] = "pp"
            kernels[f"masked_{name}_{dtype}"] = "ppp"
        texts.append(
            f'extern "C" void back_{dtype}(const {dtype}* a, const bool* m, {dtype}* o) {{\n'
            "  store(o, load_back<Vec>(a, load<Vec>(m)));\n}\n"
        )
        kernels[f"back_{dtype}"] = "ppp"
    run = build(level, "".join(texts), kernels, ("window",))
    memory = Fenced()
    for dtype in dtypes:
        check_backwards(run[f"back_{dtype}"], dtype, level.lanes, memory)
        for name, at in known.items():
            values = (torch.randn(at[-1] + 1) * 50).to(DTYPES[dtype])
            index = torch.tensor(at)
            out = torch.zeros(level.lanes, dtype=DTYPES[dtype])
            for at_end in (False, True):
                run[f"{name}_{dtype}"](memory.tensor(values, at_end), out)
                assert torch.equal(out, values[index]), (name, dtype)
            for trial in range(12):
                mask = torch.rand(level.lanes) < 0.08 * trial
                wanted = torch.where(mask, values[index], torch.zeros((), dtype=values.dtype))
                valid = index[mask]
                low, high = (int(valid[0]), int(valid[-1])) if valid.numel() else (0, 0)
                for at_end in (False, True):
                    held = memory.tensor(values[low : high + 1], at_end)
                    run[f"masked_{name}_{dtype}"](held.data_ptr() - low * held.element_size(), mask, out)
                    assert torch.equal(out, wanted), (name, dtype, mask)


@pytest.mark.parametrize("level", [p for p in level_params() if p.values[0].lanes > 1])
def test_lanes_that_read_near_each_other(level: Level) -> None:
    dtypes = ("f32", "f16", "i16", "u8", "bool")
    texts, kernels = [], {}
    for dtype in dtypes:
        texts.append(
            f'extern "C" void near_{dtype}(const {dtype}* a, const i32* x, {dtype}* o, i64 n) {{\n'
            "  store_n(o, load_near<Vec>(a, x[0], x[n - 1], load_n<Vec>(x, n)), n);\n}\n"
        )
        kernels[f"near_{dtype}"] = "pppi"
    run = build(level, "".join(texts), kernels, ("window",))
    memory = Fenced()
    for dtype in dtypes:
        for trial in range(20):
            n = trial % level.lanes + 1
            span = 2 * level.lanes if trial % 2 else level.lanes
            index = torch.randint(0, span, (n,)).sort().values
            values = (torch.randn(span) * 50).to(DTYPES[dtype])
            low, high = int(index[0]), int(index[-1])
            for at_end in (False, True):
                held = memory.tensor(values[low : high + 1], at_end)
                out = torch.zeros(n, dtype=DTYPES[dtype])
                start = held.data_ptr() - low * held.element_size()
                run[f"near_{dtype}"](start, index.to(torch.int32), out, n)
                assert torch.equal(out, values[index]), (dtype, index)


@pytest.mark.parametrize("gathers", [1, pytest.param(0, marks=pytest.mark.slow)])
@pytest.mark.parametrize("level", [p for p in level_params() if p.values[0].lanes == 16])
def test_gathers_that_are_near_or_repeated(level: Level, gathers: int) -> None:
    """Lanes within two vectors of the first, sorted or not, and further ones: nothing else is read."""
    texts, kernels = [], {}
    for dtype in ("f32", "i32", "bf16"):
        for name in ("gather_near", "gather_again"):
            texts.append(
                f'extern "C" void {name}_{dtype}(const {dtype}* a, const i32* x, {dtype}* o) {{\n'
                f"  store(o, {name}(a, load<Vec>(x)));\n}}\n"
            )
            kernels[f"{name}_{dtype}"] = "ppp"
    run, memory = build(level, "".join(texts), kernels, ("gather",), gathers), Fenced()
    rising, far = torch.arange(level.lanes), torch.randint(0, 300, (level.lanes,))
    spread = torch.randint(0, 2 * level.lanes, (level.lanes,))
    for index in (rising, rising // 3, 2 * rising, spread.sort().values, spread, rising.flip(0), far):
        for dtype in ("f32", "i32", "bf16"):
            values = (torch.randn(300) * 50).to(DTYPES[dtype])
            low, high = int(index.min()), int(index.max())
            for at_end in (False, True):
                held = memory.tensor(values[low : high + 1], at_end)
                start = held.data_ptr() - low * held.element_size()
                for name in ("gather_near", "gather_again"):
                    out = torch.zeros(level.lanes, dtype=DTYPES[dtype])
                    run[f"{name}_{dtype}"](start, index.to(torch.int32), out)
                    assert torch.equal(out, values[index]), (name, dtype, index)


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
