"""The module `libdevice` of device functions: CUDA's, or substitutes where Triton interprets kernels."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

__all__ = ["anywhere", "libdevice", "quick_exp2", "quick_inverse"]

libdevice: Any
quick_exp2: Any
quick_inverse: Any
anywhere: Any
if triton.knobs.runtime.interpret:
    from polyfuse_triton.device import interpret

    libdevice = interpret
    quick_exp2 = interpret.exp2  # type: ignore[attr-defined]

    @triton.jit
    def quick_inverse(a: tl.tensor) -> tl.tensor:
        """1 / a."""
        return 1.0 / a

    @triton.jit
    def anywhere(a: tl.tensor) -> tl.tensor:
        """The same number."""
        return a

else:
    from triton.language.extra import cuda

    libdevice = cuda.libdevice

    @triton.jit
    def quick_exp2(a: tl.tensor) -> tl.tensor:
        """2 to the power of an f32 in one instruction, to about two units in the last place; what is smaller
        than normal numbers becomes zero.
        """
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [a], dtype=tl.float32, is_pure=True, pack=1
        )

    @triton.jit
    def quick_inverse(a: tl.tensor) -> tl.tensor:
        """1 / a of an f32 in one instruction, to about a unit in the last place; what is smaller than normal
        numbers counts as zero.
        """
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [a], dtype=tl.float32, is_pure=True, pack=1
        )

    @triton.jit
    def anywhere(a: tl.tensor) -> tl.tensor:
        """The same 32-bit integer, of which the compiler does not know how large it may be."""
        return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [a], dtype=tl.int32, is_pure=True, pack=1)
