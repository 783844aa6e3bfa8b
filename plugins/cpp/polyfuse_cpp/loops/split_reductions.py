"""Long reductions cut into chunks, so that threads share one result and memory is read in the order it lies.

A kernel with few results and long reductions becomes a list of stages, each a kernel of its own: for every
looped section, one that reduces chunks (the chunk is one more parallel axis) into scratch memory, and one
that merges the chunks and runs what follows up to the next loop. The size of a chunk does not depend on the
number of threads, so results do not either.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from polyfuse.ir.kernel import Alias, Kernel, KernelArg, Section
from polyfuse.ir.statements import Load, Reduce, Statement, Store
from polyfuse.ir.types import DType
from polyfuse.kit import row_major
from polyfuse.symbolic import IndexLike, axis, product, symbol
from polyfuse_cpp.facts import Facts
from polyfuse_cpp.tiling import Split

_MERGE = {"welford": "welford_merge", "online_softmax": "softmax_merge"}


@dataclass(frozen=True)
class Scratch:
    """Memory that lives during one launch: `size` elements."""

    name: str
    dtype: DType
    size: IndexLike


@dataclass(frozen=True)
class Stage:
    """One pass of a cut kernel, with the limits of its loops as `tiling.Plan` has them.

    They are other ones at every point of the axis `one_by_one`. Vectors would begin at multiples of `chunk`
    on an axis with limits.
    """

    kernel: Kernel
    limits: tuple[tuple[str, str, str], ...] = ()
    one_by_one: str = ""
    chunk: int = 0

    def without_lanes(self, lanes: int) -> tuple[str, ...]:
        """Axes along which vectors of so many lanes must not run: those whose points have loops of their own,
        and those where a vector would begin beside the multiples of its lanes.
        """
        limited = tuple(name for name, _, _ in self.limits) if self.chunk % lanes else ()
        return (self.one_by_one, *limited)


def stages_of(facts: Facts, split: Split) -> tuple[list[Stage], list[Scratch]]:
    """The stages of a kernel that is cut along `split`, and their scratch memory."""
    return _Cutter(facts, split).cut()


def refused_by_split(kernel: Kernel) -> tuple[Alias, ...]:
    """The pairs of arguments that a cut kernel cannot take as one memory: a pass over a second loop loads
    again what was loaded outside of loops, when a pass before it may have stored there.
    """
    if sum(section.looped for section in kernel.sections) < 2:
        return ()
    outside = {
        stmt.buffer
        for section in kernel.sections
        if not section.looped
        for stmt in section.body
        if isinstance(stmt, Load)
    }
    return tuple(alias for alias in kernel.aliases if alias.input in outside)


class _Cutter:
    def __init__(self, facts: Facts, split: Split) -> None:
        self.kernel, self.facts, self.split = facts.kernel, facts, split
        self.chunks = symbol("chunks", 1)
        self.chunk = axis("chunk", self.chunks)
        self.points = product(self.kernel.sizes)
        self.point = row_major(self.kernel.axes)
        self.scratch: list[Scratch] = []
        self.prefix: list[Statement] = []
        self.results: dict[str, Statement] = {}

    def cut(self) -> tuple[list[Stage], list[Scratch]]:
        stages: list[Stage] = []
        sections = list(self.kernel.sections)
        while sections and not sections[0].looped:
            self.prefix.extend(sections.pop(0).body)
        number = 0
        while sections:
            looped = sections.pop(0)
            after: list[Statement] = []
            while sections and not sections[0].looped:
                after.extend(sections.pop(0).body)
            stages.extend(self._stage(number, looped, after, last=not sections))
            number += 1
        return [replace(s, kernel=self._with_scratch(s.kernel)) for s in stages], self.scratch

    def _stage(self, number: int, looped: Section, after: list[Statement], last: bool) -> Iterable[Stage]:
        reduces = [s for s in looped.body if isinstance(s, Reduce)]
        body = tuple(s for s in looped.body)
        stores: list[Statement] = []
        loads: list[Statement] = []
        merges: list[Reduce] = []
        for position, stmt in enumerate(reduces):
            parts = []
            for result, target in enumerate(stmt.targets):
                dtype = self._type(stmt, result)
                buffer = f"part{number}_{position}_{result}"
                self.scratch.append(Scratch(buffer, dtype, self.chunks * self.points))
                offset = self.chunk * self.points + self.point
                name = target or f"unused{number}_{position}_{result}"
                parts.append(name)
                stores.append(Store(buffer, offset, name, dtype))
                loads.append(Load(f"part_{name}", buffer, offset, dtype))
            kind, merged = _MERGE.get(stmt.kind, stmt.kind), tuple(f"part_{n}" for n in parts)
            merges.append(Reduce(tuple(parts), kind, merged, stmt.dtype))
            body = tuple(replace(stmt, targets=tuple(parts)) if s is stmt else s for s in body)
        limit = self.split
        limits = (
            (
                limit.axis,
                f"chunk * {limit.size}",
                f"index_min(chunk * {limit.size} + {limit.size}, {limit.extent})",
            ),
        )
        first = self.kernel.axes, (Section(False, tuple(self._pure())), Section(True, body))
        yield Stage(
            replace(
                self.kernel,
                axes=(self.chunk, *first[0]),
                sections=(*first[1], Section(False, tuple(stores))),
                size_hints=(limit.count_hint, *self._hints()),
                args=self._args(),
            ),
            limits,
            "chunk",
            limit.size,
        )
        before = Section(False, tuple(self.prefix if number == 0 else self._pure()))
        saved = [] if last else self._save(number, merges)
        sections = (before, Section(True, (*loads, *merges)), Section(False, (*after, *saved)))
        yield Stage(
            replace(
                self.kernel,
                raxes=(self.chunk,),
                sections=sections,
                args=self._args(),
                size_hints=(*self._hints()[: len(self.kernel.axes)], limit.count_hint),
            )
        )
        self.prefix.extend(after)

    def _save(self, number: int, merges: list[Reduce]) -> list[Statement]:
        """Keep merged results for later stages."""
        stores: list[Statement] = []
        for stmt in merges:
            for result, target in enumerate(stmt.targets):
                dtype = self._type(stmt, result)
                buffer = f"whole{number}_{target}"
                self.scratch.append(Scratch(buffer, dtype, self.points))
                stores.append(Store(buffer, self.point, target, dtype))
                self.prefix.append(Load(target, buffer, self.point, dtype))
        return stores

    def _type(self, stmt: Reduce, result: int) -> DType:
        if stmt.kind in ("argmin", "argmax") and result == 1:
            return DType.i64
        return stmt.dtype

    def _pure(self) -> list[Statement]:
        return [s for s in self.prefix if s.op != "store"]

    def _hints(self) -> tuple[int, ...]:
        return tuple(self.facts.hints[a] for a in (*self.facts.axes, *self.facts.raxes))

    def _args(self) -> tuple[KernelArg, ...]:
        return (*self.kernel.args, KernelArg("chunks", "size", DType.i64))

    def _with_scratch(self, kernel: Kernel) -> Kernel:
        used = {s.buffer for part in kernel.sections for s in part.body if isinstance(s, (Load, Store))}
        extra = tuple(KernelArg(s.name, "inout", s.dtype, s.size) for s in self.scratch if s.name in used)
        return replace(kernel, args=(*kernel.args, *extra))
