"""The C++ backend's strategies: chunks, tiles, threads, masks that vectors share, text that never changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from cpp_kernels import KernelBuilder, backend, build_together, compiled
from polyfuse.ir.types import DType
from polyfuse.plugin import Config
from polyfuse.symbolic import axis, maximum, minimum, symbol

f32, i64, boolean = DType.f32, DType.i64, DType.bool
pytestmark = pytest.mark.each_value
ISAS = ("", "avx2", "sse")


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """Runs a test with one thread and with two."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def softmax_of_rows(rows: int, cols: int) -> KernelBuilder:
    """Softmax without a scratch row: three passes over the input."""
    k = KernelBuilder({"x0": rows}, {"r0": cols})
    k.arg("a"), k.out("o"), k.out("m")
    i = k["x0"] * cols + k["r0"]
    s = k.section(True)
    high = s.reduce("max", s.load("a", i))
    s = k.section()
    s.store("m", k["x0"], high)
    s = k.section(True)
    total = s.reduce("sum", s.op("exp", s.op("sub", s.load("a", i), high)))
    s = k.section()
    s.store("o", k["x0"], s.op("add", s.op("log", total), high))
    return k


@pytest.mark.quick(1)
@pytest.mark.parametrize("isa", ISAS)
def test_two_reductions_over_a_long_row_are_cut(threads: int, isa: str) -> None:
    k = softmax_of_rows(2, 100_001)
    kernel = k.build()
    assert "chunks" in backend(isa).emit(kernel).text
    a, o, m = torch.randn(2, 100_001), torch.zeros(2), torch.zeros(2)
    compiled(kernel, isa)(a, o, m)
    assert torch.equal(m, a.amax(1))
    torch.testing.assert_close(o, a.double().logsumexp(1).float())


@pytest.mark.quick(2)
@pytest.mark.parametrize("kind", ["argmax", "argmin", "welford", "online_softmax"])
def test_pairs_of_results_are_merged(kind: str, threads: int) -> None:
    size = 70_003
    k = KernelBuilder({}, {"r0": size})
    k.arg("a")
    s = k.section(True)
    x = s.load("a", k["r0"])
    results = s.reduce(kind, x, s.index(k["r0"])) if kind.startswith("arg") else s.reduce(kind, x)
    s = k.section()
    outs = []
    for number, result in enumerate(results):
        dtype = i64 if kind.startswith("arg") and number else f32
        k.out(f"o{number}", dtype)
        outs.append(torch.zeros((), dtype=dtype.torch))
        s.store(f"o{number}", 0, result)
    a = torch.randint(0, 1000, (size,)).float() / 100
    kernel = k.build()
    assert "chunks" in backend().emit(kernel).text
    compiled(kernel)(a, *outs)
    if kind.startswith("arg"):
        assert outs[1] == getattr(torch, kind)(a) and outs[0] == a[outs[1]]
    elif kind == "welford":
        torch.testing.assert_close(outs[0].double(), a.double().mean(), rtol=1e-6, atol=0)
        torch.testing.assert_close(outs[1] / size, a.double().var(unbiased=False).float(), rtol=1e-5, atol=0)
        assert outs[2] == size
    else:
        torch.testing.assert_close(outs[1].log() + outs[0], a.double().logsumexp(0).float())


def test_cut_sums_do_not_depend_on_threads_or_on_the_size_expected() -> None:
    n = symbol("s0")
    k = KernelBuilder({"x0": 24}, {"r0": n}, hints=(24, 100_000))
    k.arg("a"), k.out("o"), k.size("s0")
    s = k.section(True)
    total = s.reduce("sum", s.load("a", k["r0"] * 24 + k["x0"]))
    k.section().store("o", k["x0"], total)
    kernel = k.build()
    assert "chunks" in backend().emit(kernel).text
    run, before = compiled(kernel), torch.get_num_threads()
    for size in (0, 1, 17, 1023, 1024, 1025, 50_000):
        a, found = torch.rand(size, 24), []
        for count in (1, 2):
            torch.set_num_threads(count)
            o = torch.full((24,), -1.0)
            run(a, o, size)
            found.append(o)
        assert torch.equal(*found)
        torch.testing.assert_close(found[0], a.double().sum(0).float(), rtol=1e-6, atol=0)
    torch.set_num_threads(before)


