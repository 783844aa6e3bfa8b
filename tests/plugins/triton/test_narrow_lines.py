"""Weights of 4 bits with more than 16 rows: threads read sixteen bytes of a line and convert pairs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from requirements import TRITON

pytest.importorskip("triton", reason=TRITON)

from polyfuse.plugin import Source
from polyfuse_triton.build.meta import KernelMeta, MetaArg
from polyfuse_triton.build.pipeline import compile_kernel, function_of
from polyfuse_triton.codegen import emit
from polyfuse_triton.target import known_target
from triton_gemms import int4_text, int8_text, kernel_of
from triton_interpreted import in_interpreter


def text_of(kernel: str) -> tuple[str, KernelMeta]:
    source = emit(kernel_of(kernel), None, known_target("sm_90"))
    return source.text, KernelMeta.parse(source.meta)


@pytest.mark.quick(1)
@pytest.mark.parametrize("rows, group", [(32, 64), (64, 128)])
def test_lines_are_read_by_sixteen_bytes(rows: int, group: int) -> None:
    text, meta = text_of(int4_text(rows, group=group))
    assert "scaled_lines(" in text
    made = compile_kernel(function_of(text.replace(Source.SYMBOL, "k_test"), "k_test"), meta, 90, 0, False)
    loop = made.ptx.split("$L__BB0_1:")[1].split("$L__BB0_1;")[0]
    assert "wgmma" in loop and "ld.shared.v4.b32" in loop and "cp.async.cg" in loop
    # neither single bytes, nor numbers that pass through shared memory, nor conversions by instructions
    assert not any(word in loop for word in ("ld.shared.b8", "st.shared", "ld.global", "cvt.rn"))
    assert made.spilled_bytes == 0


@pytest.mark.quick(1)
@pytest.mark.parametrize("arch", [80, 89])
def test_devices_before_hopper_have_the_instructions(arch: int) -> None:
    source = emit(kernel_of(int4_text(64)), None, known_target(f"sm_{arch}"))
    assert "scaled_lines(" in source.text
    function = function_of(source.text.replace(Source.SYMBOL, "k_test"), "k_test")
    assert compile_kernel(function, KernelMeta.parse(source.meta), arch, 0, False).code


@pytest.mark.parametrize(
    "old, new",
    [
        # integers that wrap around, a product before the difference, another half, a scale of f32
        ("b5 = cast f32 (b4)", "b8 = sub u8 (b4, four)\n  b5 = cast f32 (b8)"),
        ("b6 = mul f32 (b5, s1)", "b7 = mul f32 (b5, s1)\n  b6 = sub f32 (b7, s1)"),
        ("b1 = bitwise_and u8 (b0, low)", "b1 = bitwise_and u8 (b0, four)"),
        ("s0 = load bf16 s", "s0 = load f32 s"),
    ],
)
def test_other_numbers_are_computed_one_by_one(old: str, new: str) -> None:
    kernel = int4_text(64).replace(old, new)
    assert new in kernel
    if "f32 s" in new:
        kernel = kernel.replace("in s: bf16", "in s: f32").replace("s1 = cast f32 (s0)", "s1 = neg f32 (s0)")
    text, _ = text_of(kernel)
    assert "tl.join(" in text and "scaled_lines(" not in text


def test_few_rows_are_as_they_were() -> None:
    """The instruction of two warps takes numbers in another order."""
    assert "scaled_lines(" not in text_of(int4_text(8))[0]


def test_no_group_beyond_the_last_column_is_read() -> None:
    """1000 columns are no whole tiles."""
    for rows in (8, 64):
        text, _ = text_of(int4_text(rows, 1000))
        reads = [line for line in text.splitlines() if "by_words(" in line or "_lines(" in line]
        assert reads and all("mm" in line for line in reads), text


def test_whole_bytes_have_fewer_stages_where_programs_are_many() -> None:
    """More than 16 rows: what other programs of a multiprocessor have asked for is on the way, too."""
    stages = [text_of(int8_text(64, columns))[1].num_stages for columns in (1024, 16384)]
    assert stages == [5, 3]
    assert text_of(int8_text(16, 16384))[1].num_stages == 4


EVERY_BYTE = """
@triton.jit
def k_every(b, z, s, out):
    line = tl.arange(0, 2)[:, None]
    group = line * 4 + tl.arange(0, 4)[None, :]
    zero, scale = tl.load(z + group), tl.load(s + group)
    at = line * 512 + tl.arange(0, 512)[None, :]
    lower = scaled_lines(b + line * 256, 256, zero, scale, False)
    upper = scaled_lines(b + line * 256, 256, zero, scale, True, line < 1)
    tl.store(out + at, lower.to(tl.float32))
    tl.store(out + 1024 + at, upper.to(tl.float32))
