"""Operands of Hopper's matrix instructions that lie in registers: these are not written while one that was
issued before may still read them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from requirements import TRITON

pytest.importorskip("triton", reason=TRITON)

from polyfuse.plugin import Source
from polyfuse_triton.build.meta import KernelMeta
from polyfuse_triton.build.pipeline import compile_kernel, function_of
from polyfuse_triton.codegen import emit
from polyfuse_triton.target import known_target
from triton_gemms import Case, convolution, int4_text, int8_text, kernel_of

_ROUNDS = 3


def loop_of(ptx: str) -> list[str]:
    """The lines of the loop over the depth."""
    lines = ptx[ptx.index("Loop Header") :].splitlines()
    last = next(i for i, line in enumerate(lines) if re.match(r"\s*(@!?%p\d+ )?bra", line))
    return lines[:last]


def overwritten(ptx: str) -> Iterator[str]:
    """Instructions that write what one may still read that multiplies."""
    under_way: list[set[str]] = []
    issued: set[str] = set()
    for line in loop_of(ptx) * _ROUNDS:
        text = line.strip()
        if text.startswith("wgmma.mma_async"):
            _, *left = re.findall(r"\{([^}]*)\}", text)  # behind the sums
            issued |= set(re.findall(r"%r\d+", "".join(left)))
        elif text.startswith("wgmma.commit_group"):
            under_way.append(issued)
            issued = set()
        elif text.startswith("wgmma.wait_group"):
            left_over = int(text.rstrip(";").split()[-1])
            under_way = under_way[len(under_way) - left_over :] if left_over else []
        elif found := re.match(r"(@!?%p\d+ )?[a-z][\w.:]*\s+(\{[^}]*\}|%r\d+)", text):
            if text.startswith(("st.", "cp.", "red.", "bar.")):
                continue
            written = set(re.findall(r"%r\d+", found[2]))
            if any(written & registers for registers in (issued, *under_way)):
                yield text


CASES = {
    "int4": int4_text(64),
    "int8": int8_text(64),
    "prologue": Case(4096, 4096, 4096, prologue="relu"),
    "scaled": Case(4096, 4096, 4096, prologue="dequantise"),
    "plain": Case(4096, 4096, 4096),
    "padded": convolution(8, 256, 256, 28, last=True),
}


@pytest.mark.parametrize("case", CASES)
def test_what_multiplies_has_read_its_operands(case: str) -> None:
    source = emit(kernel_of(CASES[case]), None, known_target("sm_90"))
    name = "k_test"
    function = function_of(source.text.replace(Source.SYMBOL, name), name)
    ptx = compile_kernel(function, KernelMeta.parse(source.meta), 90, 0, False).ptx
    in_registers = re.search(r"wgmma.mma_async.*\}, \{%r", ptx) is not None
    assert in_registers == (case not in ("plain", "padded"))
    assert ("multiplied(acc)" in source.text) == in_registers
    assert not list(overwritten(ptx))
