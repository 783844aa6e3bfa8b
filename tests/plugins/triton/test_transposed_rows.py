"""Weights of 8 bits with more than 16 rows, which are stored transposed for them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from requirements import TRITON

pytest.importorskip("triton", reason=TRITON)

from polyfuse.ir.expr import cast, load
from polyfuse.ir.nodes import Reduction
from polyfuse.ir.types import DType
from polyfuse.plugin import Source
from polyfuse.symbolic import axis
from polyfuse_triton.build.meta import KernelMeta, MetaArg
from polyfuse_triton.build.pipeline import compile_kernel, function_of
from polyfuse_triton.codegen import emit
from polyfuse_triton.matmul.few_rows import streaming_parts
from polyfuse_triton.target import known_target
from triton_gemms import int8_text, kernel_of
from triton_interpreted import in_interpreter

HOPPER = known_target("sm_90")


def layer(x: torch.Tensor, gate: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(torch.nn.functional.silu(x) * gate, w.to(x.dtype)) * scale


def normed(x: torch.Tensor, gate: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(torch.nn.functional.rms_norm(x, x.shape[1:]), w.to(x.dtype)) * scale


def across(x: torch.Tensor, gate: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Rows that are transposed already, of which only whole tiles are read so."""
    return torch.nn.functional.linear(x.t().contiguous().t(), w.to(x.dtype)) * scale


LAYERS = {f.__name__: f for f in (layer, normed, across)}


def faults_on(device: str, name: str, rows: int, columns: int, depth: int) -> list[str]:
    """What is wrong with a layer, and with the number of its kernels."""
    from polyfuse.compiler.reports.report import last_reports, reset_reports

    torch._dynamo.reset()
    reset_reports()
    torch.manual_seed(0)
    x, gate = (torch.randn(rows, depth, dtype=torch.bfloat16, device=device) for _ in range(2))
    w = torch.randint(-128, 128, (columns, depth), dtype=torch.int8, device=device)
    scale = torch.rand(columns, device=device).bfloat16()
    options = {"backends": "interpreted"} if device == "cpu" else {"strict": True}
    function = LAYERS[name]
    found = torch.compile(function, backend="polyfuse", options=options)(x, gate, w, scale)
    truth = function(x.double(), gate.double(), w, scale.double())
    off, usual = (
        float((t.double() - truth).norm() / truth.norm()) for t in (found, function(x, gate, w, scale))
    )
    wrong = [f"off by {off}, where eager mode is by {usual}"] if not off < 1.5 * usual + 1e-6 else []
    (report,) = last_reports()
    # what makes whole tiles of rows stores them transposed, and sums of parts are added up
    most = 3 if rows in (32, 64) else 4
    wrong += [f"{report.kernels} kernels"] if report.kernels > most else []
    return wrong + [f"calls {call}" for call in report.calls]


def faults(name: str, rows: int, depth: int) -> list[str]:
    """The same where Triton interprets, of a small layer, with the kernel's text."""
    from polyfuse.lowering.reductions import gemm_transposed
    from triton_interpreted import InterpretedTriton, offer

    offer()
    texts: list[str] = []
    plain, gemm_transposed._LAUNCHES = InterpretedTriton.emit, 0  # type: ignore[misc]

    def noted(self: Any, *args: Any) -> Source:
        source = plain(self, *args)
        texts.append(source.text)
        return source

    InterpretedTriton.emit = noted  # type: ignore[method-assign]
    found = faults_on("cpu", name, rows, 256, depth)
    reads = any("signed_words(" in text for text in texts)
    return found if reads != (name == "across" and rows != 64) else [*found, f"reads words: {reads}"]


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("rows, depth", [(33, 2816), (64, 1024), (17, 1408)])
def test_layers(name: str, rows: int, depth: int) -> None:
    """2816 is eight parts of three steps, of which the last one has one; 1408 has an odd number of steps."""
    assert not in_interpreter(faults, name, rows, depth)


@pytest.mark.gpu
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("rows", [17, 32, 40, 64])
@pytest.mark.parametrize("columns, depth", [(4096, 11008), (11008, 4096), (8200, 4224)])
def test_layers_on_a_device(name: str, rows: int, columns: int, depth: int) -> None:
    assert not faults_on("cuda", name, rows, columns, depth)


