"""Forwarding of stored values: what a kernel stored and loads again is the value itself."""

from __future__ import annotations

import re
from dataclasses import replace

from polyfuse.ir.kernel import Kernel, RowBuffer, Section
from polyfuse.ir.statements import Load, Statement, Store, with_names
from polyfuse.kit import KernelFacts, row_major, with_safe_names
from polyfuse.symbolic import Index, IndexLike, axis_name, axis_size, coefficient, product

_SAFE_NAMES = re.compile(r"(?!log2$|log10$|exp2$|atan2$|(red|once|tile)[0-9]+$)[A-Za-z_]{1,4}[0-9]+")
"""Names that are no functions of the library, and no stages of generated programs. To a name these append
`_n` for positions in 32 bits, and `_of` for what fills a row buffer; neither result is a name of this form.
"""

_Element = tuple[str, IndexLike]
"""A buffer and an index in it."""


def forwarded(kernel: Kernel) -> Kernel:
    """The kernel with loads of what was stored before replaced by the stored values, and without stores that
    a later one overwrites before anything reads them. What one loop stores and a later one loads goes through
    scratch besides.

    Halide orders stages by the values that flow between them, and knows nothing of two that meet in memory.
    """
    facts = KernelFacts.of(kernel)
    local = set(facts.row_buffers)
    if all(len(facts.writes(b)) == 1 and (b in local or not facts.reads(b)) for b in facts.written):
        return kernel
    return _without_dead_stores(_with_rows(_with_values(kernel, local), local))


def with_plain_names(kernel: Kernel) -> Kernel:
    """The kernel with names that hide nothing of the library, and that generated programs can use."""
    return with_safe_names(kernel, dict.fromkeys(("arg", "row", "axis", "val"), _SAFE_NAMES))


def _with_values(kernel: Kernel, local: set[str]) -> Kernel:
    held: dict[_Element, str] = {}
    renamed: dict[str, str] = {}
    sections: list[Section] = []
    for section in kernel.sections:
        body: list[Statement] = []
        inside = dict(held)
        for stmt in section.body:
            stmt = with_names(stmt, stmt.targets, [renamed.get(a, a) for a in stmt.args])
            if isinstance(stmt, Load) and not stmt.args and (stmt.buffer, stmt.index) in inside:
                renamed[stmt.target] = inside[stmt.buffer, stmt.index]
                continue
            body.append(stmt)
            if not isinstance(stmt, Store) or stmt.buffer in local:
                continue
            for element in [e for e in inside if e[0] == stmt.buffer]:
                inside.pop(element)
                held.pop(element, None)
            if _is_plain(stmt):
                inside[stmt.buffer, stmt.index] = stmt.value
                if not section.looped:
                    held[stmt.buffer, stmt.index] = stmt.value
        sections.append(Section(section.looped, tuple(body)))
    return replace(kernel, sections=tuple(sections))


def _with_rows(kernel: Kernel, local: set[str]) -> Kernel:
    """Loads in a loop of what an earlier loop stored at the same index, from scratch instead."""
    offset = row_major(kernel.raxes)
    available: dict[_Element, tuple[int, Store]] = {}
    rows: dict[int, tuple[RowBuffer, int, Store]] = {}
    sections: list[Section] = []
    for number, section in enumerate(kernel.sections):
        body: list[Statement] = []
        for stmt in section.body:
            if not isinstance(stmt, (Load, Store)):
                body.append(stmt)
                continue
            key = stmt.buffer, stmt.index
            if isinstance(stmt, Load) and section.looped and not stmt.args and key in available:
                home, stored = available[key]
                size = product(axis_size(a) for a in kernel.raxes)
                fresh = RowBuffer(f"fwd{len(rows)}", stmt.dtype, size)
                row = rows.setdefault(id(stored), (fresh, home, stored))[0]
                stmt = replace(stmt, buffer=row.name, index=offset)
            elif isinstance(stmt, Store) and stmt.buffer not in local:
                for other in [k for k in available if k[0] == stmt.buffer]:
                    available.pop(other)
                if _is_plain(stmt) and section.looped and _differs(stmt.index, kernel.raxes):
                    available[key] = (number, stmt)
            body.append(stmt)
        sections.append(Section(section.looped, tuple(body)))
    if not rows:
        return kernel
    for row, number, stored in rows.values():
        body = []
        for stmt in sections[number].body:
            body.append(stmt)
            if stmt is stored:
                body.append(Store(row.name, offset, stored.value, stored.dtype))
        sections[number] = Section(True, tuple(body))
    row_buffers = (*kernel.row_buffers, *(row for row, _, _ in rows.values()))
    return replace(kernel, sections=tuple(sections), row_buffers=row_buffers)


def _is_plain(stmt: Store) -> bool:
    """Whether a store overwrites one known element."""
    return stmt.mode == "set" and not stmt.indirect and stmt.mask is None


def _differs(index: IndexLike, raxes: tuple[Index, ...]) -> bool:
    """Whether each step of the loops has an element of its own."""
    steps = [coefficient(index, axis_name(a)) for a in raxes]
    return all(s is not None and (s != 0 or axis_size(a) == 1) for s, a in zip(steps, raxes))


def _without_dead_stores(kernel: Kernel) -> Kernel:
    """Without plain stores to an element that a later store in a section of the same kind overwrites."""
    later: set[tuple[bool, str, IndexLike]] = set()
    sections: list[Section] = []
    for section in reversed(kernel.sections):
        body: list[Statement] = []
        for stmt in reversed(section.body):
            if isinstance(stmt, Load):
                later = {key for key in later if key[1] != stmt.buffer}
            elif isinstance(stmt, Store):
                key = (section.looped, stmt.buffer, stmt.index)
                if stmt.mode == "set" and not stmt.indirect and key in later:
                    continue
                if _is_plain(stmt):
                    later.add(key)
            body.append(stmt)
        sections.append(Section(section.looped, tuple(reversed(body))))
    return replace(kernel, sections=tuple(reversed(sections)))
