"""Matmuls of the C++ backend against sums in double precision."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from cpp_kernels import Body, KernelBuilder, backend, build_together, compiled
from cpp_matmuls import Matmul, widened
from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.types import DType
from polyfuse.ir.verifier.rules import accumulates
from polyfuse.plugin import Config
from polyfuse.symbolic import symbol
from polyfuse_cpp.isa import detect_isa, dot_instructions
from polyfuse_cpp.matmul.paths import OperandPath

f32, f64, bf16, f16, i8, u8, i32, i64 = (
    DType.f32, DType.f64, DType.bf16, DType.f16, DType.i8, DType.u8, DType.i32, DType.i64,
)  # fmt: skip
pytestmark = pytest.mark.each_value
ISAS = ("", "avx2", "scalar")
TOLERANCE = {f32: 3e-6, f64: 1e-14, bf16: 8e-3, f16: 1e-3}


@pytest.fixture(params=["some", pytest.param("all", marks=pytest.mark.slow)])
def configurations(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling configurations is most of what these tests cost, so quick ones try the backend's choice, and
    another one of every third matmul."""
    monkeypatch.setitem(globals(), "_few", request.param == "some")


_few = True


def check(mm: Matmul, isa: str = "", finish: Any = None, left: Any = None, right: Any = None) -> int:
    """Run configurations: the backend's choice and, of some, one other, or all; how many there are."""
    kernel, made = mm.kernel(), backend(isa)
    tensors = mm.tensors()
    want = mm.product(
        left(tensors["left"]) if left else tensors["left"],
        right(tensors["right"]) if right else tensors["right"],
    )
    if finish:
        want = finish(want)
    if mm.bias:
        want = want + tensors["bias"].double()
    if mm.residual:
        want = want + mm.plain(tensors["residual"], mm.out, "bmn").double()
    configs = list(made.configs(kernel))
    configs += [c for config in configs[:2] for c in made.neighbours(kernel, config)]
    configs = list(dict.fromkeys(configs))
    choose = random.Random(f"{mm.numbers} {mm.left} {mm.right} {mm.dtype}")
    others = choose.sample(configs[1:], min(choose.randrange(3) == 0, len(configs) - 1))
    others = others if _few else configs[1:]
    tried = [*configs[:1], *others]
    build_together(kernel, tried, isa)
    for config in tried:
        out = tensors["result"]
        whole = out if out._base is None else out._base
        before = whole.clone()
        out.fill_(7)
        compiled(kernel, isa, config)(*mm.arguments(tensors))
        got = mm.plain(out, mm.out, "bmn").double()
        if mm.result.is_float:
            scale = mm.k**0.5 * 4
            worst = TOLERANCE.get(mm.result, 0.0)
            torch.testing.assert_close(
                got, want, rtol=2 * worst, atol=(worst if worst < 1e-3 else 2e-5) * scale, msg=str(config)
            )
        else:
            assert torch.equal(got, want), config
        if mm.pad:
            assert torch.equal(whole[..., -mm.pad :], before[..., -mm.pad :]), "a store beside the result"
    return len(configs)


def built(kernel: Kernel, isa: str = "") -> Sequence[Config]:
    """All configurations of a kernel, built as one unit."""
    configs = backend(isa).configs(kernel)
    build_together(kernel, configs, isa)
    return configs


@pytest.mark.quick(2)
@pytest.mark.usefixtures("configurations")
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("right", ["bkn", "bnk"])
@pytest.mark.parametrize("left", ["bmk", "bkm"])
def test_layouts(left: str, right: str, isa: str) -> None:
    check(Matmul(19, 45, 37, left=left, right=right, pad=3), isa)


