"""Kernels and graphs that several tests share."""

from __future__ import annotations

from polyfuse.ir.expr import Expr, apply, cast, const, index_value, load
from polyfuse.ir.graph import Graph, GraphInput, GraphOutput
from polyfuse.ir.kernel import Kernel, KernelArg, RowBuffer, Section
from polyfuse.ir.nodes import (
    Buffer,
    ExternCall,
    Opaque,
    Origin,
    Pointwise,
    Reduction,
    Scan,
    Scatter,
    TemplateCall,
    View,
)
from polyfuse.ir.statements import Compute, Constant, IndexValue, Load, Reduce, Store
from polyfuse.ir.types import DType
from polyfuse.symbolic import axis, symbol

F, I = DType.f32, DType.i64


def inside_image(side: int, dtype: str = "f32") -> str:
    """Statements, as text, by which a load at line `y` and pixel `x` of a square image is `nothing`
    where it is not `inside`.
    """
    return f"""zero = const i64 0
    end = const i64 {side}
    c0 = ge bool (y, zero)
    c1 = lt bool (y, end)
    c2 = ge bool (x, zero)
    c3 = lt bool (x, end)
    c4 = bitwise_and bool (c0, c1)
    c5 = bitwise_and bool (c2, c3)
    inside = bitwise_and bool (c4, c5)
    nothing = const {dtype} 0.0"""


def softmax_kernel() -> Kernel:
    """Three rows of five: a loop with a row buffer and an online softmax, then one that reads it."""
    i, r = axis("i0", 3), axis("r0", 5)
    first = (
        Load("v0", "in0", 5 * i + r, F),
        Store("row", r, "v0", F),
        Reduce(("m", "s"), "online_softmax", ("v0",), F),
    )
    second = (
        Load("v1", "row", r, F),
        Compute("v2", "sub", ("v1", "m"), F),
        Compute("v3", "exp", ("v2",), F),
        Compute("v4", "div", ("v3", "s"), F),
        Store("out0", 5 * i + r, "v4", F),
    )
    return Kernel(
        "softmax",
        "cpu",
        (i,),
        (r,),
        (KernelArg("in0", "in", F, 15, aligned=True), KernelArg("out0", "out", F, 15)),
        (RowBuffer("row", F, 5),),
        (Section(True, first), Section(True, second)),
        size_hints=(3, 5),
        origins=(Origin("aten._softmax.default", "softmax", "model.py:12"),),
    )


def gather_kernel() -> Kernel:
    """Dynamic size, an indirect masked load, and a combining store."""
    n = symbol("s0", 2, 64)
    i = axis("i0", n)
    body = (
        Load("k", "in1", i, I),
        IndexValue("p", (3 * i + 1) // 2),
        Constant("c", 4, I),
        Compute("ok", "lt", ("k", "c"), DType.bool),
        Constant("z", -0.5, F),
        Load("v", "in0", axis("@0", 4), F, ("k",), "ok", "z"),
        Store("out0", axis("@0", 4), "v", F, "add", ("k",), "ok"),
        Store("out1", i, "p", I),
    )
    args = (
        KernelArg("in0", "in", F, 4),
        KernelArg("in1", "in", I, n),
        KernelArg("out0", "inout", F, 4),
        KernelArg("out1", "out", I, n),
        KernelArg("s0", "size", I, hint=16),
    )
    return Kernel("gather_add", "cpu", (i,), (), args, (), (Section(False, body),), deterministic=True)


def _buffer(name: str, size: tuple, dtype: DType = F, kind: str = "temp") -> Buffer:
    stride: list = []
    total = 1
    for n in reversed(size):
        stride.insert(0, total)
        total = total * n
    torch_name = {F: "float32", I: "int64", DType.bool: "bool", DType.bf16: "bfloat16"}[dtype]
    return Buffer(name, dtype, "cpu", size, tuple(stride), torch_name, kind)


def graph() -> Graph:
    """Every kind of node, with a dynamic size."""
    n = symbol("s0", 2)
    i, j, r = axis("i0", n), axis("i1", 4), axis("r0", 4)
    x = load("x", 4 * i + j, F)
    row: Expr = load("b", i, F)
    centred = apply("sub", x, row)
    nodes = (
        Reduction(
            "n0",
            axes=(i,),
            raxes=(r,),
            outputs=("b", "", ""),
            index=i,
            kind="welford",
            values=(load("x", 4 * i + r, F),),
            origins=(Origin("aten.mean.dim", "mean", "model.py:3 in forward"),),
        ),
        Pointwise("n1", axes=(i, j), raxes=(), output="c", index=4 * i + j, value=centred),
        ExternCall("n2", op="aten.relu.default", args=(View("c", (n, 4), (4, 1)),), kwargs=(),
                   outputs=("d",)),
        Scan("n3", axes=(i,), raxes=(r,), outputs=("e",), index=4 * i + r, kind="sum",
             values=(load("d", 4 * i + r, F),)),
        Scatter("n4", axes=(i,), raxes=(), target="e", index=axis("@0", n) * 4 + 1,
                indirect=(load("p", i, I),), value=const(0.1, F), mode="add",
                mask=apply("lt", index_value(i), const(1, I))),
        TemplateCall("n5", op="aten.mm.default",
                     args=(View("e", (n, 4), (4, 1)), View("e", (4, n), (1, 4), 0)),
                     kwargs=(), outputs=("m",), out="out"),
        ExternCall("n6", op="aten.to.dtype", args=(View("m", (n, n), (n, 1)), Opaque(text="torch.bfloat16")),
                   kwargs=(("copy", True),), outputs=("h",)),
        Pointwise("n7", axes=(i,), raxes=(), output="o", index=i,
                  value=apply("add", cast(load("h", i, DType.bf16), F), const(float("nan"), F))),
    )  # fmt: skip
    buffers = (
        _buffer("x", (n, 4), kind="input"), _buffer("p", (n,), I, "input"), _buffer("b", (n,)),
        _buffer("c", (n, 4)), _buffer("d", (n, 4)), _buffer("e", (n, 4)), _buffer("m", (n, n)),
        _buffer("h", (n, n), DType.bf16), _buffer("o", (n,)),
    )  # fmt: skip
    return Graph(
        "sample_7",
        "inference",
        (GraphInput("s", "symint", n), GraphInput("x", "tensor", static=True), GraphInput("p", "tensor")),
        (GraphOutput(View("e", (n, 4), (4, 1))), GraphOutput(n * 2, "symint"), GraphOutput(None, "none"),
         GraphOutput(View("m", (2, 2), (n, 1), 1)), GraphOutput(View("o", (n,), (1,))),
         GraphOutput(View("m", (2, 2), (n, 1), 1), again=3)),
        {b.name: b for b in buffers},
        nodes,
        symbol_hints={"s0": 6},
    )  # fmt: skip
