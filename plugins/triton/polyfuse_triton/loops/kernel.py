"""A Kernel as the text of one Triton function."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from polyfuse.ir.kernel import Kernel, Section
from polyfuse.ir.statements import Load, Reduce, Scan, Statement, Store
from polyfuse.kit import KernelFacts, Writer
from polyfuse.plugin import Source
from polyfuse.symbolic import free_axes
from polyfuse_triton.build.meta import WORKSPACE
from polyfuse_triton.loops.aliases import with_late_stores
from polyfuse_triton.loops.coordinates import Coordinates, renamed
from polyfuse_triton.loops.memory import MemoryScope
from polyfuse_triton.loops.scope import Value
from polyfuse_triton.reductions.cluster import Join
from polyfuse_triton.reductions.lookback import LookBack
from polyfuse_triton.reductions.passes import with_fewer_passes
from polyfuse_triton.reductions.reduce import Accumulator, reduce_whole
from polyfuse_triton.reductions.row_buffers import buffers_read, has_effect
from polyfuse_triton.reductions.row_splits import words
from polyfuse_triton.reductions.scans import ScanWriter
from polyfuse_triton.tiling.plan import Plan

_PLAIN = re.compile(r"(in|out|inout|io|s|u|zuf|ks)\d+")
"""Names of arguments that no name in a kernel's text is like."""

_THREAD = 32
"""Threads of a warp."""
_MOST_BYTES = 256
"""Of early loads for each thread: a quarter of its registers."""
_FEW_PROGRAMS = 256
"""So few take the time of waiting for memory: how often one after the other, and not how much they read."""


@dataclass(frozen=True)
class KernelText:
    """The text of one kernel, its parameters' names, its launch grid, the words that programs share, and how
    many start as one cluster.
    """

    text: str
    parameters: tuple[str, ...]
    constants: tuple[tuple[str, int], ...]
    grid: int | str
    zeroed: int | str = 0
    cluster: int = 1


def parameter_names(kernel: Kernel) -> dict[str, str]:
    """The name of each argument in the kernel's text."""
    return {a.name: a.name if _PLAIN.fullmatch(a.name) else f"a{k}_" for k, a in enumerate(kernel.args)}


def kernel_text(kernel: Kernel, plan: Plan) -> KernelText:
    """The function of a kernel, named `Source.SYMBOL`."""
    if plan.walks or plan.serial:
        kernel = with_late_stores(with_fewer_passes(kernel))
    arguments = parameter_names(kernel)
    facts = KernelFacts.of(kernel)
    coordinates = Coordinates(plan, facts, arguments)
    moved = renamed(kernel, plan, facts)
    out = Writer()
    constants = tuple((dim.constant, dim.block) for dim in plan.dims)
    shared = [WORKSPACE] if plan.is_shared else []
    parameters = [*arguments.values(), *shared, *(f"{name}: tl.constexpr" for name, _ in constants)]

    def write(prefix: str) -> None:
        scope = MemoryScope(moved, KernelFacts.of(moved), plan, coordinates, out, arguments, prefix)
        sections = _Sections(moved, scope, coordinates)
        if plan.groups is None:
            sections.write()
        else:
            sections.write_group()

    with out.indented(), out.detached() as lines:
        if coordinates.worth_two_ways:
            out.line(f"if {coordinates.is_inside()}:")
            with out.indented(), coordinates.without_masks():
                write("w")
            out.line("else:")
            with out.indented():
                write("v")
        else:
            write("v")
    out.line("@triton.jit")
    out.line(f"def {Source.SYMBOL}({', '.join(parameters)}):")
    with out.indented():
        for line in coordinates.lines(lines):
            out.line(line)
        if not lines:
            out.line("pass")
    out.add(lines)
    grid = coordinates.grid()
    programs = grid
    if plan.joins:
        programs = grid * plan.chunks if isinstance(grid, int) else f"({grid}) * {plan.chunks}"
    zeroed = words(kernel, programs) if plan.is_shared else 0
    return KernelText(out.text(), tuple(arguments.values()), constants, grid, zeroed, plan.chunks)


