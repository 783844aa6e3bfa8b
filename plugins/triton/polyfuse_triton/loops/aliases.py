"""Which pairs of arguments the text of a kernel cannot take as one memory (`Kernel.aliases`).

A tile that holds all that is reduced loads every element once, before it stores anything there. A program
that walks through rows computes again what a later section needs, and would load what it has overwritten:
there the store waits for the last section that loads the input, where what it stores is known too. And where
several programs share a row, each of them does what stands outside the loops: one may load what another has
stored by then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from polyfuse.ir.kernel import Alias, Kernel, Section
from polyfuse.ir.statements import Load, Scan, Statement, Store
from polyfuse_triton.facts import Facts, analyse
from polyfuse_triton.reductions.passes import with_fewer_passes
from polyfuse_triton.tiling.plan import Plan

__all__ = ["refused_aliases", "with_late_stores"]


def refused_aliases(kernel: Kernel, plan: Plan) -> tuple[Alias, ...]:
    """The pairs of a kernel for which its text by a plan would be wrong."""
    if not kernel.aliases:
        return ()
    if plan.is_shared:
        return tuple(a for a in kernel.aliases if not _is_stored_in_loop(kernel, a.output))
    if plan.walks or plan.serial:
        kernel = with_late_stores(with_fewer_passes(kernel))
        facts = analyse(kernel)
        return tuple(a for a in kernel.aliases if _is_read_again(kernel, facts, a))
    return ()


def with_late_stores(kernel: Kernel) -> Kernel:
    """The kernel with stores over inputs that are loaded again in the last section that does so."""
    if not kernel.aliases:
        return kernel
    facts = analyse(kernel)
    moved: dict[int, tuple[int, Store]] = {}
    for alias in kernel.aliases:
        store, section = _store_of(kernel, alias.output)
        readers = [
            number
            for number, later in enumerate(kernel.sections)
            if number > section and later.looped and _reads(kernel, facts, later.body, alias.input)
        ]
        if readers and kernel.sections[section].looped and _is_known_later(kernel, facts, store):
            moved[id(store)] = readers[-1], store
    if not moved:
        return kernel
    sections = [
        Section(
            section.looped,
            (
                *(s for s in section.body if id(s) not in moved),
                *(s for at, s in moved.values() if at == number),
            ),
        )
        for number, section in enumerate(kernel.sections)
    ]
    return replace(kernel, sections=tuple(sections))


def _store_of(kernel: Kernel, buffer: str) -> tuple[Store, int]:
    """The one store to a buffer, and its section."""
    return next(
        (stmt, number)
        for number, section in enumerate(kernel.sections)
        for stmt in section.body
        if isinstance(stmt, Store) and stmt.buffer == buffer
    )


def _is_stored_in_loop(kernel: Kernel, buffer: str) -> bool:
    return kernel.sections[_store_of(kernel, buffer)[1]].looped


def _is_known_later(kernel: Kernel, facts: Facts, store: Store) -> bool:
    """Whether a later loop can compute what a store writes, and nothing in between reads that."""
    behind = list(_behind(kernel, facts, (store,)))
    loaded = [s.buffer for s in behind if isinstance(s, Load)]
    if any(isinstance(s, Scan) for s in behind) or any(buffer in facts.written for buffer in loaded):
        return False
    rows = {local.name for local in kernel.locals}
    kept = (buffer for buffer in loaded if buffer in rows)
    if any(row not in facts.locals_stored or len(facts.local_places[row]) != 1 for row in kept):
        return False
    return not any(a.buffer == store.buffer for a in facts.accesses if not a.is_store)


def _is_read_again(kernel: Kernel, facts: Facts, alias: Alias) -> bool:
    """Whether a program that walks loads an element of the input after it has stored it."""
    stored = False
    for section in kernel.sections:
        # a point of a loop loads an element once
        known: set[int] = set()
        for stmt in section.body:
            loads = set(map(id, _reads(kernel, facts, (stmt,), alias.input)))
            if stored and not loads <= known:
                return True
            known |= loads
            stored = stored or (isinstance(stmt, Store) and stmt.buffer == alias.output)
    return False


def _reads(kernel: Kernel, facts: Facts, roots: Iterable[Statement], buffer: str) -> list[Load]:
    """The loads of a buffer that some statements need where they stand."""
    return [s for s in _behind(kernel, facts, roots) if isinstance(s, Load) and s.buffer == buffer]


def _behind(kernel: Kernel, facts: Facts, roots: Iterable[Statement]) -> Iterator[Statement]:
    """Statements, and all that they and the rows that they read are computed from; but for results of
    reductions and what was computed outside of loops, which is kept.
    """
    rows = {local.name for local in kernel.locals}
    pending = list(roots)
    seen: set[int] = set()
    while pending:
        stmt = pending.pop()
        if id(stmt) in seen:
            continue
        seen.add(id(stmt))
        yield stmt
        names = list(stmt.args)
        if isinstance(stmt, Load) and stmt.buffer in rows:
            value = facts.locals_stored.get(stmt.buffer)
            names += [value] if value is not None else []
        made = (facts.defined[name] for name in names)
        pending += [s for s, k in made if kernel.sections[k].looped and s.op != "reduce"]
