"""Which products are generated, with which tilings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cutlass_kernels import GELU, product
from polyfuse.base.errors import UnsupportedError
from polyfuse.plugin import Config
from polyfuse_cutlass.build.meta import KernelMeta
from polyfuse_cutlass.launch.launcher import resolved
from polyfuse_cutlass.problem import problem_of
from polyfuse_cutlass.space import configs, cycles, emit, neighbours
from polyfuse_cutlass.target import Target
from polyfuse_cutlass.tiling import SHARED_LIMIT, Tiling

TARGET = Target()
SHAPES = ((8192, 8192, 8192), (512, 4096, 4096), (16, 4096, 4096), (1, 11008, 4096), (77, 264, 72), (3, 5, 8))


@pytest.mark.parametrize("shape", SHAPES)
def test_every_tiling_offered_can_be_emitted(shape):
    kernel = product(*shape)
    found = configs(kernel, TARGET)
    assert found and len(found) == len(set(found))
    for config in found:
        assert Tiling.of(config).config == config
        assert KernelMeta.parse(emit(kernel, config, TARGET).meta).shared <= SHARED_LIMIT
    for config in neighbours(kernel, found[0], TARGET):
        assert config != found[0]
        emit(kernel, config, TARGET)


def test_the_first_is_what_is_emitted_without_a_choice():
    kernel = product(512, 1024, 256, epilogue=GELU)
    first = configs(kernel, TARGET)[0]
    assert (
        emit(kernel, None, TARGET)
        == emit(kernel, first, TARGET)
        == emit(product(512, 1024, 256, epilogue=GELU), first, TARGET)
    )


def test_few_rows_are_swapped_with_columns():
    assert Tiling.of(configs(product(8, 4096, 4096), TARGET)[0]).swap


@pytest.mark.parametrize(
    ("made", "reason"),
    (
        ({"depth": 20}, "rows may not begin"),
        ({"right": "columns", "columns": 20}, "rows may not begin"),
        ({"left": "rows", "dtype": "f32"}, "does not run along the depth"),
        ({"dtype": "f32"}, ""),
        ({"dtype": "i8", "right": "columns"}, "does not run along the depth"),
    ),
)
def test_what_the_hardware_cannot_take_is_refused(made, reason):
    kernel = product(**{"rows": 64, "columns": 64, "depth": 64, "out": "bf16", **made})
    if not reason:
        assert configs(kernel, TARGET)
        return
    with pytest.raises(UnsupportedError, match=reason):
        configs(kernel, TARGET)


def test_few_rows_are_shared_out_evenly():
    offered = [Tiling.of(config) for config in configs(product(16, 4096, 4096), TARGET)]
    tilings = [t for t in offered if t.used]
    assert tilings and all(4096 / (t.used / t.split) <= 2 * TARGET.multiprocessors for t in tilings)
    meta = KernelMeta.parse(emit(product(16, 4096, 4096), tilings[0].config, TARGET).meta)
    assert meta.maps[0].box[1] == tilings[0].used


@pytest.mark.parametrize(
    "tiling",
    (
        Tiling(1, 16, consumers=1, swap=True, used=20),
        Tiling(1, 16, consumers=1, swap=True, used=72),
        Tiling(1, 16, consumers=1, stages=2, swap=True, used=16),
        Tiling(1, 64, pingpong=True, swap=True, used=32),
        Tiling(1, 96, fragment=64),
    ),
)
def test_a_part_of_a_tile_that_cannot_be_taken_alone_is_refused(tiling):
    with pytest.raises(UnsupportedError, match="choose another tiling"):
        emit(product(16, 4096, 4096), tiling.config, TARGET)


def test_tiles_fit_the_number_of_multiprocessors():
    """256 x 14336 in tiles of 128 x 256 would leave 20 of 132 without work."""
    tilings = [Tiling.of(config) for config in configs(product(256, 14336, 4096), TARGET)]
    assert any(128 <= -(-256 // t.rows) * -(-14336 // t.columns) <= 132 for t in tilings)
    alike = [(t.blocks, t.columns, t.consumers, t.pingpong, t.split, t.swap) for t in tilings]
    assert max(map(alike.count, alike)) == 3


FASTEST = (
    ((4096, 4096, 4096), "f8e4m3", 0, Tiling(1, 128, down=2)),
    ((4096, 14336, 4096), "f8e4m3", 0, Tiling(1, 176, across=2)),
    ((8192, 8192, 8192), "f8e4m3", 0, Tiling(1, 192, across=2)),
    ((1024, 14336, 4096), "f8e4m3", 0, Tiling(1, 176, across=2)),
    ((4096, 4096, 4096), "bf16", 0, Tiling(2, 128, pingpong=True, across=2)),
    ((1024, 14336, 4096), "bf16", 0, Tiling(2, 128, pingpong=True, across=2)),
    ((2048, 2048, 128), "bf16", 32, Tiling(1, 256, across=2)),
    ((512, 512, 64), "bf16", 96, Tiling(2, 128, pingpong=True)),
    ((256, 4096, 14336), "bf16", 0, Tiling(1, 128, pingpong=True)),
    ((256, 6144, 4096), "bf16", 0, Tiling(1, 192, pingpong=True)),
    ((512, 4096, 4096), "bf16", 0, Tiling(1, 128)),
    ((512, 512, 512), "bf16", 0, Tiling(1, 16, across=2)),
    ((64, 14336, 4096), "bf16", 0, Tiling(1, 64, swap=True, used=112)),
    ((128, 32000, 4096), "bf16", 0, Tiling(1, 256)),
)
"""Sizes, and what was fastest on an H200."""


@pytest.mark.parametrize(("shape", "dtype", "batch", "fastest"), FASTEST)
def test_what_was_fastest_is_offered(shape, dtype, batch, fastest):
    offered = [Tiling.of(c) for c in configs(product(*shape, dtype=dtype, batch=batch), TARGET)]
    assert fastest in [replace(t, stages=fastest.stages, fragment=fastest.fragment) for t in offered]


def test_whole_lines_are_stored_where_that_costs_no_stage():
    tilings = [Tiling.of(config) for config in configs(product(4096, 4096, 4096), TARGET)]
    assert any(t.fragment == 64 for t in tilings)
    for t in tilings:
        deeper, longer = replace(t, fragment=32, stages=t.stages + 1), replace(t, fragment=64)
        assert t.fragment == 32 or deeper.shared_bytes > SHARED_LIMIT
        assert t.fragment == 64 or t.consumers == 1 or t.columns % 64 or longer.shared_bytes > SHARED_LIMIT
    near = [Tiling.of(c) for c in neighbours(product(4096, 4096, 4096), tilings[0].config, TARGET)]
    assert {t.fragment for t in near} == {32, 64}


def test_sums_of_narrow_floats_are_taken_out_in_two_parts_where_a_tile_is_wide():
    kernel = product(512, 512, 512, dtype="f8e4m3")
    assert "constexpr int ACCUMULATOR_SPLITS = 2;" in emit(kernel, Tiling(1, 256).config, TARGET).text
    assert "constexpr int ACCUMULATOR_SPLITS = 1;" in emit(kernel, Tiling(1, 192).config, TARGET).text
    assert (
        "constexpr int ACCUMULATOR_SPLITS = 1;"
        in emit(product(512, 512, 512), Tiling(1, 256).config, TARGET).text
    )


def test_stages_that_are_multiplied_twice_leave_room_in_the_ring():
    kernel = product(512, 512, 512, dtype="f8e4m3")
    wide = Tiling(2, 128, stages=4)
    for tiling, interval in ((wide, 2), (replace(wide, stages=2), 1), (Tiling(1, 64), 2)):
        assert f"constexpr int INTERVAL = {interval};" in emit(kernel, tiling.config, TARGET).text
        assert interval < tiling.stages


def test_sums_of_narrow_floats_stay_in_the_multipliers_where_few_bits_are_enough():
    kernel = product(512, 512, 512, dtype="f8e4m3", kind="dot_fast")
    text = emit(kernel, Tiling(1, 256).config, TARGET).text
    assert "constexpr bool PROMOTES = false;" in text and "constexpr int ACCUMULATOR_SPLITS = 1;" in text
    accurate = emit(product(512, 512, 512, dtype="f8e4m3"), Tiling(1, 256).config, TARGET).text
    assert "constexpr bool PROMOTES = true;" in accurate


def test_addresses_that_may_be_odd_are_refused():
    kernel = product(64, 64, 64)
    args = tuple(replace(arg, aligned=False) if arg.name == "in1" else arg for arg in kernel.args)
    with pytest.raises(UnsupportedError, match="address"):
        configs(replace(kernel, args=args), TARGET)


def test_stores_that_combine_are_refused():
    with pytest.raises(UnsupportedError, match="combines"):
        text = product(64, 64, 64)
        section = text.sections[1]
        store = section.body[-1]
        body = (*section.body[:-1], replace(store, mode="add"))
        configs(replace(text, sections=(text.sections[0], replace(section, body=body))), TARGET)


def test_an_impossible_tiling_is_refused():
    with pytest.raises(UnsupportedError, match="shared memory"):
        emit(product(64, 64, 64), Tiling(2, 128, stages=9).config, TARGET)


def test_configurations_are_plain_numbers():
    assert all(isinstance(value, int) for _, value in Tiling().config.values)
    assert isinstance(Tiling().config, Config)


def test_batches_along_which_an_operand_does_not_vary_are_not_in_its_map():
    problem = problem_of(product(64, 64, 64, batch=5, shared=True))
    assert problem.left.batches == (0,) and problem.right.batches == ()


def test_sizes_of_a_launch_follow_from_symbols():
    meta = KernelMeta.parse(emit(product(300, 256, 64, dynamic=True), Tiling(1, 128).config, TARGET).meta)
    sizes = resolved(meta, (300,))
    assert sizes.tiles == 3 * 2
    assert sizes.extents == ((64, 300, 1), (64, 256, 1), (256, 300, 1))
    assert sizes.strides == ((128, 16), (128, 16), (512, 16))
    assert resolved(meta, (0,)).tiles == 0


def test_estimates_order_sizes_and_tiles():
    kernel = product(4096, 4096, 4096)
    found = configs(kernel, TARGET)
    guesses = [cycles(kernel, config, TARGET) for config in found]
    assert guesses[0] <= 1.05 * min(guesses) and min(guesses) > 0
    for sizes in ((8192, 4096, 4096), (4096, 8192, 4096), (4096, 4096, 8192)):
        assert cycles(product(*sizes), found[0], TARGET) > 1.5 * guesses[0]
    # small tiles read their operands again and again
    small = replace(Tiling.of(found[0]), blocks=1, columns=64, consumers=1, pingpong=False, across=1, down=1)
    assert cycles(kernel, small.config, TARGET) > 1.2 * guesses[0]
