"""Names of kernels as C++ text can print them: a word and digits, which nothing else is called there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from polyfuse.ir.kernel import Alias, Kernel, Section
from polyfuse.ir.statements import Load, Statement, Store, indices, with_index, with_names
from polyfuse.symbolic import Index, IndexLike, atoms, axis, axis_name, axis_size, substitute, symbol

_PLAIN = {
    "arg": re.compile("(in|out|inout|io|s|u)[0-9]{1,9}"),
    "row": re.compile("row[0-9]{1,9}"),
    "axis": re.compile("[pirb][0-9]{1,9}"),
    "val": re.compile("[vt][0-9]{1,9}"),
}
"""What things are usually called. No two kinds have a name in common; generated names have other forms."""

_TYPES = frozenset(f"{letter}{bits}" for letter in "iu" for bits in (8, 16, 32, 64))


def plainly_named(kernel: Kernel) -> Kernel:
    """The same kernel, where everything has a name that means nothing else in C++."""
    stmts = [s for section in kernel.sections for s in section.body]
    names = {
        "arg": _names("arg", (a.name for a in kernel.args)),
        "row": _names("row", (b.name for b in kernel.row_buffers)),
        "axis": _names("axis", map(axis_name, (*kernel.axes, *kernel.raxes))),
        "val": _names("val", (t for s in stmts for t in s.targets)),
    }
    if all(old == new for kind in names.values() for old, new in kind.items()):
        return kernel
    return _Renaming(kernel, {**names["arg"], **names["row"]}, names["axis"], names["val"]).renamed()


def _names(kind: str, names: Iterable[str]) -> dict[str, str]:
    """A name for each one: its own, or the kind and a number."""
    found: dict[str, str] = {}
    for name in names:
        plain = not name or (_PLAIN[kind].fullmatch(name) and name not in _TYPES)
        found.setdefault(name, name if plain else f"{kind}_{len(found)}")
    return found


@dataclass
class _Renaming:
    """One kernel, and new names for what it holds."""

    kernel: Kernel
    memory: Mapping[str, str]
    axes: Mapping[str, str]
    values: Mapping[str, str]

    def __post_init__(self) -> None:
        kernel = self.kernel
        self.replacement: dict[str, IndexLike] = {}
        for index in self._indices():
            for atom in atoms(index):
                if atom.kind == "sym":
                    name = self.memory.get(atom.name, atom.name)
                    self.replacement[atom.name] = symbol(name, atom.lo, atom.hi)
        for variable in (*kernel.axes, *kernel.raxes):
            self.replacement[axis_name(variable)] = self._axis(variable)

    def _indices(self) -> Iterator[IndexLike]:
        kernel = self.kernel
        yield from (*kernel.sizes, *kernel.rsizes, *(b.size for b in kernel.row_buffers))
        for section in kernel.sections:
            for stmt in section.body:
                yield from indices(stmt)

    def _axis(self, variable: Index) -> Index:
        return axis(self.axes[axis_name(variable)], self._index(axis_size(variable)))

    def _index(self, index: IndexLike) -> IndexLike:
        return substitute(index, self.replacement)

    def renamed(self) -> Kernel:
        """The kernel with the new names."""
        kernel = self.kernel
        return replace(
            kernel,
            axes=tuple(map(self._axis, kernel.axes)),
            raxes=tuple(map(self._axis, kernel.raxes)),
            args=tuple(replace(a, name=self.memory[a.name]) for a in kernel.args),
            row_buffers=tuple(
                replace(b, name=self.memory[b.name], size=self._index(b.size)) for b in kernel.row_buffers
            ),
            sections=tuple(Section(p.looped, tuple(map(self._statement, p.body))) for p in kernel.sections),
            aliases=tuple(Alias(self.memory[a.output], self.memory[a.input]) for a in kernel.aliases),
        )

    def _statement(self, stmt: Statement) -> Statement:
        targets, args = ([self.values[n] for n in names] for names in (stmt.targets, stmt.args))
        named = with_index(with_names(stmt, tuple(targets), args), self._index)
        return replace(named, buffer=self.memory[named.buffer]) if isinstance(named, (Load, Store)) else named
