"""Rows that one section computes and a later one reads: kept in registers, or computed again.

A tile that holds all that is reduced keeps every value by itself. A program that loops cannot: it computes
again what a later section needs. That is impossible for the results of scans, and for what was loaded from
memory that the kernel has changed since.
"""

from __future__ import annotations

from dataclasses import dataclass

from polyfuse.ir.kernel import Kernel, Section
from polyfuse.ir.statements import Load, Reduce, Scan, Statement, Store
from polyfuse_triton.facts import Facts
from polyfuse_triton.reductions.passes import with_fewer_passes

__all__ = ["Rows", "buffers_read", "has_effect", "kept_rows"]


@dataclass(frozen=True)
class Rows:
    """What a kernel keeps.

    Attributes:
        must_stay: whether some row cannot be computed again.
        revisits: whether several sections run through the same rows.
        rereads: whether a program that walks through rows does so more than once.
    """

    must_stay: bool
    revisits: bool
    rereads: bool


def kept_rows(kernel: Kernel, facts: Facts) -> Rows:
    """What a kernel keeps."""
    names = {local.name for local in kernel.locals}
    must_stay = False
    for section in kernel.sections:
        for stmt in section.body:
            if isinstance(stmt, Load) and stmt.buffer in names:
                must_stay = must_stay or not _again(stmt, facts, names)
    looped = sum(section.looped for section in kernel.sections)
    walks = sum(
        section.looped and has_effect(section, kernel) for section in with_fewer_passes(kernel).sections
    )
    return Rows(must_stay, looped > 1, walks > 1)


def has_effect(section: Section, kernel: Kernel) -> bool:
    """Whether a loop does anything but fill rows, which are computed again where they are needed."""
    rows = {local.name for local in kernel.locals}
    return any(
        isinstance(s, (Reduce, Scan)) or (isinstance(s, Store) and s.buffer not in rows) for s in section.body
    )


def buffers_read(kernel: Kernel, facts: Facts, number: int) -> frozenset[str]:
    """Buffers that a section loads, for what it computes again too."""
    names = {local.name for local in kernel.locals}
    pending = list(kernel.sections[number].body)
    found, seen = set[str](), set[int]()
    while pending:
        stmt = pending.pop()
        if id(stmt) in seen or not isinstance(stmt, Load):
            continue
        seen.add(id(stmt))
        stored = facts.locals_stored.get(stmt.buffer)
        if stmt.buffer not in names:
            found.add(stmt.buffer)
        elif stored is not None:
            pending.extend(_behind(stored, facts))
    return frozenset(found)


def _behind(name: str, facts: Facts) -> list[Load]:
    """The loads that a value is computed from."""
    pending, found, seen = [name], list[Load](), set[str]()
    while pending:
        current = pending.pop()
        if current in seen:
            continue
        seen.add(current)
        stmt, _ = facts.defined[current]
        if isinstance(stmt, Load):
            found.append(stmt)
        if not isinstance(stmt, (Reduce, Scan)):
            pending.extend(stmt.args)
    return found


def _again(stmt: Load, facts: Facts, local_names: set[str]) -> bool:
    """Whether what a statement computes can be computed in a later section."""
    pending, seen = list[Statement]([stmt]), set[int]()
    while pending:
        current = pending.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        if isinstance(current, Scan):
            return False
        if isinstance(current, Reduce):
            continue
        if isinstance(current, Load):
            buffer = current.buffer
            if buffer in local_names:
                stored = facts.locals_stored.get(buffer)
                if stored is None or not _same_place(buffer, facts):
                    return False
                pending.append(facts.defined[stored][0])
                continue
            if buffer in facts.written:
                return False
        pending.extend(facts.defined[name][0] for name in current.args)
    return True


def _same_place(buffer: str, facts: Facts) -> bool:
    """Whether a local is read where it was stored, so that a point reads what it computed itself."""
    return len(facts.local_places.get(buffer, ())) == 1
