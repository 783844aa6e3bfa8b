"""Kernels whose names can be used in generated text unchanged."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.statements import Load, Statement, Store, indices, with_index, with_names
from polyfuse.symbolic import IndexLike, atoms, axis, axis_name, axis_size, substitute, symbol


def with_safe_names(kernel: Kernel, keep: Mapping[str, re.Pattern[str]]) -> Kernel:
    """The same kernel, where no two of its axes, buffers, sizes and values have one name; the kernel itself
    where nothing has to be renamed.

    Args:
        keep: by kind (`arg`, `row` for row buffers, `axis`, `val`) the names that the target language and the
            generator's library leave free. Others become the kind and a number, such as `axis_3`.
    """
    choose = _Names(keep)
    axes = choose.of("axis", (axis_name(a) for a in (*kernel.axes, *kernel.raxes)))
    buffers = choose.of("arg", (a.name for a in kernel.args))
    buffers |= choose.of("row", (b.name for b in kernel.row_buffers))
    named = choose.of("val", (t for section in kernel.sections for s in section.body for t in s.targets))
    if all(old == new for names in (axes, buffers, named) for old, new in names.items()):
        return kernel
    sizes = {a.name for a in kernel.args if a.kind == "size"}
    index = _index_renamer(kernel, axes, {name: buffers[name] for name in sizes})

    def statement(stmt: Statement) -> Statement:
        stmt = with_names(stmt, tuple(named[t] for t in stmt.targets), [named[a] for a in stmt.args])
        if isinstance(stmt, (Load, Store)):
            stmt = replace(stmt, buffer=buffers[stmt.buffer])
        return with_index(stmt, index)

    return replace(
        kernel,
        axes=tuple(axis(axes[axis_name(a)], index(axis_size(a))) for a in kernel.axes),
        raxes=tuple(axis(axes[axis_name(a)], index(axis_size(a))) for a in kernel.raxes),
        args=tuple(
            replace(a, name=buffers[a.name], numel=a.numel if a.numel is None else index(a.numel))
            for a in kernel.args
        ),
        row_buffers=tuple(replace(b, name=buffers[b.name], size=index(b.size)) for b in kernel.row_buffers),
        sections=tuple(replace(s, body=tuple(map(statement, s.body))) for s in kernel.sections),
        aliases=tuple(replace(a, output=buffers[a.output], input=buffers[a.input]) for a in kernel.aliases),
    )


def _index_renamer(
    kernel: Kernel, axes: Mapping[str, str], sizes: Mapping[str, str]
) -> Callable[[IndexLike], IndexLike]:
    """A function that gives axes and sizes in an index their other names."""
    if all(old == new for names in (axes, sizes) for old, new in names.items()):
        return lambda index: index
    found: list[IndexLike] = [*kernel.axes, *kernel.raxes, *kernel.sizes, *kernel.rsizes]
    found += [b.size for b in kernel.row_buffers]
    found += [a.numel for a in kernel.args if a.numel is not None]
    found += [i for section in kernel.sections for s in section.body for i in indices(s)]
    found += [atom.args[0] for index in found for atom in atoms(index) if atom.kind == "axis"]
    used = list(dict.fromkeys(atom for index in found for atom in atoms(index)))
    if any(atom.kind == "host" for atom in used):
        raise UnsupportedError("a size that the host computes is of one with an unusual name", "rename it")
    symbols: dict[str, IndexLike] = {
        atom.name: symbol(sizes[atom.name], atom.lo, atom.hi) for atom in used if atom.kind == "sym"
    }
    # `@k` keeps its name, and may have another extent
    variables = {
        atom.name: axis(axes.get(atom.name, atom.name), substitute(atom.args[0], symbols))
        for atom in used
        if atom.kind == "axis"
    }
    return lambda index: substitute(index, {**symbols, **variables})


class _Names:
    """Gives each name another one than all before."""

    def __init__(self, keep: Mapping[str, re.Pattern[str]]) -> None:
        self._keep = keep
        self._taken: set[str] = set()

    def of(self, kind: str, names: Iterable[str]) -> dict[str, str]:
        """What names of a kind become. The empty name, of what nothing reads, stays."""
        found: dict[str, str] = {}
        for name in names:
            if name not in found:
                found[name] = self._free(kind, name, len(found)) if name else name
        return found

    def _free(self, kind: str, name: str, number: int) -> str:
        wish = name if self._keep[kind].fullmatch(name) else f"{kind}_{number}"
        while wish in self._taken:
            number += 1
            wish = f"{kind}_{number}"
        self._taken.add(wish)
        return wish
