"""Which products a kernel uses more than once."""

from __future__ import annotations

import pytest

from polyfuse.ir.text.parse import parse
from polyfuse.kit import KernelFacts, shared_products

HEAD = """kernel k on cuda {
numerics fast
axes p0{4} ~ 4
raxes r0{8} ~ 8
in in0: f32[32]
in in1: f32[32]
out out0: f32[32]
out out1: f32[32]
"""
PRODUCT = """  v0 = load f32 in0[8*p0 + r0]
  v1 = load f32 in1[8*p0 + r0]
  v2 = mul f32 (v0, v1)
"""
STORE = "  store f32 set out0[8*p0 + r0] = "
AGAIN = PRODUCT.replace("v", "w")
CASES = {
    "once": (f"loop {{\n{PRODUCT}  v3 = add f32 (v2, v0)\n{STORE}v3\n}}", set()),
    "less its rounded self": (
        f"loop {{\n{PRODUCT}  v3 = round f32 (v2)\n  v4 = sub f32 (v2, v3)\n{STORE}v4\n}}",
        {"v2"},
    ),
    "by one statement twice": (f"loop {{\n{PRODUCT}  v3 = sub f32 (v2, v2)\n{STORE}v3\n}}", {"v2"}),
    "stored too": (
        f"loop {{\n{PRODUCT}  v3 = add f32 (v2, v0)\n{STORE}v3\n{STORE.replace('0[', '1[')}v2\n}}",
        {"v2"},
    ),
    "computed again in another loop": (
        f"loop {{\n{PRODUCT}  v3 = reduce f32 sum (v2)\n}}\n"
        f"loop {{\n{AGAIN}  w3 = sub f32 (w2, v3)\n{STORE}w3\n}}",
        {"v2", "w2"},
    ),
    "by a row buffer": (
        f"row_buffer row0: f32[8]\nloop {{\n{PRODUCT}"
        f"  store f32 set row0[r0] = v2\n  v3 = reduce f32 sum (v2)\n}}\n"
        f"loop {{\n  w2 = load f32 row0[r0]\n  w3 = sub f32 (w2, v3)\n{STORE}w3\n}}",
        {"v2"},
    ),
    "of equal values": (
        f"loop {{\n{PRODUCT}{AGAIN}  v3 = round f32 (v2)\n  v4 = sub f32 (w2, v3)\n{STORE}v4\n}}",
        {"v2", "w2"},
    ),
    "by a power of two": (
        f"loop {{\n{PRODUCT.replace('load f32 in1[8*p0 + r0]', 'const f32 0.25')}"
        f"  v3 = round f32 (v2)\n  v4 = sub f32 (v2, v3)\n{STORE}v4\n}}",
        set(),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_products_that_must_be_one_number(name: str) -> None:
    text, expected = CASES[name]
    kernel = parse(f"{HEAD}{text}\n}}")
    assert shared_products(KernelFacts.of(kernel)) == expected