@pytest.mark.quick(3)
@pytest.mark.usefixtures("configurations")
@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (1, 64, 40), (2, 33, 129), (5, 1, 7), (64, 96, 16), (17, 31, 1)]
)
@pytest.mark.parametrize("right", ["bkn", "bnk"])
def test_shapes(right: str, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    check(Matmul(m, n, k, right=right))


@pytest.mark.quick(1)
@pytest.mark.usefixtures("configurations")
@pytest.mark.parametrize("isa", ["", "avx2"])
@pytest.mark.parametrize("right", ["bkn", "bnk"])
def test_depths_that_are_cut(right: str, isa: str) -> None:
    check(Matmul(30, 50, 1500, right=right, bias=True), isa)


@pytest.mark.slow
@pytest.mark.usefixtures("configurations")
@pytest.mark.parametrize("isa", ["", "avx2"])
@pytest.mark.parametrize("columns", [72, 112, 116, 200])
def test_a_last_block_of_fewer_vectors(columns: int, isa: str) -> None:
    check(Matmul(131, columns, 40, right="bnk", bias=True), isa)
    check(Matmul(131, columns, 1100, right="bkn", residual=True), isa)


@pytest.mark.slow
@pytest.mark.usefixtures("configurations")
@pytest.mark.parametrize("right", ["bkn", "bnk"])
def test_more_than_one_thread(right: str) -> None:
    check(Matmul(200, 130, 96, right=right, bias=True, residual=True))
    check(Matmul(3, 700, 600, right=right, bias=True))


@pytest.mark.quick(5)
@pytest.mark.usefixtures("configurations")
@pytest.mark.parametrize(
    ("dtype", "isa"),
    [(dtype, isa) for dtype in (f64, bf16, i32) for isa in ISAS] + [(d, "") for d in (f16, i64, DType.i16)],
)
@pytest.mark.parametrize("right", ["bkn", "bnk"])
def test_types(right: str, dtype: DType, isa: str) -> None:
    out = dtype if dtype.is_storage else None
    mm = Matmul(9, 40, 37, dtype=dtype, right=right, out_dtype=out)
    if dtype is DType.i16:
        mm.sizes["k"] = mm.numbers["k"] = 3
        mm.k = 3
    check(mm, isa)


@pytest.mark.quick(2)
@pytest.mark.usefixtures("configurations")
@pytest.mark.parametrize("pair", [(i8, i8), (u8, i8), (u8, u8), (i8, u8)])
@pytest.mark.parametrize("right", ["bkn", "bnk"])
def test_bytes_add_up_to_i32(right: str, pair: tuple[DType, DType]) -> None:
    check(Matmul(9, 40, 133, dtype=pair[0], other=pair[1], right=right))


def test_bytes_at_their_limits() -> None:
    mm = Matmul(4, 16, 200, dtype=i8, right="bnk")
    kernel = mm.kernel()
    tensors = mm.tensors()
    tensors["left"].fill_(-128), tensors["right"].fill_(-128)
    for config in built(kernel):
        compiled(kernel, "", config)(*mm.arguments(tensors))
        assert (tensors["result"] == 200 * 128 * 128).all()


@pytest.mark.quick(2)
@pytest.mark.usefixtures("configurations")
@pytest.mark.parametrize("left", ["bmk", "mk", "bkm"])
@pytest.mark.parametrize("right", ["bnk", "kn"])
def test_batches(left: str, right: str) -> None:
    if left == "mk" and right == "kn":
        right = "bkn"
    check(Matmul(13, 21, 18, b=5, left=left, right=right, bias=True))


@pytest.mark.usefixtures("configurations")
def test_results_that_run_along_the_rows() -> None:
    check(Matmul(45, 12, 30, out="bnm", residual=True))
    check(Matmul(45, 12, 30, right="bnk", out="bnm", residual=True))


@pytest.mark.quick(1)
@pytest.mark.parametrize("dynamic", ["m", "k", "mnk"])
@pytest.mark.parametrize("right", ["bkn", "bnk"])
def test_dynamic_sizes(right: str, dynamic: str) -> None:
    mm = Matmul(20, 50, 60, right=right, dynamic=dynamic, bias=True)
    kernel = mm.kernel()
    for config in built(kernel):
        for size in (1, 17, 130, 700):
            for name in dynamic:
                mm.numbers[name] = size
            mm.m, mm.n, mm.k = (mm.numbers[name] for name in "mnk")
            tensors = mm.tensors()
            want = mm.product(tensors["left"], tensors["right"])[0] + tensors["bias"]
            compiled(kernel, "", config)(*mm.arguments(tensors))
            torch.testing.assert_close(
                tensors["result"].double(), want, rtol=1e-5, atol=1e-5 * mm.k**0.5, msg=f"{config} {size}"
            )


def test_sizes_of_nothing() -> None:
    mm = Matmul(20, 50, 60, dynamic="mnk", bias=True)
    kernel = mm.kernel()
    for name in "mnk":
        mm.numbers.update(m=20, n=50, k=60)
        mm.numbers[name] = 0
        mm.m, mm.n, mm.k = (mm.numbers[name] for name in "mnk")
        tensors = mm.tensors()
        want = tensors["bias"].expand(mm.m, mm.n)
        for config in built(kernel):
            compiled(kernel, "", config)(*mm.arguments(tensors))
            if name == "k":
                torch.testing.assert_close(tensors["result"], want)


def gelu(body: Body, value: str) -> str:
    half, root, one = (body.const(x) for x in (0.5, 0.5**0.5, 1.0))
    inner = body.op("add", one, body.op("erf", body.op("mul", value, root)))
    return body.op("mul", body.op("mul", half, value), inner)


@pytest.mark.quick(1)
@pytest.mark.usefixtures("configurations")
@pytest.mark.parametrize("isa", ["", "scalar"])
def test_epilogues(isa: str) -> None:
    def finish(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x)

    check(Matmul(21, 40, 33, right="bnk", finish=gelu, residual=True), isa, finish=finish)


@pytest.mark.quick(1)
@pytest.mark.usefixtures("configurations")
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [f32, bf16])
@pytest.mark.parametrize("right", ["bkn", "bnk"])
def test_prologues(right: str, dtype: DType, isa: str) -> None:
    """Operands that are computed on the way: bf16 values are rounded before they are multiplied."""

    def change(body: Body, value: str) -> str:
        found = body.op("mul", widened(body, value, f32), body.const(1.7))
        return widened(body, found, dtype)

    def changed(x: torch.Tensor) -> torch.Tensor:
        return (x.float() * 1.7).to(dtype.torch)

    mm = Matmul(
        9, 40, 37, dtype=dtype, right=right, out_dtype=dtype, prologue_left=change, prologue_right=change
    )
    check(mm, isa, left=changed, right=changed)


