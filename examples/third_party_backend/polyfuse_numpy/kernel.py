"""A kernel as a NumPy program.

Every value is an array with one dimension for each axis, parallel axes first, of length one where it does not
vary. So a section needs no loops: a looped one differs only in the shape of what it stores.
"""

from __future__ import annotations

from polyfuse.plugin import (
    Cast,
    Compute,
    Constant,
    IndexLike,
    IndexValue,
    Kernel,
    Load,
    Reduce,
    ScanStatement,
    Source,
    Statement,
    Store,
    UnsupportedError,
    axis,
    axis_name,
    python_text,
    substitute,
)
from polyfuse_numpy.ops import OPS, TYPES, constant

HEADER = """import math
import numpy as np
from polyfuse_numpy.runtime import *
from polyfuse_numpy.runtime import greatest as max, least as min
"""


def kernel_text(kernel: Kernel) -> str:
    """The function that runs the kernel."""
    rank, loops = len(kernel.axes) + len(kernel.raxes), len(kernel.raxes)
    lines = [f"def {Source.SYMBOL}({', '.join(arg.name for arg in kernel.args)}):"]
    for arg in kernel.args:
        if arg.kind != "size":
            lines.append(f"{arg.name} = flat({arg.name}, np.{TYPES[arg.dtype]}, {_index(arg.numel or 0)})")
    for dim, (var, size) in enumerate(
        zip((*kernel.axes, *kernel.raxes), (*kernel.sizes, *kernel.rsizes), strict=True)
    ):
        lines.append(f"{axis_name(var)} = line({_index(size)}, {dim}, {rank})")
    sizes = [_index(size) for size in (*kernel.sizes, *kernel.rsizes)]
    lines.append(f"full = ({''.join(f'{size}, ' for size in sizes)})")
    lines.append(f"once = ({''.join(f'{size}, ' for size in sizes[: rank - loops])}{'1, ' * loops})")
    if kernel.row_buffers:
        lines.append("points = math.prod(once)")
        lines.append("point = np.arange(points).reshape(once)")
    for row in kernel.row_buffers:
        lines.append(f"{row.name} = np.empty(points * ({_index(row.size)}), np.{TYPES[row.dtype]})")
    rows = {row.name: f"point * ({_index(row.size)}) + " for row in kernel.row_buffers}
    for section in kernel.sections:
        for stmt in section.body:
            lines.append(_statement(stmt, "full" if section.looped else "once", loops, rows))
    return "\n    ".join(lines) + "\n"


def _statement(stmt: Statement, shape: str, loops: int, rows: dict[str, str]) -> str:
    args, targets = ", ".join(stmt.args), ", ".join(stmt.targets)
    match stmt:
        case Compute():
            return f"{targets} = {OPS[stmt.op]}({args})"
        case Constant():
            return f"{targets} = {constant(stmt.value, stmt.dtype)}"
        case Cast(bitwise=True):
            return f"{targets} = np.ascontiguousarray({args}).view(np.{TYPES[stmt.dtype]})"
        case Cast():
            return f"{targets} = np.asarray({args}).astype(np.{TYPES[stmt.dtype]})"
        case IndexValue():
            return f"{targets} = np.asarray({_index(stmt.index)}, np.int64)"
        case Reduce():
            return f"{targets}, = reduce({stmt.kind!r}, {args}, full, {loops})"
        case ScanStatement():
            return f"{targets} = scan({stmt.kind!r}, {args}, full)"
        case Load():
            index = rows.get(stmt.buffer, "") + _index(stmt.index, stmt.indirect)
            if stmt.mask is None:
                return f"{targets} = load({stmt.buffer}, {index})"
            return f"{targets} = load_masked({stmt.buffer}, {index}, {stmt.mask}, {stmt.other})"
        case Store():
            index = rows.get(stmt.buffer, "") + _index(stmt.index, stmt.indirect)
            mask = "" if stmt.mask is None else f", {stmt.mask}"
            return f"store({stmt.buffer}, {index}, {stmt.value}, {stmt.mode!r}, {shape}{mask})"
        case _:
            raise UnsupportedError(f"{stmt.op} has no NumPy form", "let another backend take the node")


def _index(index: IndexLike, indirect: tuple[str, ...] = ()) -> str:
    """An index as text; `@k` in it is the value called `indirect[k]`."""
    for position, name in enumerate(indirect):
        index = substitute(index, {f"@{position}": axis(f"{name}.astype(np.int64)", 1 << 62)})
    return python_text(index)
