"""What is known of a kernel before tilings are chosen: axes, accesses and their strides, rows kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from polyfuse.ir.kernel import Kernel
from polyfuse.ir.statements import Load, Statement, Store, indices
from polyfuse.symbolic import IndexLike, atoms, axis_name, coefficient, evaluate, free_axes
from polyfuse_triton.tiling.register_pressure import registers_of_point

__all__ = ["Access", "Facts", "analyse"]

_UNKNOWN_EXTENT = 512


@dataclass(frozen=True)
class Access:
    """One load or store.

    Attributes:
        buffer: its name.
        index: in elements.
        indirect: whether values that are loaded or computed take part in the index.
        mode: ``"load"``, or the mode of a store.
        looped: whether it stands in a looped section.
        section: number of the section.
        itemsize: bytes of an element.
        strides: step in elements along each axis that the index depends on; None where it is not linear.
    """

    buffer: str
    index: IndexLike
    indirect: bool
    mode: str
    looped: bool
    section: int
    itemsize: int
    strides: Mapping[str, int | None]

    @property
    def is_store(self) -> bool:
        """Whether memory is written."""
        return self.mode != "load"

    def runs_along(self, axis: str) -> bool:
        """Whether neighbours along an axis are neighbours in memory."""
        return self.strides.get(axis) == 1


@dataclass(frozen=True)
class Facts:
    """Facts about a kernel.

    Attributes:
        axes, raxes: names, outermost first.
        sizes: extent of every axis by name.
        hints: example extent of every axis by name.
        accesses: loads and stores of arguments, in order.
        defined: the statement and section that define each value.
        locals_stored: the value stored to each local, where there is one such store.
        local_places: the indices at which each local is stored and loaded.
        written: arguments that are stored to.
        bent: axes of which indices are no linear functions: they divide, or take a minimum.
        registers: estimate of what one point of a tile needs.
    """

    axes: tuple[str, ...]
    raxes: tuple[str, ...]
    sizes: Mapping[str, IndexLike]
    hints: Mapping[str, int]
    accesses: tuple[Access, ...]
    defined: Mapping[str, tuple[Statement, int]]
    locals_stored: Mapping[str, str]
    local_places: Mapping[str, frozenset[IndexLike]]
    written: frozenset[str]
    bent: frozenset[str]
    registers: int

    def points(self, names: tuple[str, ...]) -> int:
        """Example number of points of some axes together."""
        total = 1
        for name in names:
            total *= self.hints[name]
        return total

    def share(self, access: Access) -> float:
        """The part of the points at which an access reaches memory of its own: little for a bias, all for
        the data.
        """
        if access.indirect:
            return 1.0
        names = self.axes + (self.raxes if access.looped else ())
        own = self.points(tuple(n for n in names if n in access.strides))
        return max(0.001, own / max(1, self.points(names)))


def analyse(kernel: Kernel) -> Facts:
    """The facts of a kernel."""
    axes = tuple(axis_name(a) for a in kernel.axes)
    raxes = tuple(axis_name(a) for a in kernel.raxes)
    sizes = dict(zip(axes + raxes, (*kernel.sizes, *kernel.rsizes), strict=True))
    hints = _hints(kernel, axes + raxes, sizes)
    symbols = {arg.name: arg.hint or _UNKNOWN_EXTENT for arg in kernel.args if arg.kind == "size"}
    defined = {
        name: (stmt, number)
        for number, section in enumerate(kernel.sections)
        for stmt in section.body
        for name in stmt.targets
    }
    accesses = tuple(_accesses(kernel, symbols))
    return Facts(
        axes=axes,
        raxes=raxes,
        sizes=sizes,
        hints=hints,
        accesses=accesses,
        defined=defined,
        locals_stored=_locals_stored(kernel),
        local_places=_local_places(kernel),
        written=frozenset(a.buffer for a in accesses if a.is_store),
        bent=frozenset(_bent(kernel)),
        registers=registers_of_point(kernel),
    )


def _bent(kernel: Kernel) -> Iterator[str]:
    for section in kernel.sections:
        for stmt in section.body:
            for index in indices(stmt):
                for name in free_axes(index):
                    if not name.startswith("@") and coefficient(index, name) is None:
                        yield name


def _hints(kernel: Kernel, names: tuple[str, ...], sizes: Mapping[str, IndexLike]) -> dict[str, int]:
    hints: dict[str, int] = {}
    for place, name in enumerate(names):
        size = sizes[name]
        if isinstance(size, int):
            hints[name] = size
        else:
            hints[name] = kernel.size_hints[place] if kernel.size_hints else _UNKNOWN_EXTENT
    return hints


def _accesses(kernel: Kernel, symbols: Mapping[str, int]) -> Iterator[Access]:
    memory = {arg.name: arg.dtype for arg in kernel.args if arg.kind != "size"}
    for number, section in enumerate(kernel.sections):
        for stmt in section.body:
            if not isinstance(stmt, (Load, Store)) or stmt.buffer not in memory:
                continue
            yield Access(
                buffer=stmt.buffer,
                index=stmt.index,
                indirect=bool(stmt.indirect),
                mode=stmt.mode if isinstance(stmt, Store) else "load",
                looped=section.looped,
                section=number,
                itemsize=memory[stmt.buffer].itemsize,
                strides=_strides(stmt.index, symbols),
            )


def _strides(index: IndexLike, symbols: Mapping[str, int]) -> dict[str, int | None]:
    found: dict[str, int | None] = {}
    for name in free_axes(index):
        if name.startswith("@"):
            continue
        factor = coefficient(index, name)
        found[name] = None if factor is None or free_axes(factor) else _example(factor, symbols)
    return found


def _example(value: IndexLike, symbols: Mapping[str, int]) -> int:
    """A value for example sizes."""
    if isinstance(value, int):
        return value
    names = {atom.name: symbols.get(atom.name, _UNKNOWN_EXTENT) for atom in atoms(value)}
    return evaluate(value, names)


def _locals_stored(kernel: Kernel) -> dict[str, str]:
    """The value that each local holds; locals stored to more than once are left out."""
    names = {local.name for local in kernel.locals}
    found: dict[str, list[str]] = {}
    for section in kernel.sections:
        for stmt in section.body:
            if isinstance(stmt, Store) and stmt.buffer in names:
                found.setdefault(stmt.buffer, []).append(stmt.value)
    return {name: values[0] for name, values in found.items() if len(values) == 1}


def _local_places(kernel: Kernel) -> dict[str, frozenset[IndexLike]]:
    names = {local.name for local in kernel.locals}
    found: dict[str, set[IndexLike]] = {}
    for section in kernel.sections:
        for stmt in section.body:
            if isinstance(stmt, (Load, Store)) and stmt.buffer in names:
                found.setdefault(stmt.buffer, set()).add(stmt.index)
    return {name: frozenset(places) for name, places in found.items()}