def test_numbers_that_are_none_stay_where_they_are() -> None:
    for right in ("bkn", "bnk"):
        mm = Matmul(5, 35, 20, right=right)
        kernel, tensors = mm.kernel(), mm.tensors()
        tensors["left"][2, 3] = float("nan")
        tensors["right"].select(right.index("k") - 1, 7)[...] = 1
        tensors["left"][4, 7] = float("inf")
        for config in built(kernel):
            compiled(kernel, "", config)(*mm.arguments(tensors))
            assert tensors["result"][2].isnan().all()
            assert tensors["result"][4].isinf().all()
            assert tensors["result"][[0, 1, 3]].isfinite().all()


@pytest.mark.quick(1)
@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("isa", ["", "scalar"])
def test_convolution(isa: str, padding: int) -> None:
    """Several axes of rows and of depth, and loads that are masked at the edges."""
    b, ci, co, h, w = 2, 3, 5, 9, 21
    oh, ow = h + 2 * padding - 2, w + 2 * padding - 2
    k = KernelBuilder({"i0": b, "i1": co, "i2": oh, "i3": ow}, {"r0": ci, "r1": 3, "r2": 3})
    k.arg("image"), k.arg("weight"), k.arg("bias"), k.out("result")
    s = k.section(True)
    y, x = k["i2"] + k["r1"] - padding, k["i3"] + k["r2"] - padding
    index = ((k["i0"] * ci + k["r0"]) * h + y) * w + x
    if padding:
        zero = s.const(0, i64)
        tests = [s.op("ge", s.index(v), zero) for v in (y, x)]
        tests += [s.op("lt", s.index(v), s.const(n, i64)) for v, n in ((y, h), (x, w))]
        mask = tests[0]
        for test in tests[1:]:
            mask = s.op("bitwise_and", mask, test)
        image = s.load("image", index, mask=mask, other=s.const(0.0))
    else:
        image = s.load("image", index)
    weight = s.load("weight", ((k["i1"] * ci + k["r0"]) * 3 + k["r1"]) * 3 + k["r2"])
    total = s._add("reduce", (image, weight), f32, "dot")
    s = k.section()
    value = s.op("add", total, s.load("bias", k["i1"]))
    s.store("result", ((k["i0"] * co + k["i1"]) * oh + k["i2"]) * ow + k["i3"], value)
    image_t, weight_t, bias_t = torch.randn(b, ci, h, w), torch.randn(co, ci, 3, 3), torch.randn(co)
    want = torch.conv2d(image_t, weight_t, bias_t, padding=padding)
    kernel = k.build()
    for config in built(kernel, isa):
        result = torch.zeros_like(want)
        compiled(kernel, isa, config)(image_t, weight_t, bias_t, result)
        torch.testing.assert_close(result, want, rtol=1e-5, atol=1e-5, msg=str(config))