@pytest.mark.parametrize(
    "side, columns, depth, parts",
    [
        (64, 11008, 4096, 2),
        (64, 4096, 11008, 6),
        (64, 14336, 4096, 1),
        (32, 11008, 4096, 3),
        (32, 4096, 14336, 8),
    ],
)
def test_all_programs_are_there_at_once(side: int, columns: int, depth: int, parts: int) -> None:
    row, column, k = axis("i0", side - 3), axis("i1", columns), axis("k0", depth)
    x, w = load("x", k * side + row, DType.bf16), cast(load("w", column * depth + k, DType.i8), DType.bf16)
    matmul = Reduction("mm", (row, column), (k,), ("sums",), row * columns + column, "dot", (x, w))
    assert streaming_parts(matmul, HOPPER) == parts


@pytest.mark.quick(1)
@pytest.mark.parametrize("rows", [32, 64])
def test_each_thread_reads_words_of_its_own(rows: int) -> None:
    source = emit(kernel_of(int8_text(rows, side=rows)), None, HOPPER)
    assert "signed_words(" in source.text
    function = function_of(source.text.replace(Source.SYMBOL, "k_test"), "k_test")
    made = compile_kernel(function, KernelMeta.parse(source.meta), 90, 0, False)
    loop = made.ptx.split("$L__BB0_1:")[1].split("$L__BB0_1;")[0]
    # a step of 64 columns and 128 bytes is four reads of each of 128 threads, and copies of rows by 16 bytes
    assert loop.count("ld.shared.v4.b32") == 4 and loop.count("cp.async.cg") == 4 + rows // 8
    assert "wgmma" in loop and not any(
        word in loop for word in ("st.shared", "ld.shared.b", "ld.global", "cvt.rn")
    )
    assert made.spilled_bytes == 0


@pytest.mark.quick(1)
@pytest.mark.parametrize("arch", [80, 89])
def test_devices_before_hopper_read_them_too(arch: int) -> None:
    """Rows that the caller has transposed."""
    source = emit(kernel_of(int8_text(64, side=64)), None, known_target(f"sm_{arch}"))
    assert "signed_words(" in source.text
    function = function_of(source.text.replace(Source.SYMBOL, "k_test"), "k_test")
    assert compile_kernel(function, KernelMeta.parse(source.meta), arch, 0, False).code


@pytest.mark.parametrize("rows, side", [(40, 40), (33, 48)])
def test_rows_that_make_no_whole_tiles_are_read_one_by_one(rows: int, side: int) -> None:
    """Beyond the last row may be no memory."""
    assert "transposed_rows(" not in emit(kernel_of(int8_text(rows, side=side)), None, HOPPER).text


EVERY_BYTE = """
@triton.jit
def k_every(b, x, out, whole, order):
    line = tl.arange(0, 2)[:, None]
    at = line * 128 + tl.arange(0, 128)[None, :]
    tl.store(out + at, signed_words(b + line * 128, 128).to(tl.float32))
    tl.store(out + 256 + at, signed_words(b + line * 128, 128, line < 1).to(tl.float32))
    row = tl.arange(0, 4)[None, :]
    rows = tl.arange(0, 128)[:, None] * 4 + row
    tl.store(whole + rows, transposed_rows(x + row, 128, 4, False))
    tl.store(order + rows, transposed_rows(x + row, 128, 4, True))
"""


def every_byte() -> list[str]:
    """What is wrong with bytes and rows in the order of words; runs where Triton interprets."""
    from triton_interpreted import _launcher

    b = torch.stack([torch.randperm(256)[:128] for _ in range(2)]).to(torch.uint8).view(torch.int8)
    x, out = torch.arange(512).float(), torch.zeros(2, 2, 128)
    whole, order = torch.zeros(128, 4), torch.zeros(128, 4)
    types = (("b", "*i8"), *((name, "*fp32") for name in ("x", "out", "whole", "order")))
    args = tuple(MetaArg(name, "ptr", of) for name, of in types)
    _launcher(EVERY_BYTE, KernelMeta(args, (), 1, 1, (1, 1, 1)))(b, x, out, whole, order)
    steps = order[:, 0].long() // 4
    found = ["an order is none"] if not steps.sort().values.equal(torch.arange(128)) else []
    found += (
        ["rows"]
        if not whole.flatten().equal(x) or not (order - order[:, :1]).equal(whole - whole[:, :1])
        else []
    )
    found += ["numbers"] if not out[0].equal(b[:, steps].float()) else []
    # where there is no line, its bytes are zero
    return found + (["lines"] if not out[1].equal(b[:, steps].float() * torch.tensor([[1.0], [0.0]])) else [])


def test_every_byte_meets_its_row() -> None:
    assert in_interpreter(every_byte) == []
