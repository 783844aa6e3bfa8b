"""Small hand-written sources for tests of the Triton plugin's toolchain and launcher."""

from __future__ import annotations

from dataclasses import replace

from polyfuse.plugin import Source
from polyfuse_triton.build.meta import KernelMeta, MetaArg

ADD_ONE = """@triton.jit
def POLYFUSE_KERNEL(in0, out0, ks0, XBLOCK: tl.constexpr):
    i = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    mask = i < ks0
    tl.store(out0 + i, tl.load(in0 + i, mask) + 1, mask)
"""

META = KernelMeta(
    args=(
        MetaArg("in0", "ptr", "*fp32", True),
        MetaArg("out0", "ptr", "*fp32", True),
        MetaArg("ks0", "size", "i32"),
    ),
    constexprs=(("XBLOCK", 1024),),
    num_warps=4,
    num_stages=1,
    grid=("(ks0 + 1023) // 1024", 1, 1),
)


def source(text: str = ADD_ONE, name: str = "fused_add_one", **changes: object) -> Source:
    """A kernel; `changes` are to its meta."""
    return Source(name, text, "triton", meta=replace(META, **changes).text())  # type: ignore[arg-type]
