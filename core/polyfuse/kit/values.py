"""What is known of a kernel's space and values: definitions, types, bounds, dependences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Self

from polyfuse.ir.kernel import Kernel
from polyfuse.ir.statements import Load, Reduce, Scan, Statement, indices
from polyfuse.ir.types import DType
from polyfuse.ir.verifier.rules import result_types
from polyfuse.kit.spans import Span, fits_i32, span_of, type_span
from polyfuse.symbolic import IndexLike, axis_name, coefficient, evaluate, free_axes, free_symbols

_UNKNOWN_EXTENT = 512


@dataclass(frozen=True)
class Definition:
    """Where a value is defined: the statement, and the number of its section."""

    stmt: Statement
    section: int


@dataclass(frozen=True, eq=False)
class ValueFacts:
    """The space of a kernel and its values."""

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

    def example(self, size: IndexLike) -> int:
        """The value of a size for the example sizes."""
        if isinstance(size, int):
            return size
        return evaluate(size, {n: self.symbols.get(n, _UNKNOWN_EXTENT) for n in free_symbols(size)})

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
                span = span_of(stmt, [found.get(a) or type_span(self.dtypes[a]) for a in stmt.args])
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

    @cached_property
    def row_buffers(self) -> frozenset[str]:
        """Names of the kernel's row buffers."""
        return frozenset(b.name for b in self.kernel.row_buffers)

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
