"""What the C++ backend guesses of configurations, so that not all are built: sizes, layouts, lanes."""

from __future__ import annotations

import pytest

from cpp_kernels import KernelBuilder, backend
from cpp_matmuls import Matmul
from polyfuse.autotune.pruning import worth_building
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.types import DType
from polyfuse.plugin import Config
from polyfuse_cpp.isa import ISAS
from polyfuse_cpp.loops.entry import plainly_named
from polyfuse_cpp.matmul.paths import OperandPath
from polyfuse_cpp.matmul.plans import matmul_plans
from polyfuse_cpp.matmul.problem import matmul_of


def best(kernel: Kernel) -> float:
    made = backend()
    return min(made.estimate(kernel, config) for config in made.configs(kernel))


def test_larger_matmuls_take_longer():
    base = best(Matmul(64, 256, 256).kernel())
    for sizes in ((128, 256, 256), (64, 512, 256), (64, 256, 512)):
        assert best(Matmul(*sizes).kernel()) > 1.5 * base
    assert best(Matmul(64, 256, 256, b=4).kernel()) > 1.5 * base


def guesses(kernel: Kernel) -> dict[OperandPath, float]:
    made = backend()
    found: dict[OperandPath, float] = {}
    for config in made.configs(kernel):
        path, guess = OperandPath(config.get("path")), made.estimate(kernel, config)
        assert guess > 0
        found[path] = min(found.get(path, guess), guess)
    return found


def test_few_rows_do_not_pay_for_a_layout_and_many_do():
    for right in ("bkn", "bnk"):
        few, many = (guesses(Matmul(m, 512, 512, right=right).kernel()) for m in (4, 512))
        other = [path for path in few if not path.packed]
        assert min(few[path] for path in other) < few.get(OperandPath.PACKED, float("inf"))
        assert many[OperandPath.PACKED] <= 1.2 * min(many.values())


def test_a_tile_of_one_row_is_slow_for_many_rows():
    made, kernel = backend(), Matmul(240, 512, 512).kernel()
    plan = dict(made.configs(kernel)[0].values)
    one = Config(tuple({**plan, "rows": 1}.items()))
    assert made.estimate(kernel, one) > 1.5 * made.estimate(kernel, made.configs(kernel)[0])


@pytest.mark.parametrize(("columns", "vectors"), [(128, 2), (64, 2), (24, 3)])
def test_tiles_of_six_rows_are_taken_where_their_columns_are_whole(columns: int, vectors: int):
    """With four rows and three vectors, the last of eight vectors would leave half of the sums empty."""
    matmul, isa = matmul_of(plainly_named(Matmul(784, columns, 512).kernel())), ISAS["avx2"]
    packed = next(p for p in matmul_plans(matmul, isa) if p.path is OperandPath.PACKED)
    assert (packed.rows, packed.vectors) == (12 // vectors, vectors)


def test_rows_of_bf16_that_are_packed_for_pairs(monkeypatch: pytest.MonkeyPatch):
    """Without matrix registers, from nine rows on; two vectors leave room for tiles of more rows."""
    monkeypatch.setattr("polyfuse_cpp.isa.dot_instructions", lambda: ("PF_DOT_BF16",))
    kinds = {"dtype": DType.bf16, "right": "nk"}
    few, more = (
        matmul_plans(matmul_of(plainly_named(Matmul(rows, 256, 512, **kinds).kernel())), ISAS["avx512"])[0]
        for rows in (8, 16)
    )
    assert few.path is OperandPath.DOTS
    assert (more.path, more.rows, more.vectors) == (OperandPath.PAIRS, 8, 2)


def test_around_the_best_guess_nothing_is_tried():
    made, kernel = backend(), Matmul(240, 512, 512).kernel()
    best, *others = made.configs(kernel)
    assert not made.neighbours(kernel, best)
    near = [
        c for other in others if other.get("path") == best.get("path") for c in made.neighbours(kernel, other)
    ]
    assert near and all(c.get("path") == best.get("path") for c in near)


def copy(order: str) -> Kernel:
    k = KernelBuilder({"x0": 256, "x1": 256})
    k.arg("a"), k.out("o")
    s = k.section()
    index = k["x0"] * 256 + k["x1"] if order == "rows" else k["x1"] * 256 + k["x0"]
    s.store("o", index, s.op("neg", s.load("a", index)))
    return k.build()


@pytest.mark.parametrize("order", ["rows", "columns"])
def test_lanes_that_jump_in_memory_are_not_built(order):
    made, kernel = backend(), copy(order)
    if made.isa.lanes == 1:
        pytest.skip(
            "the CPU has no vector instructions, and the test compares loops to run their lanes along"
        )
    lanes = {c.get("lane"): made.estimate(kernel, c) for c in made.configs(kernel)}
    good, bad = (2, 1) if order == "rows" else (1, 2)
    assert lanes[bad] > 2 * lanes[good] and lanes[0] == lanes[good]
    built = worth_building(made, kernel, made.configs(kernel), 24)
    assert [c.get("lane") for c in built] == [0, good]


def test_one_sum_at_a_time_waits_for_itself():
    k = KernelBuilder({"x0": 64}, {"r0": 4096})
    k.arg("a"), k.out("o")
    s = k.section(True)
    total = s.reduce("sum", s.load("a", k["x0"] * 4096 + k["r0"]))
    k.section().store("o", k["x0"], total)
    made, kernel = backend(), k.build()
    one, four = (made.estimate(kernel, Config.of(unroll=count)) for count in (1, 4))
    assert one > four


def paths(rows: int, dtype: DType) -> set[int]:
    kernel = Matmul(rows, 64, 256, dtype=dtype, right="bnk").kernel()
    return {config.get("path") for config in backend().configs(kernel)}


@pytest.mark.parametrize(
    ("rows", "dtype", "taken"), [(96, "f32", True), (128, "f32", False), (128, "i8", True)]
)
def test_many_rows_of_wide_numbers_are_not_worth_reading_in_place(rows: int, dtype: str, taken: bool) -> None:
    assert (OperandPath.DOTS in paths(rows, DType(dtype))) is taken


def test_around_packed_weights_only_shorter_passes_are_tried() -> None:
    kernel = Matmul(300, 640, 3072, right="bnk").kernel()
    first, *others = backend().configs(kernel)
    config = next(c for c in others if c.get("path") == OperandPath.PACKED)
    depths = {
        c.get("depth") for c in backend().neighbours(kernel, config) if c.get("rows") == config.get("rows")
    }
    assert depths == {config.get("depth") // 2} and first not in backend().neighbours(kernel, first)


def test_the_gradient_of_a_pooling_is_worth_lanes_along_its_rows() -> None:
    """Its indices divide the lane axis, yet no element is gathered: the guess is of what is run."""
    k = KernelBuilder({"x0": 64, "x1": 56, "x2": 56})
    k.arg("a"), k.out("o")
    s = k.section()
    inside = s.op("lt", s.index((k["x2"] + 1) // 2), s.const(28, DType.i64))
    index = k["x0"] * 784 + (k["x1"] // 2) * 28 + (k["x2"] + 1) // 2
    value = s.load("a", index, mask=inside, other=s.const(0.0))
    s.store("o", k["x0"] * 3136 + k["x1"] * 56 + k["x2"], value)
    kernel, made = k.build(), backend()
    along = made.estimate(kernel, Config.of(lane=3))
    assert along == made.estimate(kernel, Config())
    assert all(made.estimate(kernel, Config.of(lane=axis)) > 2 * along for axis in (1, 2))
