"""The module `libdevice` of device functions: CUDA's, or substitutes where Triton interprets kernels."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from packaging.version import Version

from polyfuse_triton.device import plain_bytes

__all__ = [
    "anywhere",
    "four_of_bytes",
    "high_half",
    "libdevice",
    "low_half",
    "multiplied",
    "pair_of_halves",
    "quick_exp2",
    "quick_inverse",
    "signed_bits",
    "wait_for_cluster",
]

libdevice: Any
quick_exp2: Any
quick_inverse: Any
anywhere: Any
low_half: Any
high_half: Any
signed_bits: Any
pair_of_halves: Any
four_of_bytes: Any
multiplied: Any
wait_for_cluster: Any
if triton.knobs.runtime.interpret:
    from polyfuse_triton.device import interpret

    libdevice = interpret
    low_half, high_half = plain_bytes.low_half, plain_bytes.high_half
    signed_bits = plain_bytes.signed_bits
    pair_of_halves = plain_bytes.pair_of_halves
    four_of_bytes = plain_bytes.four_of_bytes
    multiplied = plain_bytes.multiplied
    quick_exp2 = interpret.exp2  # type: ignore[attr-defined]

    @triton.jit
    def quick_inverse(a: tl.tensor) -> tl.tensor:
        """1 / a."""
        return 1.0 / a

    @triton.jit
    def anywhere(a: tl.tensor) -> tl.tensor:
        """The same number."""
        return a

    @triton.jit
    def wait_for_cluster() -> None:
        """Programs run one after the other."""

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

    if Version(triton.__version__) < Version("3.7"):

        @triton.jit
        def multiplied(total: tl.tensor) -> tl.tensor:
            """The same sums of 32 bits, once all that is added to them is there. Triton before 3.7 makes what
            Hopper's matrix instructions take from registers again while those of the last round still read
            it (triton-lang/triton#9433), unless something needs the sums.
            """
            return tl.inline_asm_elementwise("", "=r,0", [total], dtype=total.dtype, is_pure=True, pack=1)

    else:
        multiplied = plain_bytes.multiplied

    @triton.jit
    def wait_for_cluster() -> None:
        """Wait until all programs of the cluster are here, and see what they have stored."""
        tl.inline_asm_elementwise(
            "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned; mov.u32 $0, 0;",
            "=r",
            [],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )

    @triton.jit
    def low_half(a: tl.tensor) -> tl.tensor:
        """128 and the lower four bits of a byte as f32: of four bytes at a time, these become bits of 128."""
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 half;
            and.b32 half, $4, 0x0F0F0F0F;
            prmt.b32 $0, half, 0x43, 0x4055;
            prmt.b32 $1, half, 0x43, 0x4155;
            prmt.b32 $2, half, 0x43, 0x4255;
            prmt.b32 $3, half, 0x43, 0x4355;
            }""",
            "=&r,=&r,=&r,=&r,r",
            [a],
            dtype=tl.float32,
            is_pure=True,
            pack=4,
        )

    @triton.jit
    def high_half(a: tl.tensor) -> tl.tensor:
        """128 and the upper four bits of a byte as f32."""
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 half;
            shr.u32 half, $4, 4;
            and.b32 half, half, 0x0F0F0F0F;
            prmt.b32 $0, half, 0x43, 0x4055;
            prmt.b32 $1, half, 0x43, 0x4155;
            prmt.b32 $2, half, 0x43, 0x4255;
            prmt.b32 $3, half, 0x43, 0x4355;
            }""",
            "=&r,=&r,=&r,=&r,r",
            [a],
            dtype=tl.float32,
            is_pure=True,
            pack=4,
        )

    @triton.jit
    def signed_bits(a: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
        """A signed byte as a difference of two bf16: behind 128 follow 128 integers, in lower bits, and the
        sign's bit makes 256 of 128.
        """
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 low, sign;
            and.b32 low, $4, 0x7F7F7F7F;
            and.b32 sign, $4, 0x80808080;
            prmt.b32 $0, low, 0x43, 0x4140;
            prmt.b32 $1, low, 0x43, 0x4342;
            prmt.b32 $2, sign, 0x43, 0x4140;
            prmt.b32 $3, sign, 0x43, 0x4342;
            }""",
            "=&r,=&r,=&r,=&r,r",
            [a],
            dtype=(tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=4,
        )

    @triton.jit
    def pair_of_halves(
        word: tl.tensor, number: tl.tensor, zero: tl.tensor, scale: tl.tensor
    ) -> tuple[tl.tensor, tl.tensor]:
        """The lower and the upper half of byte `number` of a word, less `zero` and times `scale`, as bf16,
        rounded as in eager mode; these two hold one bf16 twice. Differences and products are what devices
        before Hopper have no instructions for: sums with products by -1, and with -0.
        """
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 two, base, minus, none;
            mov.b32 base, 0x43004300;
            mov.b32 minus, 0xBF80BF80;
            mov.b32 none, 0x80008000;
            prmt.b32 two, $2, 0, $3;
            mad.lo.u32 two, two, 4096, two;
            lop3.b32 two, two, 0x000F000F, base, 0xEA;
            fma.rn.bf16x2 two, base, minus, two;
            fma.rn.bf16x2 two, $4, minus, two;
            fma.rn.bf16x2 two, two, $5, none;
            mov.b32 {$0, $1}, two;
            }""",
            "=h,=h,r,r,r,r",
            [word, number + 0x4440, zero, scale],
            dtype=(tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=1,
        )

    @triton.jit
    def four_of_bytes(word: tl.tensor) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
        """The signed bytes of a word as bf16: as differences whose sign's bit makes 256 of 128."""
        n0, n2, n1, n3 = tl.inline_asm_elementwise(
            """{
            .reg .b32 low, sign, upper, minus;
            mov.b32 minus, 0xBF80BF80;
            lop3.b32 low, $4, 0x007F007F, 0x43004300, 0xEA;
            lop3.b32 sign, $4, 0x00800080, 0x43004300, 0xEA;
            fma.rn.bf16x2 low, sign, minus, low;
            mov.b32 {$0, $1}, low;
            shr.u32 upper, $4, 8;
            lop3.b32 low, upper, 0x007F007F, 0x43004300, 0xEA;
            lop3.b32 sign, upper, 0x00800080, 0x43004300, 0xEA;
            fma.rn.bf16x2 low, sign, minus, low;
            mov.b32 {$2, $3}, low;
            }""",
            "=h,=h,=h,=h,r",
            [word],
            dtype=(tl.bfloat16,) * 4,
            is_pure=True,
            pack=1,
        )
        return n0, n1, n2, n3
