"""Kernels with one thing changed: what all defects are planted with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from polyfuse.ir.kernel import Kernel, KernelArg, Section
from polyfuse.ir.ops import SCALAR_OPS
from polyfuse.ir.statements import Load, Reduce, Scan, Statement, Store, statement, with_names
from polyfuse.ir.types import DType
from polyfuse.ir.verifier.rules import result_types
from polyfuse.symbolic import Index, IndexLike, atoms, axis_name, maximum, minimum

Plant: TypeAlias = Callable[[Kernel], Kernel | None]
"""The kernel with the defect, or None where it has nothing that the defect could be planted in."""

Launched: TypeAlias = Callable[[Callable[..., None], tuple[int, ...]], Callable[..., None]]
"""What is launched instead of a built kernel, from that and the positions of what it writes."""


@dataclass(frozen=True)
class Defect:
    """One way in which a code generator can be wrong.

    Attributes:
        name: what it is called in tables and options.
        description: what the generated code does that it should not do.
        needs: which kernels it can be planted in, for people; `applies` tells.
        plant: the kernel that is generated in place of the right one.
        launched: for a defect that no kernel expresses: what becomes of the built kernel.
        launches: how many launches of one kernel it takes to show.
    """

    name: str
    description: str
    needs: str
    plant: Plant | None = None
    launched: Launched | None = None
    launches: int = 1

    def applies(self, kernel: Kernel) -> bool:
        """Whether a kernel has something that the defect can be planted in."""
        return self.planted(kernel) is not None or self.launched is not None

    def planted(self, kernel: Kernel) -> Kernel | None:
        """The kernel with the defect; None where it would be the same."""
        found = self.plant(kernel) if self.plant is not None else None
        return None if found is None or found == kernel else found


class Planter:
    """Writes statements into a copy of a kernel. `change` of `change_each` is called with it.

    Attributes:
        kernel: the right kernel.
        section, looped: the section that is being written.
        types: of every value of the right kernel, and of those written since.
        made: the statement that defines each value of the right kernel.
        used: values that addresses and masks follow from. Changing those could make a wrong kernel leave its
            buffers, which would end the process before anything is compared.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.section = 0
        self.looped = False
        self.types: dict[str, DType] = {}
        self.made: dict[str, Statement] = {}
        for stmt in statements(kernel):
            self.made.update(dict.fromkeys(stmt.targets, stmt))
            self.types.update(zip(stmt.targets, self._types(stmt), strict=True))
        self.used = _addresses(kernel, self.made)
        self.arguments: dict[str, KernelArg] = {arg.name: arg for arg in kernel.args}
        self._body: list[Statement] = []
        self._after: list[Statement] = []
        self._into = self._body
        self._count = 0

    def plant(self, change: Callable[[Statement, Planter], bool]) -> Kernel | None:
        """The kernel with every statement replaced for which `change` writes others and returns True."""
        sections: list[Section] = []
        for number, section in enumerate(self.kernel.sections):
            self.section, self.looped = number, section.looped
            self._body, self._after = [], []
            for stmt in section.body:
                self._into = self._body
                if not change(stmt, self):
                    self._body.append(stmt)
            sections.append(Section(section.looped, tuple(self._body)))
            if self._after:
                sections.append(Section(False, tuple(self._after)))
        found = replace(self.kernel, sections=tuple(sections))
        return None if found == self.kernel else found

    def add(
        self,
        op: str,
        *args: str,
        dtype: DType | None = None,
        payload: Any = None,
        to: tuple[str, ...] = (),
    ) -> str:
        """Write a statement, and return the name of its value. `dtype` is that of the operands by default."""
        if dtype is None:
            row = SCALAR_OPS[op]
            dtype = DType.bool if row.result == "bool" else self.types[args[-1]]
        targets = to or (self._fresh(),)
        self.put(statement(op, targets, args, dtype, payload))
        self.types.setdefault(targets[0], dtype)
        return targets[0]

    def put(self, stmt: Statement) -> None:
        """Write a statement as it is."""
        self._into.append(stmt)

    def const(self, value: float, dtype: DType) -> str:
        """Write a constant."""
        made = bool(value) if dtype is DType.bool else float(value) if dtype.is_float else int(value)
        return self.add("const", dtype=dtype, payload=made)

    def index(self, value: IndexLike) -> str:
        """Write the value of an index."""
        if isinstance(value, int):
            return self.const(value, DType.i64)
        return self.add("index", dtype=DType.i64, payload=value)

    def cast(self, value: str, dtype: DType, to: tuple[str, ...] = ()) -> str:
        """Write a conversion."""
        return self.add("cast", value, dtype=dtype, to=to)

    def round_trip(self, value: str, dtype: DType, to: tuple[str, ...] = ()) -> str:
        """Write conversions to a narrower type and back."""
        return self.cast(self.cast(value, dtype), self.types[value], to)

    def renamed(self, stmt: Statement) -> tuple[str, ...]:
        """Write a statement with other targets, so that something else can define its own."""
        fresh = tuple(self._fresh() for _ in stmt.targets)
        self.types.update(zip(fresh, (self.types[t] for t in stmt.targets), strict=True))
        self.put(with_names(stmt, fresh, stmt.args))
        return fresh

    def afterwards(self) -> None:
        """Write what follows after the loop of this section, where results of reductions are known."""
        self._into = self._after

    def is_free(self, stmt: Statement) -> bool:
        """Whether neither addresses nor masks follow from what a statement defines."""
        return not self.used.intersection(stmt.targets)

    def _fresh(self) -> str:
        while True:
            self._count += 1
            name = f"z{self._count}"
            if name not in self.types:
                return name

    def _types(self, stmt: Statement) -> tuple[DType, ...]:
        if not isinstance(stmt, (Reduce, Scan)):
            return (stmt.dtype,) * len(stmt.targets)
        found = result_types(stmt.op, stmt.kind, tuple(self.types[a] for a in stmt.args))
        return (stmt.dtype,) * len(stmt.targets) if isinstance(found, str) else found


def change_each(change: Callable[[Statement, Planter], bool]) -> Plant:
    """The defect that replaces every statement for which `change` writes others and returns True."""
    return lambda kernel: Planter(kernel).plant(change)


def statements(kernel: Kernel) -> Iterator[Statement]:
    """All statements, in order."""
    for section in kernel.sections:
        yield from section.body


def axes_of(index: IndexLike, kernel: Kernel) -> tuple[Index, ...]:
    """The axes of a kernel that an index varies along, outermost first."""
    names = {atom.name for atom in atoms(index) if atom.kind == "axis"}
    return tuple(a for a in (*kernel.axes, *kernel.raxes) if axis_name(a) in names)


def within(index: IndexLike, numel: IndexLike) -> IndexLike:
    """The nearest index that a buffer has."""
    return maximum(0, minimum(index, numel - 1))


def tail_start(size: IndexLike) -> IndexLike:
    """Where the last, incomplete block of eight elements of an axis begins; its last element where there is
    none."""
    if isinstance(size, int) and size > 8 and size % 8:
        return size - size % 8
    return size - 1


def _addresses(kernel: Kernel, made: dict[str, Statement]) -> frozenset[str]:
    found: dict[str, None] = {}
    waiting: list[str] = []
    for stmt in statements(kernel):
        match stmt:
            case Load():
                waiting += stmt.indirect if stmt.mask is None else (*stmt.indirect, stmt.mask)
            case Store():
                waiting += stmt.args[1:]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = None
            waiting += made[name].args
    return frozenset(found)
