"""Kernels without detours through memory: what a kernel stored and loads again is the value itself."""

from __future__ import annotations

from dataclasses import replace

from polyfuse.ir.kernel import Kernel, Local, Section, Stmt
from polyfuse.symbolic import Index, IndexLike, axis_name, axis_size, coefficient, product

__all__ = ["forwarded"]

_Place = tuple[str, IndexLike]


def forwarded(kernel: Kernel) -> Kernel:
    """The kernel with loads of what was stored before replaced by the stored values, and without stores that
    a later one overwrites before anything reads them. What one loop stores and a later one loads goes through
    scratch besides.

    Halide orders stages by the values that flow between them, and knows nothing of two that meet in memory.
    """
    written = [s.attrs[0] for part in kernel.sections for s in part.body if s.op == "store"]
    read = {s.attrs[0] for part in kernel.sections for s in part.body if s.op == "load"}
    local = {b.name for b in kernel.locals}
    if len(set(written)) == len(written) and not (read & set(written)) - local:
        return kernel
    return _without_dead_stores(_with_rows(_with_values(kernel, local), local))


def _with_values(kernel: Kernel, local: set[str]) -> Kernel:
    held: dict[_Place, str] = {}
    renamed: dict[str, str] = {}
    sections: list[Section] = []
    for section in kernel.sections:
        body: list[Stmt] = []
        inside = dict(held)
        for stmt in section.body:
            stmt = replace(stmt, args=tuple(renamed.get(a, a) for a in stmt.args))
            if stmt.op == "load" and not stmt.args and (stmt.attrs[0], stmt.attrs[1]) in inside:
                renamed[stmt.targets[0]] = inside[stmt.attrs[0], stmt.attrs[1]]
                continue
            body.append(stmt)
            if stmt.op != "store" or stmt.attrs[0] in local:
                continue
            buffer, index, count, mode, masked = stmt.attrs
            for place in [p for p in inside if p[0] == buffer]:
                inside.pop(place)
                held.pop(place, None)
            if mode == "set" and not count and not masked:
                inside[buffer, index] = stmt.args[0]
                if not section.looped:
                    held[buffer, index] = stmt.args[0]
        sections.append(Section(section.looped, tuple(body)))
    return replace(kernel, sections=tuple(sections))


def _with_rows(kernel: Kernel, local: set[str]) -> Kernel:
    """Loads in a loop of what an earlier loop stored at the same place, from scratch instead."""
    place: IndexLike = 0
    for variable in kernel.raxes:
        place = place * axis_size(variable) + variable
    kept: dict[_Place, tuple[int, Stmt]] = {}
    rows: dict[int, tuple[Local, int, Stmt]] = {}
    sections: list[Section] = []
    for number, section in enumerate(kernel.sections):
        body: list[Stmt] = []
        for stmt in section.body:
            key = (stmt.attrs[0], stmt.attrs[1]) if stmt.op in ("load", "store") else ("", 0)
            if stmt.op == "load" and section.looped and not stmt.args and key in kept:
                home, stored = kept[key]
                size = product(axis_size(a) for a in kernel.raxes)
                fresh = Local(f"kept{len(rows)}", stmt.dtype, size)
                row = rows.setdefault(id(stored), (fresh, home, stored))[0]
                stmt = replace(stmt, attrs=(row.name, place, 0, False))
            elif stmt.op == "store" and stmt.attrs[0] not in local:
                for other in [k for k in kept if k[0] == stmt.attrs[0]]:
                    kept.pop(other)
                plain = stmt.attrs[3] == "set" and not stmt.attrs[2] and not stmt.attrs[4]
                if plain and section.looped and _differs(stmt.attrs[1], kernel.raxes):
                    kept[key] = (number, stmt)
            body.append(stmt)
        sections.append(Section(section.looped, tuple(body)))
    if not rows:
        return kernel
    for row, number, stored in rows.values():
        body = []
        for stmt in sections[number].body:
            body.append(stmt)
            if stmt is stored:
                body.append(replace(stmt, attrs=(row.name, place, 0, "set", False)))
        sections[number] = Section(True, tuple(body))
    return replace(kernel, sections=tuple(sections), locals=(*kernel.locals, *(r[0] for r in rows.values())))


def _differs(index: IndexLike, raxes: tuple[Index, ...]) -> bool:
    """Whether each step of the loops has a place of its own."""
    steps = [coefficient(index, axis_name(a)) for a in raxes]
    return all(s is not None and (s != 0 or axis_size(a) == 1) for s, a in zip(steps, raxes))


def _without_dead_stores(kernel: Kernel) -> Kernel:
    """Going backwards: a plain store is dead where a later one of the same kind of section has its place."""
    later: set[tuple[bool, str, IndexLike]] = set()
    sections: list[Section] = []
    for section in reversed(kernel.sections):
        body: list[Stmt] = []
        for stmt in reversed(section.body):
            if stmt.op == "load":
                later = {key for key in later if key[1] != stmt.attrs[0]}
            elif stmt.op == "store":
                buffer, index, count, mode, masked = stmt.attrs
                key = (section.looped, buffer, index)
                if mode == "set" and not count and key in later:
                    continue
                if mode == "set" and not count and not masked:
                    later.add(key)
            body.append(stmt)
        sections.append(Section(section.looped, tuple(reversed(body))))
    return replace(kernel, sections=tuple(reversed(sections)))
