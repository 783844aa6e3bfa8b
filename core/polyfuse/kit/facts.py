"""What code generators know of a kernel before they write it: accesses, aliases, definitions, dependences.

`KernelFacts.of(kernel)` costs nothing by itself: each fact is computed when it is first asked for. A
generator that reads an element more than once, moves a load, or reads it from several threads asks which
memory the kernel may change, and refuses (`Source.refused_aliases`) the pairs for which its text would be
wrong.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import assert_never

from polyfuse.ir.kernel import Alias, Kernel
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
)
from polyfuse.ir.types import DType
from polyfuse.kit.access import Access
from polyfuse.kit.affine import stride
from polyfuse.kit.values import ValueFacts
from polyfuse.symbolic import IndexLike, free_axes


def memories(kernel: Kernel) -> Mapping[str, str]:
    """For every argument that may be one memory with others, the first of these in calling order."""
    groups: list[set[str]] = []
    for alias in kernel.aliases:
        pair = {alias.output, alias.input}
        joined = [g for g in groups if not pair.isdisjoint(g)]
        groups = [g for g in groups if pair.isdisjoint(g)]
        groups.append(pair.union(*joined))
    order = [arg.name for arg in kernel.args]
    firsts = [next(name for name in order if name in group) for group in groups]
    return {name: first for first, group in zip(firsts, groups, strict=True) for name in sorted(group)}


def without_aliases(kernel: Kernel, refused: Collection[Alias] | None = None) -> Kernel:
    """The kernel without some of its pairs, or without any."""
    accepted = () if refused is None else tuple(a for a in kernel.aliases if a not in refused)
    return kernel if accepted == kernel.aliases else replace(kernel, aliases=accepted)


class KernelFacts(ValueFacts):
    """Facts about one kernel. Axes, buffers and values are known by their names."""

    @cached_property
    def memory(self) -> Mapping[str, DType]:
        """Element type of every argument that is a buffer, and of every row buffer."""
        found = {a.name: a.dtype for a in self.kernel.args if a.kind != "size"}
        return found | {b.name: b.dtype for b in self.kernel.row_buffers}

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
