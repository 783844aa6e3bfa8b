"""A kernel as a NumPy program.

Every value is an array with one dimension for each axis, parallel axes first, of length one where it does not
vary. So a section needs no loops: a looped one differs only in the shape of what it stores.
"""

from __future__ import annotations

from polyfuse.ir.kernel import Kernel, Stmt
from polyfuse.ir.ops import SCALAR_OPS
from polyfuse.plugin import Source
from polyfuse.symbolic import IndexLike, axis, axis_name, python_text, substitute
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
    if kernel.locals:
        lines.append("points = math.prod(once)")
        lines.append("point = np.arange(points).reshape(once)")
    for local in kernel.locals:
        lines.append(f"{local.name} = np.empty(points * ({_index(local.size)}), np.{TYPES[local.dtype]})")
    rows = {local.name: f"point * ({_index(local.size)}) + " for local in kernel.locals}
    for section in kernel.sections:
        for stmt in section.body:
            lines += _statement(stmt, "full" if section.looped else "once", loops, rows)
    return "\n    ".join(lines) + "\n"


def _statement(stmt: Stmt, shape: str, loops: int, rows: dict[str, str]) -> list[str]:
    args, targets = ", ".join(stmt.args), ", ".join(stmt.targets)
    if stmt.op in SCALAR_OPS:
        return [f"{targets} = {OPS[stmt.op]}({args})"]
    if stmt.op == "const":
        return [f"{targets} = {constant(stmt.attrs[0], stmt.dtype)}"]
    if stmt.op == "cast":
        return [f"{targets} = np.asarray({args}).astype(np.{TYPES[stmt.dtype]})"]
    if stmt.op == "bitcast":
        return [f"{targets} = np.ascontiguousarray({args}).view(np.{TYPES[stmt.dtype]})"]
    if stmt.op in ("index", "size"):
        return [f"{targets} = np.asarray({_index(stmt.attrs[0])}, np.int64)"]
    if stmt.op == "reduce":
        return [f"{targets}, = reduce({stmt.attrs[0]!r}, {args}, full, {loops})"]
    if stmt.op == "scan":
        return [f"{targets} = scan({stmt.attrs[0]!r}, {args}, full)"]
    if stmt.op == "load":
        buffer, index, count, masked = stmt.attrs
        place = rows.get(buffer, "") + _index(index, stmt.args[:count])
        if masked:
            return [f"{targets} = load_masked({buffer}, {place}, {', '.join(stmt.args[count:])})"]
        return [f"{targets} = load({buffer}, {place})"]
    buffer, index, count, mode, masked = stmt.attrs
    place = rows.get(buffer, "") + _index(index, stmt.args[1 : 1 + count])
    mask = f", {stmt.args[-1]}" if masked else ""
    return [f"store({buffer}, {place}, {stmt.args[0]}, {mode!r}, {shape}{mask})"]


def _index(index: IndexLike, indirect: tuple[str, ...] = ()) -> str:
    """An index as text; `@k` in it is the value called `indirect[k]`."""
    for position, name in enumerate(indirect):
        index = substitute(index, {f"@{position}": axis(f"{name}.astype(np.int64)", 1 << 62)})
    return python_text(index)
