"""Device functions for AMD's GPUs, instead of CUDA's libdevice and of what is written in NVIDIA's
assembly: those that Triton has for them, and the few that it lacks.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.hip.libdevice import *  # noqa: F403
from triton.language.extra.hip.libdevice import cos

from polyfuse_triton.device.plain_bytes import (
    four_of_bytes,
    high_half,
    low_half,
    multiplied,
    pair_of_halves,
    signed_bits,
)

__all__ = [
    "anywhere",
    "cospi",
    "four_of_bytes",
    "high_half",
    "low_half",
    "mul_rn",
    "multiplied",
    "pair_of_halves",
    "quick_exp2",
    "quick_inverse",
    "signed_bits",
    "wait_for_cluster",
]


@triton.jit
def mul_rn(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """A product that is rounded, and never part of a multiplication with addition."""
    if a.dtype == tl.float64:
        return tl.inline_asm_elementwise(
            "v_mul_f64 $0, $1, $2", "=v,v,v", [a, b], dtype=tl.float64, is_pure=True, pack=1
        )
    return tl.inline_asm_elementwise(
        "v_mul_f32 $0, $1, $2", "=v,v,v", [a, b], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def cospi(a: tl.tensor) -> tl.tensor:
    """The cosine of so many halves of a circle."""
    # whole circles first: they would cost the cosine its digits
    return cos((a - 2 * tl.floor(a * 0.5)) * 3.141592653589793)


@triton.jit
def quick_exp2(a: tl.tensor) -> tl.tensor:
    """2 to the power of an f32 in one instruction."""
    return tl.inline_asm_elementwise("v_exp_f32 $0, $1", "=v,v", [a], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def quick_inverse(a: tl.tensor) -> tl.tensor:
    """1 / a of an f32 in one instruction."""
    return tl.inline_asm_elementwise("v_rcp_f32 $0, $1", "=v,v", [a], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def anywhere(a: tl.tensor) -> tl.tensor:
    """The same 32-bit integer, of which the compiler does not know how large it may be."""
    return tl.inline_asm_elementwise("v_mov_b32 $0, $1", "=v,v", [a], dtype=tl.int32, is_pure=True, pack=1)


@triton.jit
def wait_for_cluster() -> None:
    """Nothing: these GPUs start no clusters."""