"""


def every_byte() -> list[str]:
    """What becomes other numbers; runs where Triton interprets."""
    from triton_interpreted import _launcher

    torch.manual_seed(0)
    b = torch.stack([torch.randperm(256) for _ in range(2)]).to(torch.uint8)
    z = torch.randint(0, 16, (2, 4)).bfloat16()
    s = torch.rand(2, 4).bfloat16()
    out = torch.zeros(2048)
    types = (("b", "*u8"), ("z", "*bf16"), ("s", "*bf16"), ("out", "*fp32"))
    args = tuple(MetaArg(name, "ptr", of) for name, of in types)
    _launcher(EVERY_BYTE, KernelMeta(args, (), 1, 1, (1, 1, 1)))(b, z, s, out)
    wanted = {}
    for name, halves in (("lower first", (b & 15, b >> 4)), ("upper first", (b >> 4, b & 15))):
        numbers = torch.stack(halves, -1).reshape(2, 4, 128).bfloat16()
        wanted[name] = ((numbers - z[..., None]) * s[..., None]).reshape(2, 512).float()
    # where there is no line, its bytes are zero
    none = (-z[1, :, None] * s[1, :, None]).expand(4, 128).reshape(512)
    wanted["upper first"][1] = none.float()
    found = out.split([1024, 1024])
    return [name for (name, x), y in zip(wanted.items(), found, strict=True) if not x.flatten().equal(y)]


def test_every_byte_becomes_its_number() -> None:
    assert in_interpreter(every_byte) == []


class Words:
    """Registers of a few instructions on words, as a GPU has them."""

    def __init__(self, name: str, given: Sequence[int]) -> None:
        from polyfuse_triton.device import libdevice

        self.values = {f"${2 + k}": value for k, value in enumerate(given)}
        source = getattr(libdevice, name).src.split('"""{')[1].split('}"""')[0]
        for line in source.split(";"):
            op, _, rest = line.strip().partition(" ")
            if op and not op.startswith("."):
                self._execute(op, [part.strip() for part in rest.split(",")])

    def _number(self, text: str) -> int:
        return self.values[text] if text in self.values else int(text, 0)

    def _execute(self, op: str, operands: list[str]) -> None:
        if op == "mov.b32" and operands[0].startswith("{"):
            self.values["result"] = self._number(operands[-1])
            return
        target, numbers = operands[0], [self._number(text) for text in operands[1:]]
        self.values[target] = INSTRUCTIONS[op](*numbers)

    @property
    def result(self) -> torch.Tensor:
        """Two bf16, the lower one first."""
        return numbers_in(self.values["result"])


def numbers_in(word: int) -> torch.Tensor:
    return torch.frombuffer(bytearray(word.to_bytes(4, "little")), dtype=torch.bfloat16).clone()


def word_of(numbers: torch.Tensor) -> int:
    return int.from_bytes(numbers.view(torch.uint8).numpy().tobytes(), "little")


def picked(first: int, second: int, chosen: int) -> int:
    both = (first | second << 32).to_bytes(8, "little")
    return int.from_bytes(bytes(both[chosen >> shift & 7] for shift in (0, 4, 8, 12)), "little")


def looked_up(a: int, b: int, c: int, table: int) -> int:
    assert table == 0xEA
    return a & b | c


INSTRUCTIONS = {
    "mov.b32": lambda a: a,
    "prmt.b32": picked,
    "lop3.b32": looked_up,
    "mad.lo.u32": lambda a, b, c: (a * b + c) & 0xFFFFFFFF,
    "fma.rn.bf16x2": lambda a, b, c: word_of(
        (numbers_in(a).double() * numbers_in(b).double() + numbers_in(c).double()).bfloat16()
    ),
}


def test_instructions_make_the_numbers_of_both_halves() -> None:
    zero, scale = torch.tensor([7.0, 7.0]).bfloat16(), torch.tensor([0.3, 0.3]).bfloat16()
    for byte in range(256):
        for number in range(4):
            word = 0x96969696 & ~(0xFF << 8 * number) | byte << 8 * number
            given = (word, number + 0x4440, word_of(zero), word_of(scale))
            wanted = (torch.tensor([byte & 15, byte >> 4]).bfloat16() - zero) * scale
            assert Words("pair_of_halves", given).result.equal(wanted), (byte, number)
