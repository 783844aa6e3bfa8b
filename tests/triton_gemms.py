"""Kernels that are matmuls, as IR text, for tests and measurements of the Triton code generator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ir_samples import inside_image
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.text.parse import parse

__all__ = [
    "COMPILED",
    "Case",
    "compiled_faults",
    "convolution",
    "int4_text",
    "int8_text",
    "kernel_of",
    "matmul_faults",
    "operands_of",
]

_WIDE = {"bf16": "f32", "f16": "f32", "f8e4m3": "f32", "f8e5m2": "f32", "i8": "i32", "u8": "i32"}


@dataclass(frozen=True)
class Case:
    """One product: sizes are numbers, or names of symbols with an example (`"s0~64"`).

    Attributes:
        m, n, k, batch: sizes; 1 leaves the axis out.
        dtype, right, out: types of the operands and of the result.
        left_by_rows, right_by_rows: whether the left one has its depth contiguous, the right one its columns.
        epilogue: `""`, `"bias_gelu"`, `"scaled"`, `"residual"` or `"dropout"`.
        prologue: `""`, `"relu"`, `"log"` (not finite at zero) or `"dequantise"`.
        kind: `dot` or `dot_tf32`.
        aligned: whether arguments are known to be.
        most: of the symbols.
    """

    m: int | str = 64
    n: int | str = 64
    k: int | str = 64
    batch: int | str = 1
    dtype: str = "bf16"
    right: str = ""
    out: str = ""
    left_by_rows: bool = True
    right_by_rows: bool = True
    epilogue: str = ""
    prologue: str = ""
    kind: str = "dot"
    aligned: bool = True
    most: int = 100000

    def sizes(self) -> dict[str, int]:
        """Example sizes of the symbols."""
        named = (part.split("~") for part in map(str, (self.m, self.n, self.k, self.batch)) if "~" in part)
        return {name: int(example) for name, example in named}

    def text(self) -> str:
        """The kernel."""
        return _Text(self).text()


def kernel_of(case: Case | str) -> Kernel:
    """The kernel of a case or of a text."""
    found = parse(case if isinstance(case, str) else case.text())
    assert isinstance(found, Kernel)
    return found


def int4_text(rows: int, columns: int = 1024, group: int = 64, parts: int = 1) -> str:
    """A product with a weight of 1024 rows, two numbers a byte, scaled in groups; or parts of such a sum."""
    groups, inside, depth = 1024 // group, group // 2, 1024 * parts
    part = [f" + {size}*p2" for size in (1024, 512, groups, columns * rows)] if parts > 1 else [""] * 4
    return f"""kernel narrow on cuda {{
 numerics fast
 axes {f"p2{{{parts}}} ~ {parts}, " if parts > 1 else ""}p0{{{rows}}} ~ {rows}, p1{{{columns}}} ~ {columns}
 raxes r0{{{groups}}} ~ {groups}, r1{{{inside}}} ~ {inside}, r2{{2}} ~ 2
 in x: bf16[{depth * rows}] aligned
 in w: u8[{depth // 2 * columns}] aligned
 in s: bf16[{groups * parts * columns}] aligned
 out out0: f32[{columns * rows * parts}] aligned
 once {{
  one = const i64 1
  none = const u8 0
  low = const u8 15
  four = const u8 4
 }}
 loop {{
  a = load bf16 x[{depth}*p0 + {group}*r0 + 2*r1 + r2{part[0]}]
  at = index i64 <r2>
  first = lt bool (at, one)
  b0 = load u8 w[{depth // 2}*p1 + {inside}*r0 + r1{part[1]}] if first else none
  b1 = bitwise_and u8 (b0, low)
  second = ge bool (at, one)
  b2 = load u8 w[{depth // 2}*p1 + {inside}*r0 + r1{part[1]}] if second else none
  b3 = shift_right u8 (b2, four)
  b4 = where u8 (first, b1, b3)
  b5 = cast f32 (b4)
  s0 = load bf16 s[{groups * parts}*p1 + r0{part[2]}]
  s1 = cast f32 (s0)
  b6 = mul f32 (b5, s1)
  b = cast bf16 (b6)
  acc = reduce f32 dot (a, b)
 }}
 once {{
  store f32 set out0[{columns}*p0 + p1{part[3]}] = acc
 }}
}}
"""


def int8_text(rows: int, columns: int = 1024, side: int = 0) -> str:
    """A product with a weight of 1024 rows, a signed number a byte; `side`: of rows that are stored
    transposed, so many side by side.
    """
    row = f"{side}*r0 + p0" if side else "1024*p0 + r0"
    return f"""kernel narrow on cuda {{
 numerics fast
 axes p0{{{rows}}} ~ {rows}, p1{{{columns}}} ~ {columns}
 raxes r0{{1024}} ~ 1024
 in x: bf16[{1024 * (side or rows)}] aligned
 in w: i8[{1024 * columns}] aligned
 out out0: f32[{columns * rows}] aligned
 loop {{
  a = load bf16 x[{row}]
  b0 = load i8 w[1024*p1 + r0]
  b1 = cast f32 (b0)
  b = cast bf16 (b1)
  acc = reduce f32 dot (a, b)
 }}
 once {{
  store f32 set out0[{columns}*p0 + p1] = acc
 }}
}}
"""


class _Text:
    def __init__(self, case: Case) -> None:
        self.case = case
        self.m, self.n, self.k, self.b = (
            str(part).split("~")[0] for part in (case.m, case.n, case.k, case.batch)
        )
        self.acc = _WIDE.get(case.dtype, case.dtype)
        self.out = case.out or case.dtype
        self.arguments: list[str] = []

    def text(self) -> str:
        case = self.case
        m, n, k, b = self.m, self.n, self.k, self.b
        left = "r0 + KK*p1" if case.left_by_rows else "p1 + MM*r0"
        right = "p2 + NN*r0" if case.right_by_rows else "r0 + KK*p2"
        loop = self._operand("a", "in0", f"{m}*{k}*{b}", f"{left} + MM*KK*p0", case.dtype)
        loop += self._operand("b", "in1", f"{k}*{n}*{b}", f"{right} + KK*NN*p0", case.right or case.dtype)
        loop.append(f"acc = reduce {self.acc} {case.kind} (a, b)")
        once = self._epilogue()
        lines = ["kernel product on cuda {"]
        sizes = case.sizes()
        if sizes:
            lines.append("symbols " + ", ".join(f"{name}{{1..{case.most}}}" for name in sizes))
        lines.append("numerics fast")
        parts = zip(("p0", "p1", "p2"), (case.batch, case.m, case.n), strict=True)
        axes = [
            f"{name}{{{str(size).split('~')[0]}}} ~ {str(size).split('~')[-1]}"
            for name, size in parts
            if size != 1
        ]
        if axes:
            lines.append("axes " + ", ".join(axes))
        lines.append(f"raxes r0{{{k}}} ~ {str(case.k).split('~')[-1]}")
        lines += self.arguments
        lines += [f"size {name}: i64 ~ {example}" for name, example in sizes.items()]
        lines += ["loop {", *loop, "}", "once {", *once, "}", "}"]
        text = "\n".join(lines)
        for name, size in (("MM", m), ("NN", n), ("KK", k)):
            text = text.replace(name, size)
        for name, size in (("p0", case.batch), ("p1", case.m), ("p2", case.n)):
            if size == 1:
                text = text.replace(f"*{name}]", "*0]").replace(name, "0")
        return text

    def _argument(self, kind: str, name: str, dtype: str, numel: str) -> None:
        self.arguments.append(f"{kind} {name}: {dtype}[{numel}]{' aligned' if self.case.aligned else ''}")

    def _operand(self, name: str, buffer: str, numel: str, index: str, dtype: str) -> list[str]:
        prologue = self.case.prologue if name == "a" else ""
        if prologue == "dequantise":
            self._argument("in", buffer, "i8", numel)
            self._argument("in", "scale", "f32", self.m)
            return [
                f"w0 = load i8 {buffer}[{index}]",
                "w1 = cast f32 (w0)",
                "w2 = load f32 scale[p1]",
                "w3 = mul f32 (w1, w2)",
                f"{name} = cast {dtype} (w3)",
            ]
        self._argument("in", buffer, dtype, numel)
        if not prologue:
            return [f"{name} = load {dtype} {buffer}[{index}]"]
        lines = [f"w0 = load {dtype} {buffer}[{index}]", "w1 = cast f32 (w0)"]
        lines += (
            ["w2 = const f32 0.0", "w3 = maximum f32 (w1, w2)"]
            if prologue == "relu"
            else ["w2 = abs f32 (w1)", "w3 = log f32 (w2)"]
        )
        return [*lines, f"{name} = cast {dtype} (w3)"]

    def _epilogue(self) -> list[str]:
        case, out = self.case, self.out
        index = "p2 + NN*p1 + MM*NN*p0"
        numel = f"{self.m}*{self.n}*{self.b}"
        lines: list[str] = []
        value = "acc"
        if case.epilogue == "bias_gelu":
            self._argument("in", "bias", out, self.n)
            lines = [
                f"e0 = load {out} bias[p2]",
                "e1 = cast f32 (e0)",
                "e2 = add f32 (acc, e1)",
                "e3 = const f32 0.7071067690849304",
                "e4 = mul f32 (e2, e3)",
                "e5 = erf f32 (e4)",
                "e6 = const f32 1.0",
                "e7 = add f32 (e5, e6)",
                "e8 = const f32 0.5",
                "e9 = mul f32 (e2, e8)",
                "value = mul f32 (e9, e7)",
            ]
            value = "value"
        elif case.epilogue == "scaled":
            self._argument("in", "rows", "f32", self.m)
            self._argument("in", "columns", "f32", self.n)
            lines = [
                "e0 = load f32 rows[p1]",
                "e1 = load f32 columns[p2]",
                f"e2 = cast f32 ({value})",
                "e3 = mul f32 (e2, e0)",
                "value = mul f32 (e3, e1)",
            ]
            value = "value"
        elif case.epilogue == "residual":
            self._argument("in", "more", out, numel)
            lines = [f"e0 = load {out} more[{index}]", "e1 = cast f32 (e0)", "value = add f32 (acc, e1)"]
            value = "value"
        elif case.epilogue == "dropout":
            self._argument("in", "seed", "i64", "1")
            lines = [
                "e0 = load i64 seed[0]",
                f"e1 = index i64 <{index}>",
                "e2 = rand f32 uniform (e0, e1)",
                "e3 = const f32 0.5",
                "e4 = gt bool (e2, e3)",
                "e5 = const f32 0.0",
                "value = where f32 (e4, acc, e5)",
            ]
            value = "value"
        held = "f32" if value == "value" else self.acc
        self._argument("out", "out0", out, numel)
        if out == held:
            lines.append(f"store {out} set out0[{index}] = {value}")
        else:
            lines += [f"last = cast {out} ({value})", f"store {out} set out0[{index}] = last"]
        if case.epilogue == "residual":
            # a second result, and a row of sums of nothing
            self._argument("out", "out1", "f32", numel)
            lines.append(f"store f32 set out1[{index}] = acc")
        return lines


def convolution(
    batch: int,
    channels: int,
    results: int,
    side: int,
    window: int = 3,
    last: bool = False,
    dtype: str = "bf16",
) -> str:
    """A convolution with padding that keeps the image's side; `last`: channels are contiguous."""
    c, o, s, w = channels, results, side, window
    pad = window // 2
    y, x = f"(p1 + r1 - {pad})", f"(p2 + r2 - {pad})"
    taken = (
        f"p0*{c * s * s} + r0 + {s * c}*{y} + {c}*{x}"
        if last
        else f"p0*{c * s * s} + {s * s}*r0 + {s}*{y} + {x}"
    )
    weight = (
        f"p3*{c * w * w} + r1*{w * c} + r2*{c} + r0" if last else f"p3*{c * w * w} + r0*{w * w} + r1*{w} + r2"
    )
    stored = (
        f"p0*{o * s * s} + p1*{s * o} + p2*{o} + p3" if last else f"p0*{o * s * s} + p3*{s * s} + p1*{s} + p2"
    )
    return f"""
kernel convolution on cuda {{
  numerics fast
  axes p0{{{batch}}} ~ {batch}, p1{{{s}}} ~ {s}, p2{{{s}}} ~ {s}, p3{{{o}}} ~ {o}
  raxes r0{{{c}}} ~ {c}, r1{{{w}}} ~ {w}, r2{{{w}}} ~ {w}
  in in0: {dtype}[{batch * c * s * s}] aligned
  in in1: {dtype}[{o * c * w * w}] aligned
  out out0: {dtype}[{batch * o * s * s}] aligned
  loop {{
    y = index i64 <p1 + r1 - {pad}>
    x = index i64 <p2 + r2 - {pad}>
    {inside_image(s, dtype)}
    a = load {dtype} in0[{taken}] if inside else nothing
    b = load {dtype} in1[{weight}]
    acc = reduce f32 dot (a, b)
  }}
  once {{
    v = cast {dtype} (acc)
    store {dtype} set out0[{stored}] = v
  }}
}}
"""


# --- what tests call where Triton is interpreted ------------------------------------------------------------


def operands_of(case: Case | str, seed: int) -> list[Any]:
    """Random operands: numbers of a size that sums stay exact enough to compare."""
    import torch

    from polyfuse.symbolic import evaluate

    generator = torch.Generator().manual_seed(seed)
    sizes = case.sizes() if isinstance(case, Case) else {}
    operands: list[Any] = []
    for arg in kernel_of(case).args:
        if arg.kind == "size":
            operands.append(sizes[arg.name])
            continue
        count = evaluate(arg.numel or 0, sizes)
        if arg.kind == "out":
            operands.append(torch.zeros(count, dtype=arg.dtype.torch))
        elif arg.dtype.is_float:
            operands.append(torch.randn(count, generator=generator).to(arg.dtype.torch))
        else:
            low = -100 if arg.dtype.is_signed else 0
            operands.append(torch.randint(low, 100, (count,), generator=generator).to(arg.dtype.torch))
    return operands


def matmul_faults(case: Case | str, config: Any, seed: int) -> tuple[list[str], str]:
    """What differs from the reference, and the text of the kernel."""
    import torch

    from triton_interpreted import run_text

    text = case if isinstance(case, str) else case.text()
    found, wanted, source = run_text(text, config, operands_of(case, seed))
    faults = []
    for position, (got, right) in enumerate(zip(found, wanted, strict=True)):
        if isinstance(got, torch.Tensor) and not _close(got, right):
            faults.append(f"argument {position} is off by {(got.double() - right.double()).abs().max()}")
    return faults, source


def _close(got: Any, wanted: Any) -> bool:
    import torch

    near = {torch.bfloat16: 1.6e-2, torch.float16: 2e-3, torch.float32: 1e-4, torch.float64: 1e-10}
    if got.dtype not in near:
        return torch.equal(got.view(torch.int8), wanted.view(torch.int8))
    got, wanted, within = got.double(), wanted.double(), near[got.dtype]
    usual = wanted[wanted.isfinite()].abs().mean() if wanted.isfinite().any() else 0.0
    return torch.allclose(got, wanted, within, within * float(usual), equal_nan=True)


COMPILED = ("linear", "batched", "prologue", "between", "bytes", "convolution", "groups")


def compiled_faults(name: str, dynamic: bool) -> list[str]:
    """A function with products, compiled with this backend alone, if it differs from eager mode."""
    import torch
    import torch.nn.functional as F

    from triton_interpreted import offer

    offer()
    torch.manual_seed(0)

    def r(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(*sizes).to(dtype)

    half = torch.bfloat16
    cases: dict[str, tuple[Any, tuple[torch.Tensor, ...]]] = {
        "linear": (
            lambda x, w, b: F.gelu(F.linear(x, w, b)),
            (r(20, 33, dtype=half), r(47, 33, dtype=half), r(47, dtype=half)),
        ),
        "batched": (
            lambda c, a, b: torch.baddbmm(c, a, b, beta=0.5, alpha=2.0),
            (r(3, 20, 17), r(3, 20, 33), r(3, 33, 17)),
        ),
        "prologue": (lambda a, b: (a.relu() * 2) @ b, (r(20, 33, dtype=half), r(33, 17, dtype=half))),
        "between": (lambda a, b, v: torch.softmax(a @ b, -1) @ v, (r(20, 33), r(33, 17), r(17, 8))),
        "bytes": (
            torch._int_mm,
            (
                torch.randint(-9, 9, (32, 32), dtype=torch.int8),
                torch.randint(-9, 9, (32, 24), dtype=torch.int8),
            ),
        ),
        "convolution": (
            lambda x, w, b: F.relu(F.conv2d(x, w, b, stride=2, padding=1)),
            (r(2, 3, 9, 9), r(5, 3, 3, 3), r(5)),
        ),
        "groups": (lambda x, w: F.conv2d(x, w, padding=1, groups=2), (r(2, 4, 8, 8), r(6, 2, 3, 3))),
    }
    options = {"backends": "interpreted", "gemm": "generated", "strict": True}
    function, given = cases[name]
    torch._dynamo.reset()
    found = torch.compile(function, backend="polyfuse", dynamic=dynamic, options=options)(*given)
    wanted = function(*given)
    return [] if _close(found, wanted) else [f"off by {(found.double() - wanted.double()).abs().max()}"]
