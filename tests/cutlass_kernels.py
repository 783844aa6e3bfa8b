"""Matrix multiplications as IR text, for tests of the CUTLASS plugin."""

from __future__ import annotations

from dataclasses import replace

from polyfuse.ir.kernel import Kernel, KernelArg
from polyfuse.ir.statements import Store
from polyfuse.ir.text.parse import parse
from polyfuse.ir.types import DType
from polyfuse.plugin import Source
from polyfuse_cuda.toolchain import find_compiler
from polyfuse_cutlass.codegen.row_statistics import COLUMNS, ROWS

__all__ = ["folded", "generated_part", "nvcc_options", "product"]

GELU = (
    *("b0 = load {out} bias[i1]", "b1 = cast f32 (b0)", "b2 = add f32 ({sum}, b1)"),
    *(
        "b3 = const f32 0.7071067811865476",
        "b4 = mul f32 (b2, b3)",
        "b5 = erf f32 (b4)",
        "b6 = const f32 1.0",
    ),
    *("b7 = add f32 (b5, b6)", "b8 = const f32 0.5", "b9 = mul f32 (b2, b8)", "value = mul f32 (b9, b7)"),
)
RESIDUAL = (
    *("b0 = load {out} bias[i1]", "b1 = cast f32 (b0)", "b2 = add f32 ({sum}, b1)"),
    *("b3 = load {out} added[{index}]", "b4 = cast f32 (b3)", "value = add f32 (b2, b4)"),
)
SCALED = (
    *("of_row = load f32 scale[i0]", "of_column = load {out} bias[i1]", "b1 = cast f32 (of_column)"),
    *("b2 = mul f32 ({sum}, of_row)", "value = add f32 (b2, b1)"),
)
PLAIN = ("one = const f32 1.0", "value = mul f32 ({sum}, one)")


def product(
    rows: int,
    columns: int,
    depth: int,
    *,
    batch: int = 0,
    left: str = "depth",
    right: str = "depth",
    dtype: str = "bf16",
    out: str = "bf16",
    epilogue: tuple[str, ...] = PLAIN,
    shared: bool = False,
    dynamic: bool = False,
    deep: bool = False,
    index: str = "",
    pitch: int = 0,
    numerics: str = "fast",
    kind: str = "",
) -> Kernel:
    """A product with an epilogue from a sum in f32 to `value`.

    `left` and `right` say along what the operands run in memory: `depth`, or rows or columns. With `shared`
    there is one right operand for the whole batch; with `dynamic` the number of rows is a symbol, with `deep`
    the depth is one times 64. `kind` is that of the contraction, if not the one usual for `dtype`, and
    `pitch` the step from a row of the result to the next, if rows do not follow each other.
    """
    m = "s0" if dynamic else str(rows)
    n, k = columns, "64*s0" if deep else depth
    whole = dtype in ("i8", "u8")
    at_left = f"{k}*i0 + r0" if left == "depth" else f"{m}*r0 + i0"
    at_right = f"{k}*i1 + r0" if right == "depth" else f"{n}*r0 + i1"
    pitch = pitch or n
    at = index or f"{pitch}*i0 + i1"
    axes = [f"i0{{{m}}} ~ {rows}", f"i1{{{n}}} ~ {n}"]
    count = max(batch, 1)
    if batch:
        axes.insert(0, f"b0{{{batch}}} ~ {batch}")
        at_left = f"{k}*{m}*b0 + {at_left}"
        at = f"{pitch}*{m}*b0 + {at}"
        if not shared:
            at_right = f"{n}*{k}*b0 + {at_right}"
    lines = [line.format(sum="total" if whole else "product", out=out, index=at) for line in epilogue]
    if whole:
        lines.insert(0, "total = cast f32 (product)")
    if out == "f32":
        lines.append(f"store f32 set out0[{at}] = value")
    else:
        lines += [f"rounded = cast {out} (value)", f"store {out} set out0[{at}] = rounded"]
    arguments = [
        f"in in0: {dtype}[{count}*{k}*{m}] aligned",
        f"in in1: {dtype}[{1 if shared else count}*{n}*{k}] aligned",
    ]
    body = "\n".join(lines)
    if "bias[" in body:
        arguments.append(f"in bias: {out}[{n}] aligned")
    if "scale[" in body:
        arguments.append(f"in scale: f32[{m}] aligned")
    if "added[" in body:
        arguments.append(f"in added: {out}[{count * n}*{m}] aligned")
    arguments.append(f"out out0: {out}[{count * pitch}*{m}] aligned")
    if dynamic or deep:
        arguments.append(f"size s0: i64 ~ {rows if dynamic else depth // 64}")
    text = f"""kernel product on cuda {{
{"symbols s0{1..}" if dynamic or deep else ""}
numerics {numerics}
axes {", ".join(axes)}
raxes r0{{{k}}} ~ {depth}
{chr(10).join(arguments)}
loop {{
  x = load {dtype} in0[{at_left}]
  y = load {dtype} in1[{at_right}]
  product = reduce {"i32" if whole else "f32"} {kind or ("dot_tf32" if dtype == "f32" else "dot")} (x, y)
}}
once {{
{body}
}}
}}"""
    found = parse("\n".join(line for line in text.splitlines() if line))
    assert isinstance(found, Kernel)
    return found


def folded(kernel: Kernel, mode: str, along: str) -> Kernel:
    """A kernel that stores, besides its results, what groups of `value` come to along rows or columns."""
    rows, columns = kernel.sizes[-2:]
    x, y = kernel.axes[-2:]
    if along == "rows":
        groups = (rows + ROWS - 1) // ROWS
        index, extent = x // ROWS * columns + y, groups * columns
    else:
        groups = (columns + COLUMNS - 1) // COLUMNS
        index, extent = x * groups + y // COLUMNS, rows * groups
    arg = KernelArg("out1", "out", DType.f32, extent, True)
    sizes = [a for a in kernel.args if a.kind == "size"]
    args = (*(a for a in kernel.args if a.kind != "size"), arg, *sizes)
    *loops, last = kernel.sections
    store = Store("out1", index, "value", DType.f32, mode)
    return replace(kernel, args=args, sections=(*loops, replace(last, body=(*last.body, store))))


def generated_part(source: Source) -> str:
    """What is written for one kernel alone: its text before the fixed text, and its meta."""
    start = source.text.index("namespace in_")
    # where the fixed text of multiplications, or of attention, begins
    end = max(source.text.find(line) for line in ("// The kernel:", "// What attention's forward"))
    return source.text[start:end] + source.meta


def nvcc_options() -> dict[str, object]:
    """What a build by nvcc for a Hopper is called with."""
    compiler = find_compiler("nvcc")
    return {"compiler": "nvcc", "path": compiler.path, "version": compiler.version, "arch": "sm_90a"}
