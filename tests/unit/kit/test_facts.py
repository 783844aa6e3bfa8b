"""Facts about a kernel that code generators share."""

from __future__ import annotations

import pytest

from polyfuse.ir.statements import Load, Scan, Store
from polyfuse.ir.text.parse import parse_kernel
from polyfuse.ir.types import DType
from polyfuse.kit import KernelFacts, backward_slice

TEXT = """
kernel k on cpu {
  symbols s0{2..}
  numerics fast
  axes i0{8}, i1{s0}
  raxes r0{16}
  hints 8, 100, 16
  in in0: f32[128*s0]
  in in1: f32[16]
  in in2: i64[8]
  inout out0: f32[128*s0]
  out out1: f32[8*s0]
  size s0: i64 ~100
  ALIASES
  row_buffer row0: f32[16]
  row_buffer row1: f32[16]
  once {
    v0 = load i64 in2[i0]
    v1 = const f32 2.0
  }
  loop {
    v2 = load f32 in0[16*i0*s0 + 16*i1 + r0]
    v3 = load f32 in1[r0]
    v4 = mul f32 (v2, v3)
    store f32 set row0[r0] = v4
    v5 = reduce f32 sum (v4)
    v6 = load f32 out0[@0{128} + r0] @(v0)
    v7 = add f32 (v4, v6)
    store f32 set row1[r0] = v7
  }
  loop {
    v8 = load f32 row0[r0]
    v9 = load f32 row1[r0]
    v10 = add f32 (v8, v9)
    v11 = mul f32 (v10, v5)
    store f32 set out0[16*i0*s0 + 16*i1 + r0] = v11
  }
  once {
    store f32 set out1[i0*s0 + i1] = v5
  }
}
"""


def facts_of(text: str = TEXT, aliases: str = "") -> KernelFacts:
    return KernelFacts.of(parse_kernel(text.replace("  ALIASES\n", aliases)))


@pytest.fixture(scope="module")
def facts() -> KernelFacts:
    return facts_of()


def test_the_space(facts):
    assert facts.axes == ("i0", "i1") and facts.raxes == ("r0",)
    assert facts.hints == {"i0": 8, "i1": 100, "r0": 16} and facts.sizes["r0"] == 16
    assert facts.points(("i0", "r0")) == 128 and facts.points(()) == 1
    assert facts.symbols == {"s0": 100}


def test_definitions_and_types(facts):
    found = facts.definition("v2")
    assert isinstance(found, Load) and found.buffer == "in0"
    assert facts.definitions["v5"].section == 1
    assert facts.dtypes["v0"] is DType.i64 and facts.dtypes["v5"] is DType.f32
    assert facts.memory["row1"] is DType.f32 and "s0" not in facts.memory


def test_dependences(facts):
    assert facts.depends["v2"] == {"i0", "i1", "r0"} and facts.depends["v3"] == {"r0"}
    assert facts.depends["v5"] == {"i0", "i1"}, "a reduction runs over its axes"
    assert facts.depends["v6"] == {"i0", "r0"}, "an indirect value counts"
    assert facts.depends["v8"] == {"i0", "i1", "r0"}, "a row buffer belongs to one point"
    store = facts.writes("out1")[0].stmt
    assert isinstance(store, Store) and facts.depends_of(store) == {"i0", "i1"}
    assert facts.uniform("v3", facts.axes) and not facts.uniform("v3", facts.raxes)
    assert facts.uniform("v1", facts.sizes)


def test_accesses(facts):
    assert [a.buffer for a in facts.accesses] == ["in2", "in0", "in1", "out0", "out0", "out1"]
    assert len(facts.all_accesses) == len(facts.accesses) + 4
    read = facts.reads("in0")[0]
    assert read.strides == {"i0": 1600, "i1": 16, "r0": 1} and read.itemsize == 4
    assert read.is_contiguous("r0") and not read.is_contiguous("i1") and not read.is_contiguous("other")
    assert (read.section, read.looped, read.mode, read.is_store) == (1, True, "load", False)
    assert facts.reads("out0")[0].indirect == ("v0",) and facts.writes("out0")[0].mode == "set"
    assert facts.share(read) == 1.0 and facts.share(facts.reads("in1")[0]) == 1 / 800
    assert facts.share(facts.reads("out0")[0]) == 1.0, "an indirect access may reach anything"
    assert facts.written == {"row0", "row1", "out0", "out1"}


def test_what_may_run_elsewhere(facts):
    assert facts.is_pure(facts.definition("v2")) and not facts.is_pure(facts.definition("v6"))
    assert not facts.is_pure(facts.definition("v5")) and facts.is_pure(facts.definition("v4"))


def test_nonlinear_axes():
    assert facts_of().nonlinear_axes == frozenset()
    assert facts_of(TEXT.replace("in2[i0]", "in2[(i0 // 2)]")).nonlinear_axes == {"i0"}


def test_live_out(facts):
    assert facts.live_out(0) == ("v0",) and facts.live_out(1) == ("v5",) and facts.live_out(3) == ()


def test_row_buffers(facts):
    assert facts.row_value("row0") == "v4"
    load = facts.definition("v8")
    assert isinstance(load, Load) and facts.forwarded(load) == "v4"
    other = facts_of(TEXT.replace("v8 = load f32 row0[r0]", "v8 = load f32 row0[15 - r0]"))
    load = other.definition("v8")
    assert isinstance(load, Load) and other.row_value("row0") == "v4" and other.forwarded(load) is None


def test_recomputation(facts):
    assert facts.recomputable("v8", 2) and facts.recomputable("v5", 3)
    assert facts.recomputable("v6", 1) and not facts.recomputable("v6", 2), "out0 is stored to there"
    assert not facts.recomputable("v9", 2) and not facts.recomputable("v11", 2)
    assert facts_of().recomputable("v2", 2)
    aliased = TEXT.replace("inout out0", "out out0").replace(
        "v6 = load f32 out0[@0{128} + r0] @(v0)", "v6 = neg f32 (v2)"
    )
    assert facts_of(aliased).recomputable("v2", 2)
    assert not facts_of(aliased, "  alias out0, in0\n").recomputable("v2", 2)


def test_scans_cannot_be_recomputed():
    found = facts_of(TEXT.replace("v4 = mul f32 (v2, v3)", "v4 = scan f32 sum (v2)"))
    assert isinstance(found.definition("v4"), Scan) and not found.recomputable("v8", 2)
    assert found.depends["v4"] == {"i0", "i1", "r0"}


def test_spans():
    text = TEXT.replace("v1 = const f32 2.0", "v1 = index i64 <8*i0>\n    v12 = const i64 5000000000")
    found = facts_of(text)
    assert found.spans["v1"] == (0, 56) and found.fits_i32("v1")
    assert not found.fits_i32("v12") and not found.fits_i32("v0") and not found.fits_i32("v2")


def test_backward_slices(facts):
    names = [s.targets[0] for s in backward_slice(facts.statements, ["v11"])]
    assert names == ["v8", "v9", "v10", "v11"], "reductions are left out"
    names = [s.targets[0] for s in backward_slice(facts.statements, ["v11"], lambda stmt: False)]
    assert names == ["v2", "v3", "v4", "v5", "v8", "v9", "v10", "v11"]
