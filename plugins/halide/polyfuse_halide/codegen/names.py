"""Kernels whose names can stand in generated programs as they are."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.statements import Load, Statement, Store, indices, with_index, with_names
from polyfuse.symbolic import IndexLike, atoms, axis, axis_name, axis_size, substitute, symbol

__all__ = ["with_safe_names"]

_PLAIN = re.compile(r"[A-Za-z_]{1,4}[0-9]+")
"""Names that are kept: no keyword and, but for those below, no name of the library is one."""
_TAKEN = re.compile(r"log2|log10|exp2|atan2|(red|once|tile)[0-9]+")
"""Of these, functions of the library and stages of generated programs."""
_DERIVED = ("", "_n", "_of")
"""What generated programs append to names: for positions in 32 bits, and for what fills a row buffer."""


def with_safe_names(kernel: Kernel) -> Kernel:
    """The same kernel, where no two of its axes, buffers, sizes and values have one name, and none a name
    that Python or the library takes for something else.
    """
    choose = _chooser()
    renamed = {axis_name(a): choose(axis_name(a)) for a in (*kernel.axes, *kernel.raxes)}
    buffers = {b.name: choose(b.name) for b in (*kernel.args, *kernel.locals)}
    targets = (t for section in kernel.sections for s in section.body for t in s.targets)
    values = {name: choose(name) if name else name for name in targets}

    sizes = {a.name for a in kernel.args if a.kind == "size"}
    index = _index_renamer(kernel, renamed, {name: buffers[name] for name in sizes})

    def statement(stmt: Statement) -> Statement:
        stmt = with_names(stmt, tuple(values[t] for t in stmt.targets), [values[a] for a in stmt.args])
        if isinstance(stmt, (Load, Store)):
            stmt = replace(stmt, buffer=buffers[stmt.buffer])
        return with_index(stmt, index)

    return replace(
        kernel,
        axes=tuple(axis(renamed[axis_name(a)], index(axis_size(a))) for a in kernel.axes),
        raxes=tuple(axis(renamed[axis_name(a)], index(axis_size(a))) for a in kernel.raxes),
        args=tuple(
            replace(a, name=buffers[a.name], numel=a.numel if a.numel is None else index(a.numel))
            for a in kernel.args
        ),
        locals=tuple(replace(b, name=buffers[b.name], size=index(b.size)) for b in kernel.locals),
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
    found += [b.size for b in kernel.locals]
    found += [a.numel for a in kernel.args if a.numel is not None]
    found += [i for section in kernel.sections for s in section.body for i in indices(s)]
    found += [atom.args[0] for index in found for atom in atoms(index) if atom.kind == "axis"]
    used = list(dict.fromkeys(atom for index in found for atom in atoms(index)))
    if any(atom.kind == "host" for atom in used):
        raise UnsupportedError("a size that only the host can compute has a name of Python's", "rename it")
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


def _chooser() -> Callable[[str], str]:
    """Gives each name another one than all before."""
    taken: set[str] = set()

    def choose(name: str) -> str:
        base = name
        if not _PLAIN.fullmatch(name) or _TAKEN.fullmatch(name):
            base = "v_" + "".join(c if c.isascii() and c.isalnum() else "_" for c in name)
        found, number = base, 1
        while not taken.isdisjoint(found + suffix for suffix in _DERIVED):
            number += 1
            found = f"{base}__{number}"
        taken.update(found + suffix for suffix in _DERIVED)
        return found

    return choose
