"""Results over inputs in Triton kernels: rows that are computed again, in Triton's interpreter."""

from __future__ import annotations

import pytest

from requirements import TRITON

pytest.importorskip("triton", reason=TRITON)

from triton_interpreted import in_interpreter, kit_faults, result_and_norm_faults, text_of

KERNEL = """
kernel k on cuda {
  numerics fast
  axes i0{64}
  raxes r0{12000}
  in in0: bf16[768000]
  in in1: f32[64]
  out out0: bf16[768000]
  out out1: bf16[768000]
  out out2: f32[64]
  alias out0, in0
  alias out2, in1
  row_buffer row0: f32[12000]
  once {
    v0 = load f32 in1[i0]
  }
  loop {
    v1 = load bf16 in0[12000*i0 + r0]
    v2 = cast f32 (v1)
    v3 = add f32 (v2, v0)
    v4 = cast bf16 (v3)
    store bf16 set out0[12000*i0 + r0] = v4
    store f32 set row0[r0] = v3
    v5 = reduce f32 max (v3)
  }
  once {
    v6 = add f32 (v5, v0)
    store f32 set out2[i0] = v6
  }
  loop {
    v7 = load f32 row0[r0]
    v8 = sub f32 (v7, v5)
    v9 = cast bf16 (v8)
    store bf16 set out1[12000*i0 + r0] = v9
  }
}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "rows", "numerics"),
    [
        pytest.param("bfloat16", 1500, "fast", marks=pytest.mark.slow),
        ("float16", 256, "fast"),
        ("bfloat16", 200, "eager"),
    ],
)
def test_a_result_and_its_norm(dtype, rows, numerics):
    assert in_interpreter(result_and_norm_faults, dtype, rows, numerics) == []


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_the_kit(every):
    assert in_interpreter(kit_faults, "alias", True, False, every) == []


def test_the_kit_finds_what_is_read_again():
    faults = in_interpreter(kit_faults, "alias", True, True)
    assert len(faults) >= 2 and all("activation and its norm" in fault for fault in faults)


@pytest.mark.parametrize("rows", [1, 2])
def test_what_is_written_over_is_stored_where_it_is_read_last(rows):
    text, refused = in_interpreter(text_of, KERNEL, (("rows", rows), ("r", 2048)))
    assert refused == ()
    assert text.count("tl.load(in0") == rows
    assert text.rindex("tl.load(in0") < text.index("tl.store(out0")
    # others load the value of the row too, until it is written over
    assert text.index("tl.debug_barrier()") < text.index("tl.store(out2")


def test_what_every_program_of_a_row_loads_is_not_written_over():
    _, refused = in_interpreter(text_of, KERNEL, (("rows", 3), ("r", 8192)))
    assert [(a.output, a.input) for a in refused] == [("out2", "in1")]
