"""Kernels without detours through memory: what a kernel stored and loads again is the value itself."""

from __future__ import annotations

from dataclasses import replace

from polyfuse.ir.kernel import Kernel, Section, Stmt
from polyfuse.symbolic import IndexLike

__all__ = ["forwarded"]

_Place = tuple[str, IndexLike]


def forwarded(kernel: Kernel) -> Kernel:
    """The kernel with loads of what was stored before replaced by the stored values, and without stores that
    a later one overwrites before anything reads them.

    Halide orders stages by the values that flow between them, and knows nothing of two that meet in memory.
    """
    written = [s.attrs[0] for part in kernel.sections for s in part.body if s.op == "store"]
    read = {s.attrs[0] for part in kernel.sections for s in part.body if s.op == "load"}
    local = {b.name for b in kernel.locals}
    if len(set(written)) == len(written) and not (read & set(written)) - local:
        return kernel
    return _without_dead_stores(_with_values(kernel, local))


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