class _Sections:
    """Writes the sections of a kernel in order."""

    def __init__(self, kernel: Kernel, scope: MemoryScope, coordinates: Coordinates) -> None:
        self._kernel = kernel
        self._coordinates = coordinates
        self._scope = scope
        self._plan = scope.plan
        self._looping = scope.plan.walks or bool(scope.plan.serial)
        self._look_back = LookBack(scope) if scope.plan.looks_back else None
        self._join = Join(scope) if scope.plan.joins else None
        # a load is for the tile as it is, not for the rows of a group or the chunks of a loop
        self._fetched = self._looping or self._join is not None or scope.plan.groups is not None

    def write(self) -> None:
        """All sections. Few programs ask first for all that they read: a compiler moves no load past a store,
        or past the barrier of a reduction.
        """
        programs = self._coordinates.grid()
        if self._plan.reduced is not None and isinstance(programs, int) and programs <= _FEW_PROGRAMS:
            self._fetch(self._kernel.sections)
        for number, section in enumerate(self._kernel.sections):
            if section.looped and self._looping:
                if has_effect(section, self._kernel):
                    self._loop(number, section)
            else:
                self._straight(section)

    def write_group(self) -> None:
        """All sections for one row of a group after the other, and the sums that they leave."""
        scope, out = self._scope, self._scope.out
        head, inside, behind = self._coordinates.group_lines()
        with out.detached() as body, out.indented(1):
            self.write()
        for line in scope.sums.begin():
            out.line(line)
        out.line(head)
        with out.indented():
            out.line(inside)
        out.add(body)
        out.line(behind)
        scope.forget()
        for stmt, name in scope.sums.found.values():
            scope.add_once(stmt, name)

    def _straight(self, section: Section) -> None:
        """A section without a loop in the text: it runs once, or its tile holds all of it."""
        scope = self._scope
        for stmt in section.body:
            if isinstance(stmt, Reduce):
                behind = self._kernel.sections[self._kernel.sections.index(section) :]
                self._fetch([s for s in behind if any(isinstance(other, Reduce) for other in s.body)])
                self._bind(stmt, reduce_whole(scope, stmt, self._join))
            elif isinstance(stmt, Scan):
                self._bind(stmt, ScanWriter(scope, stmt, self._look_back).step())
            else:
                self._plain(stmt, section.looped)

    def _fetch(self, sections: Sequence[Section]) -> None:
        """Begin to read what some sections need, so that memory does not wait for what is before them."""
        if self._fetched:
            return
        self._fetched = True
        for stmt in fetched_early(sections, self._scope.facts, self._plan):
            self._scope.evaluate(stmt)

    def _plain(self, stmt: Statement, looped: bool) -> None:
        if isinstance(stmt, Store):
            self._scope.store(stmt, looped)
        else:
            self._scope.values[stmt.targets[0]] = self._scope.evaluate(stmt)

    def _bind(self, stmt: Statement, found: tuple[Value, ...]) -> None:
        self._scope.values.update(zip(stmt.targets, found, strict=True))

    def _loop(self, number: int, section: Section) -> None:
        """A section as a loop over chunks of its reduction axes."""
        scope, out = self._scope, self._scope.out
        scope.before_loop(section.body)
        self._note_reads(number)
        # what is the same at every turn of the loop and known by now
        outer_values, outer_done = dict(scope.values), dict(scope.done)
        accumulators: list[tuple[Reduce, Accumulator]] = []
        scans: list[ScanWriter] = []
        heads = self._heads(section)
        with out.detached() as body, out.indented(len(heads)):
            for stmt in section.body:
                if isinstance(stmt, Reduce):
                    accumulators.append((stmt, Accumulator(scope, stmt, self._join)))
                    accumulators[-1][1].step()
                elif isinstance(stmt, Scan):
                    scans.append(ScanWriter(scope, stmt))
                    self._bind(stmt, scans[-1].step())
                else:
                    self._plain(stmt, True)
        begins = [line for _, a in accumulators for line in a.begin()]
        for line in (*begins, *(line for scan in scans for line in scan.begin())):
            out.line(line)
        self._write_loop(heads, body)
        scope.values, scope.done = outer_values, outer_done
        for stmt, accumulator in accumulators:
            self._bind(stmt, accumulator.finish())

    def _heads(self, section: Section) -> list[str]:
        """The loops around a section's body, outermost first."""
        scope, plan = self._scope, self._plan
        heads = []
        for number, name in enumerate(plan.serial):
            size = scope.coordinates.extent(scope.facts.sizes[name])
            heads.append(f"for q{number} in range(0, {size}):")
        if plan.walks:
            # a lane of moments may be without numbers in its last turns only
            moments = any(isinstance(stmt, Reduce) and stmt.kind == "welford" for stmt in section.body)
            heads.insert(0 if moments else len(heads), f"for r0 in {self._coordinates.turns()}:")
        return heads

    def _write_loop(self, heads: list[str], body: list[str]) -> None:
        out = self._scope.out
        for depth, head in enumerate(heads):
            with out.indented(depth):
                out.line(head)
        with out.indented(len(heads)):
            for line in self._coordinates.loop_lines(body):
                out.line(line)
            if not body:
                out.line("pass")
        out.add(body)

    def _note_reads(self, number: int) -> None:
        """Which buffers later loops read again: their lines are worth keeping, those of others are not."""
        reads = [
            buffers_read(self._scope.facts, k)
            if section.looped and has_effect(section, self._kernel)
            else frozenset[str]()
            for k, section in enumerate(self._kernel.sections)
        ]
        here, later = reads[number], frozenset[str]().union(*reads[number + 1 :])
        self._scope.fresh_reads = here & later
        self._scope.last_reads = here - later


def fetched_early(sections: Sequence[Section], facts: KernelFacts, plan: Plan) -> list[Load]:
    """The loads along rows in some sections, whose memory no store of the kernel changes, as many as fit in
    registers.
    """
    assert plan.reduced is not None
    room = _MOST_BYTES * _THREAD * plan.num_warps
    found: list[Load] = []
    for section in sections:
        for stmt in section.body:
            if not isinstance(stmt, Load) or stmt.args or stmt.buffer in facts.may_change:
                continue
            along = free_axes(stmt.index)
            if stmt.buffer in facts.row_buffers or plan.reduced.name not in along:
                continue
            room -= stmt.dtype.itemsize * (plan.elements if len(along) > 1 else plan.reduced.block)
            if room < 0:
                return found
            found.append(stmt)
    return found
