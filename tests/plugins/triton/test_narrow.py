"""Weights of 8 and 4 bits that a matmul of several rows reads as they are stored, and scales in registers."""

from __future__ import annotations

import re

import pytest
import torch

from requirements import TRITON

pytest.importorskip("triton", reason=TRITON)

from polyfuse.plugin import Source
from polyfuse_triton.build.meta import KernelMeta, MetaArg
from polyfuse_triton.codegen import emit
from polyfuse_triton.target import known_target
from triton_gemms import int4_text, kernel_of
from triton_interpreted import in_interpreter


def low_first(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Two numbers in a byte, the first one in its lower half."""
    return torch.stack([(w & 15).to(x.dtype), (w >> 4).to(x.dtype)], -1)


def high_first(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Two numbers in a byte, the first one in its upper half."""
    return torch.stack([(w >> 4) & 15, w & 15], -1).to(x.dtype)


def signed(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Two numbers in a byte, with a sign in the upper bit of each half."""
    wide = w.view(torch.int8)
    return torch.stack([(wide << 4) >> 4, wide >> 4], -1).to(x.dtype)


def whole(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """One number in a byte."""
    return w.to(x.dtype)


def one_scale(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The same, where no groups divide the depth."""
    return w.view(torch.int8).to(x.dtype)


PACKED = {f.__name__: f for f in (low_first, high_first, signed, whole, one_scale)}


def faults(
    name: str, rows: int, group: int, dtype: torch.dtype, dynamic: bool = False, depth: int = 512
) -> list[str]:
    """What is wrong with a layer of 256 columns where Triton interprets."""
    from triton_interpreted import offer

    offer()
    return faults_on("cpu", name, rows, depth // group, group, dtype, dynamic)


def faults_on(
    device: str, name: str, rows: int, groups: int, group: int, dtype: torch.dtype, dynamic: bool = False
) -> list[str]:
    """What is wrong with a layer whose weight is taken apart by a function of `PACKED`: 256 columns, and so
    many groups.
    """
    from polyfuse.compiler.reports.report import last_reports, reset_reports

    torch._dynamo.reset()
    reset_reports()
    torch.manual_seed(0)
    columns, depth, apart = 256, groups * group, PACKED[name]
    groups = 1 if name == "one_scale" else groups
    numbers = 1 if name in ("whole", "one_scale") else 2
    w = torch.randint(0, 256, (columns, depth // numbers), dtype=torch.uint8, device=device)
    zero = torch.randint(0, 16, (columns, groups), device=device).to(dtype)
    scale = torch.rand(columns, groups, dtype=dtype, device=device) + 0.5

    def layer(x, w, zero, scale):
        weight = (apart(w, x).reshape(columns, groups, -1) - zero[:, :, None]) * scale[:, :, None]
        return torch.nn.functional.linear(x, weight.reshape(columns, depth)).relu()

    x = torch.randn(rows, depth, dtype=dtype, device=device)
    if dynamic:
        torch._dynamo.mark_dynamic(x, 0, min=2, max=64)
    options = {"backends": "interpreted"} if device == "cpu" else {"strict": True}
    found = torch.compile(layer, backend="polyfuse", options=options)(x, w, zero, scale)
    truth = layer(x.double(), w, zero.double(), scale.double())
    off, usual = (
        float((t.double() - truth).norm() / truth.norm()) for t in (found, layer(x, w, zero, scale))
    )
    wrong = [f"off by {off}, where eager mode is by {usual}"] if off > 1.5 * usual + 1e-6 else []
    (report,) = last_reports()
    return wrong + [f"calls {call}" for call in report.calls]


@pytest.mark.gpu
@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("rows", [1, 8, 17, 64])
@pytest.mark.parametrize("groups, group", [(16, 32), (16, 64), (16, 128), (86, 128)])
def test_layers_on_a_device(name: str, rows: int, groups: int, group: int) -> None:
    assert not faults_on("cuda", name, rows, groups, group, torch.bfloat16)


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize(
    "rows, group, dtype", [(8, 64, torch.bfloat16), (40, 128, torch.float16), (1, 32, torch.bfloat16)]
)
def test_layers(name: str, rows: int, group: int, dtype: torch.dtype) -> None:
    assert not in_interpreter(faults, name, rows, group, dtype)


@pytest.mark.quick(1)
@pytest.mark.parametrize("rows", [8, 33])
def test_parts_of_unequal_length(rows: int) -> None:
    """Of 22 groups one part has 12, since a step has two."""
    assert not in_interpreter(faults, "low_first", rows, 128, torch.bfloat16, False, 22 * 128)


@pytest.mark.slow
@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("rows", [1, 2, 3, 16, 17, 64])
@pytest.mark.parametrize("group", [16, 32, 256])
def test_layers_of_other_sizes(name: str, rows: int, group: int) -> None:
    assert not in_interpreter(faults, name, rows, group, torch.bfloat16)


INTEGERS = """
@triton.jit
def k_every(a, b, out):
    at = tl.arange(0, 256)
    unsigned, signed = tl.load(a + at), tl.load(b + at)
    tl.store(out + at, integer_bf16(unsigned & 127, 0))
    tl.store(out + 256 + at, integer_bf16(signed >> 4, -8))
    tl.store(out + 512 + at, integer_f16(unsigned, 0))
    tl.store(out + 768 + at, integer_f16(signed, -128))
    tl.store(out + 1024 + at, signed_byte_bf16(signed))
    tl.store(out + 1280 + at, low_half(unsigned) - 128)
    tl.store(out + 1536 + at, high_half(unsigned) - 128)
"""


def integers() -> list[int]:
    """Which rows of bytes become other numbers; runs where Triton interprets."""
    from triton_interpreted import _launcher

    a = torch.arange(256).to(torch.uint8)
    b, out = a.view(torch.int8), torch.zeros(7, 256)
    args = tuple(MetaArg(*arg) for arg in (("a", "ptr", "*u8"), ("b", "ptr", "*i8"), ("out", "ptr", "*fp32")))
    _launcher(INTEGERS, KernelMeta(args, (), 1, 1, (1, 1, 1)))(a, b, out)
    wanted = [a & 127, b >> 4, a, b, b, a & 15, a >> 4]
    return [k for k, right in enumerate(wanted) if not out[k].equal(right.float())]


def test_every_byte_becomes_its_number() -> None:
    assert in_interpreter(integers) == []


def executed(name: str, word: int) -> list[int]:
    """What the instructions of a device function make of a word: its results, register by register."""
    from polyfuse_triton.device import libdevice

    registers = {"$4": word}

    def number(text: str) -> int:
        return registers[text] if text in registers else int(text, 0)

    for line in getattr(libdevice, name).src.split('"""{')[1].split('}"""')[0].split(";"):
        op, _, rest = line.strip().partition(" ")
        if not op.startswith(("and", "shr", "prmt")):
            continue
        target, *given = (part.strip() for part in rest.split(","))
        first, second, *chosen = map(number, given)
        if chosen:
            both = (first | second << 32).to_bytes(8, "little")
            picked = bytes(both[chosen[0] >> shift & 7] for shift in (0, 4, 8, 12))
            registers[target] = int.from_bytes(picked, "little")
        else:
            registers[target] = first & second if op.startswith("and") else first >> second
    return [registers[f"${k}"] for k in range(4)]


def floats(words: list[int], dtype: torch.dtype) -> torch.Tensor:
    """The numbers in some words."""
    whole = b"".join(word.to_bytes(4, "little") for word in words)
    return torch.frombuffer(bytearray(whole), dtype=dtype).float()


def test_instructions_make_the_numbers_of_four_bytes() -> None:
    for first in range(0, 256, 4):
        each = torch.arange(first, first + 4)
        word = int.from_bytes(bytes(each.tolist()), "little")
        assert (floats(executed("low_half", word), torch.float32) - 128).equal((each & 15).float())
        assert (floats(executed("high_half", word), torch.float32) - 128).equal((each >> 4).float())
        bits, base = floats(executed("signed_bits", word), torch.bfloat16).reshape(2, 4)
        assert (bits - base).equal(each.to(torch.int8).float())


@pytest.mark.quick(1)
def test_a_byte_is_read_once_and_is_converted_in_registers() -> None:
    from polyfuse_triton.build.pipeline import compile_kernel, function_of

    source = emit(kernel_of(int4_text(8)), None, known_target("sm_90"))
    # both numbers of each byte are multiplied at once, and scales of two groups are a word
    assert [source.text.count(f"{name}(") for name in ("tl.load", "by_words", "tl.dot")] == [2, 1, 1]
    function = function_of(source.text.replace(Source.SYMBOL, "k_test"), "k_test")
    made = compile_kernel(function, KernelMeta.parse(source.meta), 90, 0, False)
    # no conversion of integers
    assert not re.search(r"cvt\.rn\S*\.[us]", made.ptx)
    # bytes arrive past registers while others are multiplied, and go to registers in the instruction's order
    assert "cp.async" in made.ptx and "mma.sync.aligned.m16n8k16" in made.ptx
    loop = made.ptx.split("$L__BB0_1:")[1].split("$L__BB0_1;")[0]
    assert "st.shared" not in loop and "ld.global" not in loop
    assert made.spilled_bytes == 0
