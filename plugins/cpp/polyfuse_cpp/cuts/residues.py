"""Copies of a kernel's statements for points whose elements are interleaved in memory.

Where indices divide the lane axis by a small number, it is split by remainder: a copy for each residue.

The gradient of a pooling with stride 2 loads ``in[(p + 1) // 2]`` where ``(p + 1) % 2 < 1``; resampling,
interleaved channels and repeated elements are alike. Lane by lane that is a masked window of memory. With
``p = 2*q + r`` lanes run along q: each of the two residues loads contiguous memory, comparisons of remainders
are decided here, and the stores of all residues are interleaved in registers (`memory.interleave`).

A short axis of neighbouring elements, such as the colours of an image, is copied too: lanes run along the
axis outside it, and each copy loads or stores every n-th element.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

from polyfuse.ir.kernel import Kernel, Section
from polyfuse.ir.ops import CHECK_MODE
from polyfuse.ir.statements import Load, Statement, Store, indices, with_index, with_names
from polyfuse.ir.types import DType
from polyfuse.kit import is_multiple
from polyfuse.symbolic import IndexLike, atoms, axis, coefficient, free_axes, substitute
from polyfuse_cpp.cuts.copying import Copying
from polyfuse_cpp.cuts.order import used_early
from polyfuse_cpp.facts import Facts
from polyfuse_cpp.memory.copies import moved_as_bits
from polyfuse_cpp.tiling import Plan, choose_plan

MOST_RESIDUES = 4
"""Residues into which an axis is cut at most: each is a copy of the kernel's statements."""

_MOST_STATEMENTS = 400
"""Statements of all residues together, beyond which compiling them costs more than they save."""


def planned(kernel: Kernel, lanes: int, lane_at: int = 0, unroll: int = 0) -> tuple[Facts, Plan]:
    """What is known of the kernel as it is run, in residues where that pays, and how it is run.

    `lane_at` is the position of the lane axis (the first is 1); zero, and an `unroll` of zero, leave the
    choice to `tiling.choose_plan`.
    """
    facts = Facts.of(used_early(moved_as_bits(kernel)))
    side = _side_by_side(facts, lanes) if lanes > 1 and not lane_at else None
    if side is not None:
        apart, lane = side
        return apart, choose_plan(apart, lanes, lane, unroll)
    lane = (*facts.axes, *facts.raxes)[lane_at - 1] if lane_at else ""
    plan = choose_plan(facts, lanes, lane, unroll)
    by_residue = _by_residue(facts, plan)
    if by_residue is not None:
        its_plan = choose_plan(by_residue, lanes, by_residue.axes[facts.axes.index(plan.lane)], unroll)
        if not its_plan.tile:
            return by_residue, its_plan
    return facts, plan


def _by_residue(facts: Facts, plan: Plan) -> Facts | None:
    """The kernel with its lane axis split by remainder; None where that is not needed, or not possible."""
    kernel = facts.kernel
    if not plan.lane or plan.across or plan.tile or facts.raxes or kernel.row_buffers:
        return None
    if facts.hints[plan.lane] < plan.lanes or not all(is_plain(a.stmt, facts) for a in facts.all_accesses):
        return None
    stores = [a for a in facts.all_accesses if a.is_store and a.mode != CHECK_MODE]
    if any(coefficient(a.index, plan.lane) != 1 for a in stores):
        return None
    if any(part.looped for part in kernel.sections):
        return None
    residues = _divisor(_indices(facts.statements), plan.lane)
    if not 1 < residues <= MOST_RESIDUES or residues * len(facts.statements) > _MOST_STATEMENTS:
        return None
    return _Cut(facts, plan.lane, residues).cut()