@pytest.mark.quick(3)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", [(16, 16), (33, 21), (100, 64), (9, 1100)])
@pytest.mark.parametrize("dtype", [f32, DType.bf16, DType.f64, i64, DType.i8, boolean])
def test_tiles(dtype: DType, shape: tuple[int, int], isa: str) -> None:
    m, n = shape
    k = KernelBuilder({"x0": m, "x1": n})
    k.arg("a", dtype), k.out("o", dtype)
    s = k.section()
    s.store("o", k["x0"] * n + k["x1"], s.load("a", k["x1"] * m + k["x0"]))
    kernel = k.build()
    assert "tile_load" in backend(isa).emit(kernel).text
    a = (torch.randn(n, m) * 20).to(dtype.torch)
    o = torch.zeros(m, n, dtype=dtype.torch)
    compiled(kernel, isa)(a, o)
    assert torch.equal(o, a.t())


@pytest.mark.quick(1)
@pytest.mark.parametrize("symbolic", [False, True])
def test_large_results_in_new_pages_are_written_through_the_caches(symbolic: bool) -> None:
    """Whether a result's pages are there already changes its stores, and not its values."""
    n = 1 << 23
    k = KernelBuilder({"x0": symbol("n") if symbolic else n})
    k.arg("in0", f32), k.out("out0", f32)
    if symbolic:
        k.size("n")
        k.hints = (n,)
    s = k.section()
    s.store("out0", k["x0"], s.op("neg", s.load("in0", k["x0"])))
    kernel = k.build()
    if backend().isa.lanes * 4 == 64:
        text = backend().emit(kernel).text
        assert "is_resident(out0" in text and "const bool past" in text
    a = torch.randn(n)
    for out in (torch.empty(n), torch.zeros(n)):
        compiled(kernel)(a, out, *([n] if symbolic else []))
        assert torch.equal(out, -a)


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", [f32, DType.f64, DType.i32])
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("isa", ISAS)
def test_large_results_of_tiles_bypass_the_caches(dtype: DType, offset: int, isa: str, threads: int) -> None:
    """Where the machine can; and a result that does not begin at a cache line is written like any other."""
    m, n = 1000, 1056
    k = KernelBuilder({"x0": m, "x1": n})
    k.arg("in0", dtype), k.arg("in1", dtype), k.out("out0", dtype), k.out("out1", dtype)
    i, j = k["x0"] * n + k["x1"], k["x1"] * 1024 + k["x0"]
    s = k.section()
    value = s.op("add", s.load("in0", j), s.load("in1", i))
    s.store("out0", i, value), s.store("out1", j, s.op("neg", value))
    kernel = k.build()
    text = backend(isa).emit(kernel).text
    streams = isa == "" and backend().isa.lanes * 4 == 64
    assert ("stream(out0" in text, "tile_store<true>(out1" in text) == (streams, streams)
    a, b = ((torch.randn(n, size) * 99).to(dtype.torch) for size in (1024, m))
    b = b.reshape(m, n)
    buffers = [torch.zeros(m * n + 16, dtype=dtype.torch), torch.zeros(n * 1024 + 16, dtype=dtype.torch)]
    o, p = (buffer[offset:] for buffer in buffers)
    compiled(kernel, isa)(a, b, o, p)
    want = a[:, :m].t() + b
    assert torch.equal(o[: m * n].view(m, n), want)
    assert torch.equal(p[: n * 1024].view(n, 1024)[:, :m], -want.t())
    assert not p[: n * 1024].view(n, 1024)[:, m:].any()
    assert all(
        not buffer[:offset].any() and not buffer[buffer.numel() - 16 + offset :].any() for buffer in buffers
    )


