"""Sizes that only the host can compute, such as `ceil(1.5 * s0)`, are arguments of kernels that use them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from polyfuse.ir.kernel import Kernel, KernelArg, Section
from polyfuse.ir.statements import indices as indices_of
from polyfuse.ir.statements import with_index
from polyfuse.ir.types import DType
from polyfuse.symbolic import Atom, Index, IndexLike, atoms, axis, host, substitute, symbol

Operands = tuple[str | IndexLike, ...]


def sizes_as_arguments(
    kernel: Kernel, operands: Operands, hint: Callable[[IndexLike], int]
) -> tuple[Kernel, Operands]:
    """The kernel with a further size argument for each number that it cannot compute itself, and the operands
    with these numbers."""
    used = list(_atoms_of(kernel))
    found = {atom.name: atom for atom in used if atom.kind == "host"}
    if not found:
        return kernel, operands
    numbers: dict[str, IndexLike] = {}
    args, values = list(kernel.args), list(operands)
    for text, atom in found.items():
        name, value = f"h{len(numbers)}", host(text, atom.args, atom.lo, atom.hi)
        numbers[text] = symbol(name, atom.lo, atom.hi)
        args.append(KernelArg(name, "size", DType.i64, hint=hint(value)))
        values.append(value)
    axes = {a.name: axis(a.name, substitute(a.args[0], numbers)) for a in used if a.kind == "axis"}

    def known(index: Any) -> Any:
        return substitute(index, {**numbers, **axes}) if isinstance(index, Index) else index

    def section(old: Section) -> Section:
        return replace(old, body=tuple(with_index(stmt, known) for stmt in old.body))

    new = replace(
        kernel,
        axes=tuple(map(known, kernel.axes)),
        raxes=tuple(map(known, kernel.raxes)),
        args=tuple(replace(arg, numel=known(arg.numel)) for arg in args),
        row_buffers=tuple(replace(row, size=known(row.size)) for row in kernel.row_buffers),
        sections=tuple(map(section, kernel.sections)),
    )
    return new, tuple(values)


def _atoms_of(kernel: Kernel) -> Iterator[Atom]:
    """The atoms of all indices of a kernel, in order, with those of the extents of axes."""
    indices: list[Any] = [*kernel.axes, *kernel.raxes, *(arg.numel for arg in kernel.args)]
    indices += [row.size for row in kernel.row_buffers]
    indices += [index for part in kernel.sections for stmt in part.body for index in indices_of(stmt)]
    for index in indices:
        for atom in atoms(index) if isinstance(index, Index) else ():
            yield atom
            if atom.kind == "axis":
                yield from atoms(atom.args[0])