def _side_by_side(facts: Facts, lanes: int) -> tuple[Facts, str] | None:
    """The kernel with a short axis as residues, and the axis that lanes then run along; None where there is
    no such axis.
    """
    kernel = facts.kernel
    if facts.raxes or kernel.row_buffers or any(part.looped for part in kernel.sections):
        return None
    if not all(is_plain(a.stmt, facts) for a in facts.all_accesses):
        return None
    most = min(MOST_RESIDUES, _MOST_STATEMENTS // max(1, len(facts.statements)))
    for short in facts.axes:
        size = facts.sizes[short]
        if not isinstance(size, int) or not 1 < size <= most:
            continue
        for lane in facts.axes:
            if lane != short and facts.hints[lane] >= lanes and _is_interleaved(facts, short, size, lane):
                made = _Cut(facts, short, size, whole=True).cut()
                return None if made is None else (made, lane)
    return None


def _is_interleaved(facts: Facts, short: str, size: int, lane: str) -> bool:
    """Whether the elements of an axis are interleaved along the lanes: in all stores, or in some load while
    nothing jumps along the lanes.
    """
    stores, loads = list[bool](), list[bool]()
    near = True
    for access in (a for a in facts.all_accesses if a.mode != CHECK_MODE):
        step = coefficient(access.index, lane)
        interleaved = step == size and coefficient(access.index, short) == 1
        (stores if access.is_store else loads).append(interleaved)
        if any(lane in facts.depends[v] for v in access.indirect) or not (interleaved or step in (0, 1)):
            near = False
        if access.is_store and step == 0:
            return False
    return all(stores) or (near and any(loads))


def is_plain(stmt: Load | Store, facts: Facts) -> bool:
    """Whether an access is a load of what nothing writes, or a store to one position without a condition."""
    if isinstance(stmt, Load):
        return stmt.buffer not in facts.written
    if stmt.mode == CHECK_MODE:
        return True
    return stmt.mode == "set" and not stmt.indirect and stmt.mask is None


def _indices(stmts: Iterable[Statement]) -> Iterator[IndexLike]:
    for stmt in stmts:
        yield from indices(stmt)


def _divisor(indices: Iterable[IndexLike], lane: str) -> int:
    """The least common multiple of what the lane axis is divided by; 0 where that is not always a number."""
    found = 1
    for index in indices:
        for atom in atoms(index):
            if atom.kind in ("floordiv", "mod") and lane in free_axes(atom.args[0]):
                by = atom.args[1]
                if not isinstance(by, int) or by <= 0:
                    return 0
                found = math.lcm(found, by)
    return found


class _Cut(Copying):
    """One kernel being cut along an axis; `whole`: nothing of the axis is left."""

    def __init__(self, facts: Facts, lane: str, residues: int, whole: bool = False) -> None:
        super().__init__()
        self.facts, self.lane, self.residues, self.whole = facts, lane, residues, whole
        self.position = self.facts.axes.index(self.lane)
        self.size = self.facts.sizes[self.lane]
        steps = (self.size + self.residues - 1) // self.residues
        self.axis = axis(f"{self.lane}q", steps)
        self.names: list[dict[str, str]] = [{} for _ in range(self.residues)]

    def cut(self) -> Facts | None:
        kernel = self.facts.kernel
        sections = []
        for section in kernel.sections:
            self.body = []
            stores: list[list[Statement]] = []
            for residue in range(self.residues):
                stores.append([s for s in (self._copy(s, residue) for s in section.body) if s is not None])
            interleaved = [by_residue[k] for k in range(len(stores[0])) for by_residue in stores]
            sections.append(Section(section.looped, (*self.body, *interleaved)))
        stmts = [s for part in sections for s in part.body]
        if _divisor(_indices(stmts), f"{self.lane}q") != 1:
            return None
        hints = [self.facts.hints[a] for a in self.facts.axes]
        hints[self.position] = -(-hints[self.position] // self.residues)
        axes = list(kernel.axes)
        axes[self.position] = self.axis
        if self.whole:
            del hints[self.position], axes[self.position]
        made = replace(kernel, axes=tuple(axes), sections=tuple(sections), size_hints=tuple(hints))
        return Facts.of(made)

    def _copy(self, stmt: Statement, residue: int) -> Statement | None:
        """Write a statement of one residue; a store is given back instead."""
        names = self.names[residue]
        args = tuple(names[a] for a in stmt.args)
        copy = with_index(with_names(stmt, stmt.targets, args), lambda index: self._at(index, residue))
        if isinstance(copy, Store):
            inside = self._inside(residue)
            if inside and copy.mask is not None:
                inside = self.value("bitwise_and", (copy.mask, inside), DType.bool)
            return replace(copy, mask=inside or copy.mask)
        if isinstance(copy, Load):
            name = self._load(copy, residue)
        else:
            name = self.value(copy.op, args, copy.dtype, copy.payload)
        names[stmt.targets[0]] = name
        return None

    def _at(self, index: IndexLike, residue: int) -> IndexLike:
        return substitute(index, {self.lane: residue if self.whole else self.axis * self.residues + residue})

    def _inside(self, residue: int) -> str:
        """The name of whether a point of a residue lies on the axis; empty where all do."""
        if self.whole or residue == 0 or is_multiple(self.size, self.residues):
            return ""
        if isinstance(self.size, int) and residue < self.size % self.residues:
            return ""
        here = self.value("index", (), DType.i64, self.axis * self.residues + residue)
        end = self.value("index", (), DType.i64, self.size)
        return self.value("lt", (here, end), DType.bool)

    def _load(self, stmt: Load, residue: int) -> str:
        """A load of one residue: nothing beyond the axis, and no condition that is known."""
        position, mask, other = stmt.indirect, stmt.mask or "", stmt.other or ""
        inside = self._inside(residue) if self._varies(stmt.index, position) else ""
        if inside:
            mask = self.value("bitwise_and", (mask, inside), DType.bool) if mask else inside
            other = other or self.constant(0, stmt.dtype)
            stmt = replace(stmt, mask=mask, other=other)
        return self.load(stmt)

    def _varies(self, index: IndexLike, position: tuple[str, ...]) -> bool:
        """Whether an access depends on the axis; where data say, it might."""
        return bool(position) or f"{self.lane}q" in free_axes(index)
