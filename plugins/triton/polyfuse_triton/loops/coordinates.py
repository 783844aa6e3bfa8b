"""Where a program and its tile stand: the names of axes in the text, and how each is found."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from polyfuse.ir.kernel import Kernel, Section
from polyfuse.ir.statements import Load, Statement, Store, with_index
from polyfuse.kit import KernelFacts
from polyfuse.symbolic import IndexLike, axis, free_symbols, is_less, python_text, substitute, symbol
from polyfuse_triton.loops.indexing import Indexer, Variable
from polyfuse_triton.reductions.row_splits import ticket
from polyfuse_triton.tiling.plan import Dim, Plan

_WIDE = 16
"""Elements of the widest access."""
_NARROW = 1 << 16
"""Indices below this fit in 16 bits."""
_WORD = re.compile(r"[A-Za-z_]\w*")


def renamed(kernel: Kernel, plan: Plan, facts: KernelFacts) -> Kernel:
    """The kernel with its axes in terms of the plan's: ``x``, ``y``, ``z``, ``r`` for tile dimensions,
    ``g0``, ``g1``, ... for axes outside the tile, and ``q0``, ... for axes walked one by one.
    """
    mapping: dict[str, IndexLike] = {}
    for prefix, names in (("g", plan.grid), ("q", plan.serial)):
        for number, name in enumerate(names):
            size = facts.sizes[name]
            mapping[name] = 0 if size == 1 else axis(f"{prefix}{number}", size)
    for dim in plan.dims:
        rest: IndexLike = axis(dim.name, dim.extent)
        for name in reversed(dim.axes[1:]):
            mapping[name] = rest % facts.sizes[name]
            rest = rest // facts.sizes[name]
        if dim.axes:
            mapping[dim.axes[0]] = rest

    def moved(stmt: Statement) -> Statement:
        if isinstance(stmt, (Load, Store)) and stmt.buffer in local_names:
            # the index in a row buffer is only compared, and is the same wherever rows are laid out alike
            return stmt
        return with_index(stmt, lambda index: substitute(index, mapping))

    local_names = {local.name for local in kernel.row_buffers}
    sections = tuple(Section(s.looped, tuple(moved(stmt) for stmt in s.body)) for s in kernel.sections)
    return replace(kernel, sections=sections)


@dataclass(frozen=True)
class _Step:
    """One thing that the number of a program says: `count` values of `name`."""

    name: str
    count: IndexLike


class Position(Protocol):
    """What statements ask of the coordinates of their tile."""

    def variable(self, name: str) -> Variable:
        """What an axis is in the text."""
        ...

    def mask(self, dims: Iterable[str]) -> tuple[str, ...]:
        """Names of the masks that keep a tile inside some dimensions."""
        ...

    def extent(self, size: IndexLike) -> str:
        """A size as text."""
        ...


def needed(definitions: Mapping[str, str], texts: Iterable[str]) -> list[str]:
    """The definitions, as lines in order, that some texts need."""
    wanted = {word for text in texts for word in _WORD.findall(text)}
    found: list[str] = []
    for name in reversed(tuple(definitions)):
        if name in wanted:
            text = definitions[name]
            wanted |= set(_WORD.findall(text))
            found.append(f"{name} = {text}")
    return found[::-1]


class Coordinates:
    """Axes as names, and the lines that define them.

    Which lines are needed is only known once the statements that use them have been written: `lines` gives
    those that some text needs.
    """

    def __init__(self, plan: Plan, facts: KernelFacts, arguments: Mapping[str, str]) -> None:
        self.plan = plan
        self._facts = facts
        self._arguments = arguments
        self._variables: dict[str, Variable] = {}
        self._definitions: dict[str, str] = {}
        self._inside: dict[str, str] = {}
        self._masked = True
        self._define_programs()
        for position, dim in enumerate(plan.dims):
            self._define_dim(position, dim)
        for number, name in enumerate(plan.serial):
            wide = not isinstance(facts.sizes[name], int)
            self._variables[f"q{number}"] = Variable(f"q{number}", wide=wide)

    # --- what texts ask for ----------------------------------------------------------------------------

    def variable(self, name: str) -> Variable:
        """What an axis is in the text."""
        return self._variables[name]

    def mask(self, dims: Iterable[str]) -> tuple[str, ...]:
        """Names of the masks that keep a tile inside some dimensions."""
        chosen = set(dims) if self._masked else ()
        return tuple(f"{d.name}m" for d in self.plan.dims if d.name in chosen and not d.is_full)

    @property
    def worth_two_ways(self) -> bool:
        """Whether a tile that lies inside the data should be distinguished from one at its end.

        A mask whose border may lie anywhere keeps accesses from being wide; without one they are.
        """
        dims = self.plan.dims
        if len(dims) != 1 or dims[0] not in self.plan.program_dims or dims[0].is_full or dims[0].is_one:
            return False
        return not (isinstance(dims[0].extent, int) and dims[0].extent % _WIDE == 0)

    def is_inside(self) -> str:
        """The condition that the one dimension's tile lies inside the data."""
        dim = self.plan.dims[0]
        if self.plan.walkers:
            return f"rb * {self.plan.part} + {self.plan.part} <= {self.extent(dim.extent)}"
        return f"{dim.name}0 + {dim.constant} <= {self.extent(dim.extent)}"

    @contextmanager
    def without_masks(self) -> Iterator[None]:
        """What is written inside is for tiles that lie inside the data."""
        self._masked = False
        yield
        self._masked = True

    def lines(self, texts: Iterable[str]) -> list[str]:
        """Definitions for all of the program that some lines need, in order."""
        return needed(self._definitions, texts)

    def loop_lines(self, texts: Iterable[str]) -> list[str]:
        """Definitions for each turn of the loop over ``r`` that some lines need."""
        return needed(self._inside, texts)

    def group_lines(self) -> tuple[str, str, str]:
        """The head of the loop over a group's rows, the line that finds the row inside, and that behind it,
        where any row of the group does.
        """
        groups = self.plan.groups
        assert groups is not None
        name = f"g{self.plan.grid.index(groups.axis)}"
        size, count = self._facts.sizes[groups.axis], str(groups.count)
        if isinstance(size, int) and size <= groups.count:
            return f"for member in {self._rows(str(size))}:", f"{name} = member", f"{name} = 0"
        first = f"{name} = group * {count}"
        if not isinstance(size, int) or size % groups.count:
            count = f"tl.minimum({count}, {self.extent(size)} - group * {count})"
        return f"for member in {self._rows(count)}:", f"{first} + member", first

    def _rows(self, count: str) -> str:
        """The rows of a group; several stages have the compiler load rows ahead."""
        stages = self.plan.num_stages
        return f"tl.range(0, {count}, num_stages={stages})" if stages > 1 else f"range(0, {count})"

    def extent(self, size: IndexLike) -> str:
        """A size as text."""
        if isinstance(size, int):
            return str(size)
        return Indexer(self.variable, self._arguments).value(size)[0]

    def turns(self) -> str:
        """The values of `r0` in the loop over chunks of what is reduced."""
        plan = self.plan
        assert plan.reduced is not None
        first, last = "0", self.extent(plan.reduced.extent)
        if plan.walkers:
            first = f"rb * {plan.part}"
            last = f"tl.minimum({first} + {plan.part}, {last})"
        return f"range({first}, {last}, {plan.reduced.constant})"

    def grid(self) -> int | str:
        """The number of programs, or of clusters of them, as a Python expression over size arguments."""
        counts = [step.count for step in self._steps() if not (self.plan.joins and step.name == "rb")]
        static = 1
        texts: list[str] = []
        for count in counts:
            if isinstance(count, int):
                static *= count
            else:
                texts.append(f"({host_text(count, self._arguments)})")
        if not texts or static == 0:
            return static
        return " * ".join([*texts, *([str(static)] if static != 1 else [])])

    # --- definitions -----------------------------------------------------------------------------------

    def _steps(self) -> Sequence[_Step]:
        """What the number of a program counts, fastest first."""
        steps = []
        dims = self.plan.program_dims
        for dim in dims if self.plan.in_bands else reversed(dims):
            count: IndexLike = 1 if dim.is_one else (dim.extent + (dim.block - 1)) // dim.block
            if dim is self.plan.reduced and self.plan.walkers:
                count = self.plan.chunks
            if isinstance(dim.extent, int) and dim.extent == 0:
                count = 0
            steps.append(_Step(f"{dim.name}b", count))
        for number in reversed(range(len(self.plan.grid))):
            name, size = f"g{number}", self._facts.sizes[self.plan.grid[number]]
            groups = self.plan.groups
            if groups is not None and self.plan.grid[number] == groups.axis:
                name, size = "group", (size + (groups.count - 1)) // groups.count
            steps.append(_Step(name, size))
        return steps

    def _define_programs(self) -> None:
        steps = [s for s in self._steps() if not (isinstance(s.count, int) and s.count <= 1)]
        rest = "tl.program_id(0)"
        if self.plan.is_shared:
            self._definitions["programs"] = "tl.num_programs(0)"
            self._definitions["program"] = ticket() if self.plan.looks_back else rest
            rest = "program"
        for number, step in enumerate(steps[:-1]):
            if not number and rest != "program":
                self._definitions["program"] = rest
                rest = "program"
            count = self._count(step)
            self._definitions[step.name] = f"{rest} % {count}"
            later = f"{rest} // {count}"
            if number == len(steps) - 2:
                rest = later
                continue
            rest = f"program{number}"
            self._definitions[rest] = later
        if steps:
            self._definitions[steps[-1].name] = rest
        for k in range(len(self.plan.grid)):
            self._variables[f"g{k}"] = Variable(f"g{k}")

    def _count(self, step: _Step) -> str:
        if isinstance(step.count, int):
            return str(step.count)
        # as many as there are programs at most, which 32 bits can count
        name = f"{step.name}_count"
        self._definitions[name] = f"tl.cast({self.extent(step.count)}, tl.int32)"
        return name

    def _define_dim(self, position: int, dim: Dim) -> None:
        n, constant = dim.name, dim.constant
        rank = len(self.plan.dims)
        subscript = ", ".join(":" if k == position else "None" for k in range(rank))
        along = "" if rank == 1 else f"[{subscript}]"
        arange = f"tl.arange(0, {constant})"
        if dim.together:
            arange = f"tl.max_contiguous({arange}, {dim.together})"
        arange += along
        wide = not is_less(dim.extent, (1 << 31) - dim.block)
        dims = frozenset((n,))
        looped = dim is self.plan.reduced and self.plan.walks
        if dim.is_one or (dim not in self.plan.program_dims and not looped):
            self._definitions[n] = arange
            self._definitions[f"{n}m"] = f"{n} < {self.extent(dim.extent)}"
            self._variables[n] = Variable(n, dims, "", n, dim.block)
            return
        self._definitions[f"{n}l"] = arange
        inside = self._inside if looped else self._definitions
        if not looped:
            inside[f"{n}0"] = self._beginning(dim, wide)
        inside[n] = f"{n}0 + {n}l"
        if isinstance(dim.extent, int) and not wide:
            inside[f"{n}m"] = f"{n} < {dim.extent}"
        else:
            # what is left is counted as a scalar, so that vectors stay at 32 bits
            left = f"tl.minimum({self.extent(dim.extent)} - {n}0, {constant})"
            inside[f"{n}m"] = f"{n}l < tl.cast({left}, tl.int32)"
        self._variables[n] = Variable(n, dims, f"{n}0", f"{n}l", dim.block, wide)

    def _beginning(self, dim: Dim, wide: bool) -> str:
        """Where a program's tile begins.

        Where axes are found by division, it says that this is no negative number, for that takes fewer
        instructions; and it keeps short indices from being narrowed to 16 bits, for that takes more of them.
        """
        number, constant = f"{dim.name}b", dim.constant
        if wide:
            return f"tl.cast({number}, tl.int64) * {constant}"
        if len(dim.axes) < 2 and self._facts.nonlinear_axes.isdisjoint(dim.axes):
            return f"{number} * {constant}"
        if isinstance(dim.extent, int) and dim.extent <= _NARROW:
            number = f"anywhere({number})"
        return f"beginning({number} * {constant})"


def host_text(index: IndexLike, arguments: Mapping[str, str]) -> str:
    """A size as a Python expression over the kernel's parameters."""
    return python_text(substitute(index, {s: symbol(arguments[s]) for s in free_symbols(index)}))
