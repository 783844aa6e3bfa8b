"""Row buffers, which one section computes and a later one reads: held in registers, or computed again.

A tile that holds all that is reduced keeps every value by itself. A program that loops cannot: it computes
again what a later section needs. That is impossible for the results of scans, and for what was loaded from
memory that the kernel has changed since.
"""

from __future__ import annotations

from dataclasses import dataclass

from polyfuse.ir.kernel import Kernel, Section
from polyfuse.ir.statements import Load, Reduce, Scan, Store
from polyfuse.kit import KernelFacts
from polyfuse_triton.reductions.passes import with_fewer_passes


@dataclass(frozen=True)
class Rows:
    """What the row buffers of a kernel need.

    Attributes:
        must_stay: whether some row cannot be computed again.
        revisits: whether several sections run through the same rows.
        rereads: whether a program that walks through rows does so more than once.
    """

    must_stay: bool
    revisits: bool
    rereads: bool


def row_use(facts: KernelFacts) -> Rows:
    """What the row buffers of a kernel need."""
    kernel = facts.kernel
    must_stay = any(
        a.buffer in facts.row_buffers and not facts.recomputable(a.stmt.target, a.section)
        for a in facts.all_accesses
        if isinstance(a.stmt, Load)
    )
    looped = sum(section.looped for section in kernel.sections)
    walks = sum(
        section.looped and has_effect(section, kernel) for section in with_fewer_passes(kernel).sections
    )
    return Rows(must_stay, looped > 1, walks > 1)


def has_effect(section: Section, kernel: Kernel) -> bool:
    """Whether a loop does anything but fill rows, which are computed again where they are needed."""
    rows = {local.name for local in kernel.row_buffers}
    return any(
        isinstance(s, (Reduce, Scan)) or (isinstance(s, Store) and s.buffer not in rows) for s in section.body
    )


def buffers_read(facts: KernelFacts, section: int) -> frozenset[str]:
    """Arguments that a section loads, for what it computes again too."""
    loads = [s for s in facts.kernel.sections[section].body if isinstance(s, Load)]
    found = {s.buffer for s in loads}
    pending = [facts.row_value(s.buffer) for s in loads if s.buffer in facts.row_buffers]
    seen = set[str]()
    while pending:
        name = pending.pop()
        if name is None or name in seen:
            continue
        seen.add(name)
        stmt = facts.definition(name)
        if isinstance(stmt, (Reduce, Scan)):
            continue
        pending += stmt.args
        if isinstance(stmt, Load):
            found.add(stmt.buffer)
            pending += [facts.row_value(stmt.buffer)] if stmt.buffer in facts.row_buffers else []
    return frozenset(found - facts.row_buffers)