def test_masks_with_values_in_common() -> None:
    """Zeros beyond the borders of both operands make no number with an infinite one."""
    m, n, depth, there = 9, 40, 35, 33
    k = KernelBuilder({"i0": m, "i1": n}, {"r0": depth})
    k.arg("left"), k.arg("right"), k.out("result")
    s = k.section(True)
    mask = s.op("lt", s.index(k["r0"]), s.const(there, i64))
    zero = s.const(0.0)
    operands = [
        s.load("left", k["r0"] * m + k["i0"], mask=mask, other=zero),
        s.load("right", k["r0"] * n + k["i1"], mask=mask, other=zero),
    ]
    total = s._add("reduce", operands, f32, "dot")
    s = k.section()
    s.store("result", k["i0"] * n + k["i1"], total)
    left, right = torch.randn(depth, m), torch.randn(depth, n)
    left[5, 3] = float("inf")
    want = left[:there].T @ right[:there]
    kernel = k.build()
    for config in built(kernel):
        result = torch.zeros_like(want)
        compiled(kernel, "", config)(left, right, result)
        torch.testing.assert_close(result, want, rtol=1e-5, atol=1e-5, msg=str(config))


def test_several_axes_of_columns() -> None:
    """The result is stored with its columns apart: [m, h, d] as [h, m, d]."""
    m, h, d, depth = 14, 3, 20, 33
    k = KernelBuilder({"i0": h, "i1": m, "i2": d}, {"r0": depth})
    k.arg("left"), k.arg("right"), k.out("result")
    s = k.section(True)
    left = s.load("left", k["i1"] * depth + k["r0"])
    right = s.load("right", (k["i0"] * d + k["i2"]) * depth + k["r0"])
    total = s._add("reduce", (left, right), f32, "dot")
    s = k.section()
    s.store("result", (k["i0"] * m + k["i1"]) * d + k["i2"], total)
    left_t, right_t = torch.randn(m, depth), torch.randn(h, d, depth)
    want = torch.einsum("mk,hdk->hmd", left_t, right_t).contiguous()
    kernel = k.build()
    for config in built(kernel):
        result = torch.zeros_like(want)
        compiled(kernel, "", config)(left_t, right_t, result)
        torch.testing.assert_close(result, want, rtol=1e-5, atol=1e-5, msg=str(config))


@pytest.mark.quick(2)
@pytest.mark.usefixtures("configurations")
@pytest.mark.parametrize("seed", range(6))
def test_random_matmuls(seed: int) -> None:
    chance = random.Random(seed)
    mm = Matmul(
        chance.choice([1, 3, 16, 47, 90]),
        chance.choice([1, 7, 32, 65, 200]),
        chance.choice([1, 9, 64, 200, 530]),
        b=chance.choice([1, 1, 3]),
        left=chance.choice(["bmk", "bkm"]),
        right=chance.choice(["bkn", "bnk"]),
        out=chance.choice(["bmn", "bnm", "mbn"]),
        pad=chance.choice([0, 5]),
        bias=chance.random() < 0.5,
        residual=chance.random() < 0.5,
    )
    check(mm, chance.choice(["", "avx2"]))


def test_what_it_refuses() -> None:
    k = KernelBuilder({}, {"r0": symbol("s0", 1)})
    k.arg("left"), k.arg("right"), k.out("result"), k.size("s0")
    s = k.section(True)
    total = s._add("reduce", (s.load("left", k["r0"]), s.load("right", k["r0"])), f32, "dot")
    k.section().store("result", 0, total)
    with pytest.raises(UnsupportedError, match="neither rows nor columns"):
        backend().emit(k.build())
    with pytest.raises(UnsupportedError, match="neither rows nor columns"):
        backend().configs(k.build())


@pytest.mark.quick(1)
@pytest.mark.usefixtures("configurations")
@pytest.mark.parametrize(
    ("shape", "packed"),
    [((1, 128, 40), 64), ((19, 192, 37), 64), ((70, 96, 1100), 48), ((200, 128, 530), 32)],
)
@pytest.mark.parametrize("dtype", [f32, f64])
def test_packed_weights_laid_out_before(shape: tuple[int, int, int], packed: int, dtype: DType) -> None:
    m, n, k = shape
    for isa in ("", "avx2"):
        mm = Matmul(m, n, k, dtype=dtype, right="kn", packed=packed, bias=True)
        configs = backend(isa).configs(mm.kernel())
        assert {config.get("path") for config in configs} == {OperandPath.PREPACKED}
        assert all(packed % (config.get("vectors") * backend(isa).isa.lanes) == 0 for config in configs)
        check(mm, isa)
    check(Matmul(m, n, k, dtype=dtype, right="kn", packed=packed, left="bkm", dynamic="m", residual=True))