@pytest.mark.quick(2)
@pytest.mark.parametrize("isa", ISAS)
def test_tiles_inside_other_axes_with_rows_and_columns(threads: int, isa: str) -> None:
    b, m, n = 3, 200, 130
    k = KernelBuilder({"x0": b, "x1": m, "x2": n})
    k.arg("a"), k.arg("c"), k.arg("row"), k.arg("col"), k.out("o"), k.out("p")
    x0, x1, x2 = k["x0"], k["x1"], k["x2"]
    s = k.section()
    i, j = (x0 * m + x1) * n + x2, (x0 * n + x2) * m + x1
    value = s.op(
        "add", s.op("mul", s.load("a", i), s.load("row", x1)), s.op("add", s.load("c", j), s.load("col", x2))
    )
    s.store("o", i, value)
    s.store("p", j, s.op("neg", value))
    a, c, row, col = torch.randn(b, m, n), torch.randn(b, n, m), torch.randn(m), torch.randn(n)
    o, p = torch.zeros(b, m, n), torch.zeros(b, n, m)
    compiled(k.build(), isa)(a, c, row, col, o, p)
    want = a * row[:, None] + (c.transpose(1, 2) + col)
    torch.testing.assert_close(o, want)
    torch.testing.assert_close(p, -want.transpose(1, 2))


@pytest.mark.quick(2)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("edge", [16, 32, 20])
def test_masks_of_whole_vectors(edge: int, isa: str) -> None:
    """Two halves side by side, as a concatenation reads them."""
    k = KernelBuilder({"x0": 5, "x1": 80})
    k.arg("a"), k.arg("b"), k.out("o")
    s = k.section()
    position = s.index(k["x1"])
    first, second = s.op("lt", position, s.const(edge, i64)), s.op("ge", position, s.const(edge, i64))
    x = s.load("a", k["x0"] * edge + k["x1"], mask=first, other=s.const(0.0))
    y = s.load("b", k["x0"] * (80 - edge) + k["x1"] - edge, mask=second, other=s.const(0.0))
    s.store("o", k["x0"] * 80 + k["x1"], s.op("where", first, x, y))
    kernel = k.build()
    assert "load_masked" not in backend(isa).emit(kernel).text
    a, b, o = torch.randn(5, edge), torch.randn(5, 80 - edge), torch.zeros(5, 80)
    compiled(kernel, isa)(a, b, o)
    assert torch.equal(o, torch.cat((a, b), 1))


@pytest.mark.quick(2)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("step", [2, 3, 4, 5, -1])
@pytest.mark.parametrize("dtype", [f32, DType.bf16, i64, boolean])
def test_every_other_element(dtype: DType, step: int, isa: str) -> None:
    size = 53
    k = KernelBuilder({"x0": size})
    k.arg("a", dtype), k.out("o", dtype)
    s = k.section()
    last = (size - 1) * abs(step)
    s.store("o", k["x0"], s.load("a", k["x0"] * step + (last if step < 0 else 0)))
    a = (torch.randn(last + 1) * 9).to(dtype.torch)
    o = torch.zeros(size, dtype=dtype.torch)
    compiled(k.build(), isa)(a, o)
    assert torch.equal(o, a[::step] if step > 0 else a.flip(0))


@pytest.mark.quick(2)
@pytest.mark.parametrize("dtype", [f32, DType.f64, DType.i32, i64])
@pytest.mark.parametrize("kind", ["sum", "prod"])
@pytest.mark.parametrize("isa", ISAS)
def test_scans_on_the_lanes(kind: str, dtype: DType, isa: str) -> None:
    k = KernelBuilder({"x0": 7}, {"r0": 77})
    k.arg("a", dtype), k.out("o", dtype)
    i = k["x0"] * 77 + k["r0"]
    s = k.section(True)
    s.store("o", i, s.scan(kind, s.load("a", i)))
    kernel = k.build()
    assert f"running_{kind}" in backend(isa).emit(kernel).text
    a = (
        torch.randint(1, 3, (7, 77)).to(dtype.torch)
        if not dtype.is_float
        else torch.rand(7, 77).to(dtype.torch) + 0.5
    )
    o = torch.zeros_like(a)
    compiled(kernel, isa)(a, o)
    torch.testing.assert_close(o, {"sum": torch.cumsum, "prod": torch.cumprod}[kind](a, 1).to(dtype.torch))


