"""What code generators know of a kernel before they write it: accesses, definitions, dependences.

`KernelFacts.of(kernel)` costs nothing by itself: each fact is computed when it is first asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Self, assert_never

from polyfuse.ir.kernel import Kernel
from polyfuse.ir.statements import (
    Cast,
    Compute,
    Constant,
    IndexValue,
    Load,
    Random,
    Reduce,
    Scan,
    Statement,
    Store,
    indices,
)
from polyfuse.ir.types import DType
from polyfuse.ir.verifier.rules import result_types
from polyfuse.kit.access import Access
from polyfuse.kit.affine import stride
from polyfuse.kit.aliasing import memories
from polyfuse.kit.spans import Span, fits_i32, span_of
from polyfuse.symbolic import IndexLike, axis_name, coefficient, evaluate, free_axes, free_symbols

__all__ = ["Definition", "KernelFacts"]

_UNKNOWN_EXTENT = 512


@dataclass(frozen=True)
class Definition:
    """Where a value is defined: the statement, and the number of its section."""

    stmt: Statement
    section: int


@dataclass(frozen=True, eq=False)
class KernelFacts:
    """Facts about one kernel. Axes, buffers and values are known by their names."""

    kernel: Kernel

    @classmethod
    def of(cls, kernel: Kernel) -> Self:
        """The facts of a kernel."""
        return cls(kernel)

    # --- the space ---------------------------------------------------------------------------------------

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """Parallel axes, outermost first."""
        return tuple(axis_name(a) for a in self.kernel.axes)

    @cached_property
    def raxes(self) -> tuple[str, ...]:
        """Reduction axes, outermost first."""
        return tuple(axis_name(a) for a in self.kernel.raxes)

    @cached_property
    def sizes(self) -> Mapping[str, IndexLike]:
        """Extent of every axis."""
        return dict(zip(self.axes + self.raxes, (*self.kernel.sizes, *self.kernel.rsizes), strict=True))

    @cached_property
    def hints(self) -> Mapping[str, int]:
        """Example extent of every axis."""
        given = dict(zip(self.sizes, self.kernel.size_hints, strict=False))
        return {
            name: size if isinstance(size, int) else given.get(name, _UNKNOWN_EXTENT)
            for name, size in self.sizes.items()
        }

    @cached_property
    def symbols(self) -> Mapping[str, int]:
        """Example value of every size argument."""
        return {a.name: a.hint or _UNKNOWN_EXTENT for a in self.kernel.args if a.kind == "size"}

    def points(self, axes: Iterable[str]) -> int:
        """Example number of points of some axes together."""
        return prod(self.hints[axis] for axis in axes)

    # --- statements --------------------------------------------------------------------------------------

    @cached_property
    def statements(self) -> tuple[Statement, ...]:
        """Those of all sections, in order."""
        return tuple(stmt for section in self.kernel.sections for stmt in section.body)

    @cached_property
    def definitions(self) -> Mapping[str, Definition]:
        """Where each value is defined."""
        return {
            name: Definition(stmt, number)
            for number, section in enumerate(self.kernel.sections)
            for stmt in section.body
            for name in stmt.targets
        }

    def definition(self, name: str) -> Statement:
        """The statement that defines a value."""
        return self.definitions[name].stmt

    @cached_property
    def dtypes(self) -> Mapping[str, DType]:
        """Type of every value."""
        found: dict[str, DType] = {}
        for stmt in self.statements:
            types: Sequence[DType] = (stmt.dtype,) * len(stmt.targets)
            if isinstance(stmt, (Reduce, Scan)):
                given = result_types(stmt.op, stmt.kind, tuple(found[a] for a in stmt.args))
                types = types if isinstance(given, str) else given
            found.update(zip(stmt.targets, types, strict=False))
        return found

    @cached_property
    def spans(self) -> Mapping[str, Span]:
        """Inclusive bounds of the values of which some are known."""
        found: dict[str, Span] = {}
        for stmt in self.statements:
            if len(stmt.targets) == 1:
                span = span_of(stmt, [found.get(a) for a in stmt.args])
                if span is not None:
                    found[stmt.targets[0]] = span
        return found

    def fits_i32(self, name: str) -> bool:
        """Whether an i64 value is known to be a 32-bit integer."""
        return self.dtypes[name] is DType.i64 and fits_i32(self.spans.get(name))

    def live_out(self, section: int) -> tuple[str, ...]:
        """Values defined in a section that later ones use, in order."""
        later = (s for part in self.kernel.sections[section + 1 :] for s in part.body)
        used = {name for stmt in later for name in stmt.args}
        return tuple(t for s in self.kernel.sections[section].body for t in s.targets if t in used)

    # --- dependences -------------------------------------------------------------------------------------

    @cached_property
    def depends(self) -> Mapping[str, frozenset[str]]:
        """Axes on which each value depends."""
        found: dict[str, frozenset[str]] = {}
        for stmt in self.statements:
            axes = self._depends(stmt, found)
            match stmt:
                case Reduce():
                    axes -= frozenset(self.raxes)
                case Scan():
                    axes |= frozenset(self.sizes)
                case Load() if stmt.buffer in self.row_buffers:
                    # a row buffer differs from point to point whether or not its index says so
                    axes |= frozenset(self.axes)
            found.update(dict.fromkeys(stmt.targets, axes))
        return found

    def depends_of(self, stmt: Statement) -> frozenset[str]:
        """Axes on which the values of a statement depend; for a store, its index, mask and value."""
        return self.depends[stmt.targets[0]] if stmt.targets else self._depends(stmt, self.depends)

    def uniform(self, name: str, axes: Iterable[str]) -> bool:
        """Whether a value is the same all along some axes."""
        return self.depends[name].isdisjoint(axes)

    @staticmethod
    def _depends(stmt: Statement, known: Mapping[str, frozenset[str]]) -> frozenset[str]:
        own = (name for index in indices(stmt) for name in free_axes(index) if not name.startswith("@"))
        return frozenset(own).union(*(known[name] for name in stmt.args))

    @cached_property
    def nonlinear_axes(self) -> frozenset[str]:
        """Axes of which some index is no linear function: it divides, or takes a minimum."""
        return frozenset(
            name
            for stmt in self.statements
            for index in indices(stmt)
            for name in free_axes(index)
            if not name.startswith("@") and coefficient(index, name) is None
        )

    # --- memory ------------------------------------------------------------------------------------------

    @cached_property
    def row_buffers(self) -> frozenset[str]:
        """Names of the kernel's row buffers."""
        return frozenset(b.name for b in self.kernel.locals)

    @cached_property
    def memory(self) -> Mapping[str, DType]:
        """Element type of every argument that is a buffer, and of every row buffer."""
        found = {a.name: a.dtype for a in self.kernel.args if a.kind != "size"}
        return found | {b.name: b.dtype for b in self.kernel.locals}

    @cached_property
    def all_accesses(self) -> tuple[Access, ...]:
        """Loads and stores of arguments and row buffers, in order."""
        return tuple(
            Access(stmt, number, section.looped, self.memory[stmt.buffer], self._strides(stmt.index))
            for number, section in enumerate(self.kernel.sections)
            for stmt in section.body
            if isinstance(stmt, (Load, Store))
        )

    @cached_property
    def accesses(self) -> tuple[Access, ...]:
        """Loads and stores of arguments, in order."""
        return tuple(a for a in self.all_accesses if a.buffer not in self.row_buffers)

    def reads(self, buffer: str) -> tuple[Access, ...]:
        """Loads of an argument or row buffer, in order."""
        return tuple(a for a in self.all_accesses if a.buffer == buffer and not a.is_store)

    def writes(self, buffer: str) -> tuple[Access, ...]:
        """Stores to an argument or row buffer, in order."""
        return tuple(a for a in self.all_accesses if a.buffer == buffer and a.is_store)

    @cached_property
    def written(self) -> frozenset[str]:
        """Arguments and row buffers that are stored to."""
        return frozenset(a.buffer for a in self.all_accesses if a.is_store)

    @cached_property
    def memories(self) -> Mapping[str, str]:
        """For every argument that may be one memory with others, the first of these in calling order."""
        return memories(self.kernel)

    def may_alias(self, first: str, second: str) -> bool:
        """Whether two buffers may be one memory."""
        return first == second or (
            first in self.memories and self.memories[first] == self.memories.get(second)
        )

    def aliases_of(self, buffers: Iterable[str]) -> frozenset[str]:
        """Buffers that may be one memory with some of these, themselves included."""
        given = frozenset(buffers)
        touched = {self.memories.get(name) for name in given} - {None}
        return given.union(name for name, first in self.memories.items() if first in touched)

    @cached_property
    def may_change(self) -> frozenset[str]:
        """Buffers whose memory the kernel may write, by whatever name: what is loaded from there may be
        something else later.
        """
        return self.aliases_of(self.written)

    def is_pure(self, stmt: Statement) -> bool:
        """Whether a statement may run earlier, and more or less often: it reads nothing that is written."""
        match stmt:
            case Store() | Reduce() | Scan():
                return False
            case Load():
                return stmt.buffer not in self.written
            case Constant() | IndexValue() | Compute() | Cast() | Random():
                return True
            case _:
                assert_never(stmt)

    def share(self, access: Access) -> float:
        """The part of the points at which an access reaches memory of its own: little for a bias, all for
        the data.
        """
        if access.indirect:
            return 1.0
        axes = self.axes + (self.raxes if access.looped else ())
        own = self.points(axis for axis in axes if axis in access.strides)
        return max(0.001, own / max(1, self.points(axes)))

    def _strides(self, index: IndexLike) -> dict[str, int | None]:
        found: dict[str, int | None] = {}
        for axis in free_axes(index):
            if not axis.startswith("@"):
                step = stride(index, axis)
                found[axis] = None if step is None else self.example(step)
        return found

    def example(self, size: IndexLike) -> int:
        """The value of a size for the example sizes."""
        if isinstance(size, int):
            return size
        return evaluate(size, {n: self.symbols.get(n, _UNKNOWN_EXTENT) for n in free_symbols(size)})

    # --- recomputation -----------------------------------------------------------------------------------

    def row_value(self, buffer: str) -> str | None:
        """The value that a point stores to a row buffer; None where several stores do, or none."""
        found = self.writes(buffer)
        return found[0].stmt.value if len(found) == 1 and isinstance(found[0].stmt, Store) else None

    def forwarded(self, stmt: Load) -> str | None:
        """The value that a load reads where it reads what the same point has stored to a row buffer; None
        where it reads anything else.
        """
        if stmt.buffer not in self.row_buffers:
            return None
        alone = len({a.index for a in self.all_accesses if a.buffer == stmt.buffer}) == 1
        return self.row_value(stmt.buffer) if alone else None

    def recomputable(self, name: str, section: int) -> bool:
        """Whether a value can be computed again in a later section: nothing that it is computed from is the
        result of a scan, or was loaded from memory that may have been stored to since. Row buffers are
        followed to what is stored there; results of reductions are at hand anyway.
        """
        pending, seen = [name], set[str]()
        while pending:
            current = pending.pop()
            if current in seen:
                continue
            seen.add(current)
            found = self.definitions[current]
            match found.stmt:
                case Scan():
                    return False
                case Reduce():
                    continue
                case Load() as stmt if stmt.buffer in self.row_buffers:
                    stored = self.forwarded(stmt)
                    if stored is None:
                        return False
                    pending += [stored, *stmt.args]
                case Load() as stmt if self._is_stored(stmt.buffer, found.section, section):
                    return False
                case stmt:
                    pending += stmt.args
        return True

    def _is_stored(self, buffer: str, first: int, last: int) -> bool:
        """Whether a section from the first to the last may store to the memory of a buffer."""
        return any(
            a.is_store and first <= a.section <= last and self.may_alias(a.buffer, buffer)
            for a in self.accesses
        )