@pytest.mark.slow
@pytest.mark.usefixtures("configurations")
def test_packed_weights_of_another_type_are_laid_out_again() -> None:
    mm = Matmul(9, 128, 37, dtype=bf16, right="kn", packed=64, out_dtype=bf16)
    assert {config.get("path") for config in backend().configs(mm.kernel())} == {OperandPath.PACKED}
    check(mm)
    check(Matmul(9, 128, 37, right="kn", packed=64), "scalar")


def test_text_is_deterministic() -> None:
    one, two = (backend().emit(Matmul(7, 40, 20, right="bnk", bias=True).kernel()) for _ in range(2))
    assert one == two and accumulates(f32) is f32


@pytest.mark.quick(1)
@pytest.mark.usefixtures("configurations")
@pytest.mark.parametrize("pair", [(i8, i8), (u8, i8), (bf16, bf16)])
def test_without_instructions_for_small_types(
    pair: tuple[DType, DType], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyfuse_cpp.backend.dot_instructions", lambda: ())
    monkeypatch.setattr("polyfuse_cpp.isa.dot_instructions", lambda: ())
    # sizes of no other test, for the text is the same
    check(Matmul(9, 41, 131, dtype=pair[0], other=pair[1], right="bnk"))


@pytest.mark.quick(1)
@pytest.mark.usefixtures("configurations")
@pytest.mark.parametrize("right", ["bkn", "bnk"])
@pytest.mark.parametrize("shape", [(40, 75, 67), (16, 16, 31), (70, 40, 2100), (3, 33, 64)])
def test_bf16_in_pairs(shape: tuple[int, int, int], right: str) -> None:
    """In matrix registers too, where the machine has them."""
    m, n, k = shape
    check(Matmul(m, n, k, dtype=bf16, right=right, out_dtype=bf16, bias=True, pad=3))
    check(Matmul(m, n, k, dtype=bf16, right=right, dynamic="mk"))
    check(Matmul(m, n, k, dtype=bf16, left="bkm", right=right, pad=1))


@pytest.mark.quick(1)
@pytest.mark.usefixtures("configurations")
@pytest.mark.parametrize("shape", [(40, 48, 256), (9, 64, 288), (70, 32, 4160)])
def test_bf16_with_columns_as_rows(shape: tuple[int, int, int]) -> None:
    """Where the machine has matrix registers: in batches, in slices, for any number of rows."""
    m, n, k = shape
    kernel = Matmul(m, n, k, b=3, dtype=bf16, right="bnk").kernel()
    if "PF_AMX" in dot_instructions():
        assert OperandPath.TURNED in {config.get("path") for config in backend().configs(kernel)}
    check(Matmul(m, n, k, b=3, dtype=bf16, right="bnk", out_dtype=bf16, bias=True, pad=32))
    check(Matmul(m, n, k, dtype=bf16, right="bnk", dynamic="m"))


@pytest.mark.skipif(
    detect_isa().name != "avx512", reason="the CPU has no AVX-512, for which the test compiles"
)
def test_text_for_matrix_registers_builds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    every = ("PF_DOT_BF16", "PF_DOT_BYTES", "PF_AMX")
    for module in ("backend", "isa"):
        monkeypatch.setattr(f"polyfuse_cpp.{module}.dot_instructions", lambda: every)
    kernels = [Matmul(m, n, 100, dtype=bf16, right="bnk").kernel() for m in (8, 40) for n in (16, 50)]
    made = backend()
    found = [made.configs(kernel) for kernel in kernels]
    tiles = [next(c for c in configs if c.get("path") == OperandPath.TILES) for configs in found]
    sources = [made.emit(kernel, config) for kernel, config in zip(kernels, tiles, strict=True)]
    assert any("matrix_tile<2, 2" in source.text for source in sources)
    made.build(sources, tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("configurations")
@pytest.mark.parametrize("isa", ["", "scalar"])
@pytest.mark.parametrize("right", ["bkn", "bnk"])
def test_depths_that_threads_divide(right: str, isa: str) -> None:
    mm = Matmul(3, 21, 5000, right=right, bias=True, residual=True)
    assert any(c.get("slices") > 1 for c in backend(isa).configs(mm.kernel()))
    check(mm, isa)
    check(Matmul(2, 5, 1600, b=3, right=right, dynamic="k"), isa)


def test_slices_do_not_depend_on_the_threads() -> None:
    mm = Matmul(3, 21, 5000, right="bnk")
    kernel, tensors, found = mm.kernel(), mm.tensors(), []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            compiled(kernel)(*mm.arguments(tensors))
            found.append(tensors["result"].clone())
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
