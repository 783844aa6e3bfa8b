"""Arguments that may be one memory: the rule, the text, the verifier."""

from __future__ import annotations

from dataclasses import replace

import pytest

from polyfuse.base.errors import VerifyError
from polyfuse.ir.aliasing import permitted_aliases
from polyfuse.ir.digest import ir_digest
from polyfuse.ir.kernel import Alias, Kernel, KernelArg
from polyfuse.ir.text.parse import parse_kernel
from polyfuse.ir.text.print import text
from polyfuse.ir.verifier.verify import verify_kernel
from polyfuse.kit import KernelFacts, without_aliases

HEAD = """
kernel k on cpu {
  numerics fast
  axes i0{8}
  raxes r0{4}
  in in0: f32[32]
  in in1: f32[32]
  in in2: bf16[32]
  in in3: f32[8]
  out out0: f32[32]
  out out1: f32[8]
  ALIASES
  SECTIONS
}
"""
ROWS = """loop {
    v0 = load f32 in0[4*i0 + r0]
    v1 = load f32 in1[4*i0 + r0]
    v2 = add f32 (v0, v1)
    store f32 set out0[4*i0 + r0] = v2
    v3 = reduce f32 sum (v2)
  }
  once {
    store f32 set out1[i0] = v3
  }"""


def kernel(sections: str = ROWS, aliases: str = "") -> Kernel:
    return parse_kernel(HEAD.replace("SECTIONS", sections).replace("ALIASES", aliases))


def fault(sections: str, pair: str) -> str:
    with pytest.raises(VerifyError) as error:
        verify_kernel(kernel(sections, f"alias {pair}"))
    return str(error.value)


def test_aliases_are_part_of_a_kernel():
    plain, shared = kernel(), kernel(aliases="alias out0, in0\n  alias out0, in1")
    assert shared.aliases == (Alias("out0", "in0"), Alias("out0", "in1"))
    verify_kernel(shared)
    assert parse_kernel(text(shared)) == shared and "  alias out0, in0\n" in text(shared)
    assert plain != shared and ir_digest(plain) != ir_digest(shared)
    assert without_aliases(shared) == plain


def test_each_argument_is_permitted_once():
    assert permitted_aliases(kernel()) == (Alias("out0", "in0"), Alias("out1", "in3"))


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        ("out0, in9", "'in9', which is no argument"),
        ("in0, out0", "'in0' as out, and it is declared as in"),
        ("out0, in2", "differ in type or extent"),
        ("out0, in3", "differ in type or extent"),
    ],
)
def test_pairs_that_make_no_sense(pair, words):
    assert words in fault(ROWS, pair)


def test_the_same_pair_twice():
    assert "declared twice" in fault(ROWS, "out0, in0\n  alias out0, in0")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("in1[4*i0 + r0]", "in1[4*i0 + 3 - r0]", "read elsewhere"),
        ("set out0[4*i0 + r0]", "set out0[4*i0]", "several points along r0"),
        ("set out0[", "add out0[", "not stored to plainly"),
    ],
)
def test_accesses_that_forbid_it(old, new, words):
    found = kernel(ROWS.replace(old, new), "")
    assert Alias("out0", "in1") not in permitted_aliases(found)
    assert words in fault(ROWS.replace(old, new), "out0, in1")


def test_what_is_read_after_the_store():
    again = ROWS.replace("once {", "loop {\n    v4 = load f32 in0[4*i0 + r0]\n  }\n  once {")
    assert "read after" in fault(again, "out0, in0")
    verify_kernel(kernel(again, "alias out0, in1"))


def test_an_operand_of_a_matmul():
    index = "4*i0 + r0"
    product = ROWS.replace("v3 = reduce f32 sum (v2)", "v3 = reduce f32 dot (v0, v1)")
    product = product.replace(f"store f32 set out0[{index}] = v2", f"store f32 set out0[{index}] = v0")
    assert "operand of a matmul" in fault(product, "out0, in0")


def test_all_that_may_be_one_memory():
    args = tuple(KernelArg(f"x{n}", "in", kernel().args[0].dtype, 4) for n in range(5))
    pairs = (Alias("x3", "x1"), Alias("x4", "x1"), Alias("x4", "x2"))
    found = replace(kernel(), args=(*kernel().args, *args), aliases=pairs)
    facts = KernelFacts.of(found)
    assert facts.memories == dict.fromkeys(("x1", "x2", "x3", "x4"), "x1")
    assert facts.may_alias("x3", "x2") and not facts.may_alias("x0", "x1") and facts.may_alias("x0", "x0")
    assert facts.aliases_of(["x0", "x4"]) == {"x0", "x1", "x2", "x3", "x4"}
    shared = kernel(aliases="alias out0, in1")
    assert KernelFacts.of(shared).may_change == {"out0", "out1", "in1"}