@pytest.mark.quick(2)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [f32, DType.f16, i64, boolean])
@pytest.mark.parametrize("size", [56, 61])
def test_neighbouring_lanes_share_elements(dtype: DType, size: int, isa: str) -> None:
    """As the gradient of a pooling reads: half as many elements as lanes, and some of them not there."""
    rows, half = 3, (size - 1) // 2
    k = KernelBuilder({"x0": rows, "x1": size})
    k.arg("a", dtype), k.out("o", dtype), k.out("p", dtype)
    s = k.section()
    x0, x1 = k["x0"], k["x1"]
    position, zero = (x1 + 1) // 2, s.const(False if dtype is boolean else 0, dtype)
    inside = s.op("lt", s.index(position), s.const(half, i64))
    s.store("o", x0 * size + x1, s.load("a", x0 * half + position, mask=inside, other=zero))
    s.store("p", x0 * size + x1, s.load("a", x0 * half + x1 // 4))
    kernel = k.build()
    assert "gather" not in backend(isa).emit(kernel).text
    a = (torch.randn(rows, half) * 9).to(dtype.torch)
    o, p = (torch.ones(rows, size).to(dtype.torch) for _ in range(2))
    compiled(kernel, isa)(a, o, p)
    lanes = torch.arange(size)
    padded = torch.cat((a, torch.zeros(rows, 2).to(dtype.torch)), 1)
    assert torch.equal(o, padded[:, (lanes + 1) // 2])
    assert torch.equal(p, a[:, lanes // 4])


@pytest.mark.quick(2)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [f32, DType.bf16, DType.f64, DType.u8])
@pytest.mark.parametrize("size", [64, 37])
def test_clamped_neighbours(dtype: DType, size: int, isa: str) -> None:
    """As an interpolation reads: no constant offsets, but lanes never turn back; in ranges if even."""
    count = size // 2
    k = KernelBuilder({"x0": size})
    k.arg("a", dtype), k.out("o", dtype), k.out("p", dtype)
    s = k.section()
    low = minimum(maximum((k["x0"] + 1) // 2 - 1, 0), count - 1)
    s.store("o", k["x0"], s.load("a", low))
    s.store("p", k["x0"], s.load("a", minimum(low * 3, count - 1)))
    kernel = k.build()
    wide = dtype is not DType.f64 and isa != "sse"
    text = backend(isa).emit(kernel).text
    assert ("load_near" in text) == (wide and size == 37)
    assert size == 37 or "gather" not in text
    a = (torch.randn(count) * 9).to(dtype.torch)
    o, p = (torch.zeros(size).to(dtype.torch) for _ in range(2))
    compiled(kernel, isa)(a, o, p)
    at = ((torch.arange(size) + 1) // 2 - 1).clamp(0, count - 1)
    assert torch.equal(o, a[at])
    assert torch.equal(p, a[(at * 3).clamp(max=count - 1)])


def test_equal_kernels_have_equal_text() -> None:
    made: list[Callable[[], KernelBuilder]] = [
        lambda: softmax_of_rows(2, 100_001),
        lambda: softmax_of_rows(64, 77),
    ]
    for make in made:
        first, second = (backend().emit(make().build(name)) for name in ("one", "two"))
        assert first.text == second.text and first.key == second.key


@pytest.mark.quick(1)
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("kind", ["sum", "welford", "argmax"])
def test_every_tiling_gives_the_same(kind: str, dim: int) -> None:
    m, n = 70, 203
    k = KernelBuilder({"x0": n if dim == 0 else m}, {"r0": m if dim == 0 else n})
    k.arg("a"), k.out("o")
    s = k.section(True)
    x = s.load("a", k["r0"] * n + k["x0"] if dim == 0 else k["x0"] * n + k["r0"])
    result = s.reduce(kind, x, s.index(k["r0"])) if kind == "argmax" else s.reduce(kind, x)
    s = k.section()
    s.store("o", k["x0"], result if kind == "sum" else result[0])
    kernel = k.build()
    configs = backend().configs(kernel)
    assert len(configs) > 4
    a = torch.randn(m, n)
    want = {"sum": torch.sum, "welford": torch.mean, "argmax": torch.amax}[kind](a, dim)
    for config in configs:
        o = torch.zeros_like(want)
        compiled(kernel, config=config)(a, o)
        torch.testing.assert_close(o, want, rtol=1e-5, atol=1e-5, msg=str(config))


@pytest.mark.quick(2)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("columns", [64, 200, 37])
def test_scattered_columns_are_done_in_strips(columns: int, isa: str, threads: int) -> None:
    """Each lane adds to a row that data name, in order, and no two lanes meet."""
    rows, into = 50, 7
    k = KernelBuilder({"x0": rows, "x1": columns})
    k.arg("a"), k.arg("ids", i64), k.arg("o", kind="inout")
    s = k.section()
    position = k["x0"] * columns + k["x1"]
    row = s.load("ids", position)
    s.store("o", axis("@0", into) * columns + k["x1"], s.load("a", position), row, mode="add")
    kernel = k.build()
    assert "strip" in backend(isa).emit(kernel).text
    a, ids = torch.randn(rows, columns), torch.randint(0, into, (rows, columns))
    o = torch.randn(into, columns)
    wanted = o.scatter_add(0, ids, a)
    compiled(kernel, isa)(a, ids, o)
    assert torch.equal(o, wanted)


@pytest.mark.parametrize("isa", ["", "avx2"])
@pytest.mark.parametrize("layers", [32, 48])
def test_chunks_of_any_length_in_every_configuration(layers: int, isa: str) -> None:
    # 32 layers make chunks that are shorter than the vectors side by side; 48 make chunks of 21 elements, at
    # whose first element a comparison of positions is not alike in all lanes
    rows, cols, from_ = 32, 128, 64
    k = KernelBuilder({"x0": rows}, {"r0": layers, "r1": cols})
    k.arg("a"), k.out("copy"), k.out("left"), k.out("high")
    i = (k["r0"] * rows + k["x0"]) * cols + k["r1"]
    s = k.section(True)
    value = s.load("a", i)
    s.store("copy", i, s.op("add", value, value))
    inside = s.op("lt", s.index(k["r1"]), s.index(from_))
    left = s.reduce("sum", s.op("where", inside, value, s.const(0.0)))
    high = s.reduce("max", value)
    s = k.section()
    s.store("left", k["x0"], left), s.store("high", k["x0"], high)
    kernel = k.build()
    configs = backend(isa).configs(kernel)
    assert Config.of(lane=1) in configs
    build_together(kernel, configs, isa)
    a = torch.randn(layers, rows, cols)
    for config in configs:
        copy, left_, high_ = torch.full_like(a, torch.nan), torch.zeros(rows), torch.zeros(rows)
        compiled(kernel, isa, config)(a, copy, left_, high_)
        assert torch.equal(copy, a + a), config
        torch.testing.assert_close(left_, a[:, :, :from_].sum((0, 2)), rtol=1e-4, atol=1e-4)
        assert torch.equal(high_, a.amax((0, 2))), config


@pytest.mark.quick(2)
@pytest.mark.parametrize("isa", ISAS)
def test_the_stages_of_a_split_reduction_follow_the_configuration(isa: str) -> None:
    k = KernelBuilder({}, {"r0": 3, "r1": 100_000})
    k.arg("a"), k.out("o"), k.out("p")
    s = k.section(True)
    i = k["r0"] * 100_000 + k["r1"]
    high, position = s.reduce("argmax", s.load("a", i), s.index(i))
    s = k.section()
    s.store("o", 0, high), s.store("p", 0, s.cast(position, f32))
    kernel = k.build()
    configs = [*(Config.of(unroll=count) for count in (1, 2, 4, 8)), Config.of(lane=2)]
    texts = {backend(isa).emit(kernel, config).text for config in configs[:4]}
    assert len(texts) == 4
    build_together(kernel, configs, isa)
    a, o, p = torch.randn(300_000), torch.empty(1), torch.empty(1)
    for config in configs:
        compiled(kernel, isa, config)(a, o, p)
        assert o[0] == a.max() and p[0] == a.argmax()
