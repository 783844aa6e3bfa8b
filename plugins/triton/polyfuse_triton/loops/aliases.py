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
from polyfuse.ir.statements import Load, Reduce, Scan, Statement, Store
from polyfuse.kit import KernelFacts
from polyfuse_triton.reductions.passes import with_fewer_passes
from polyfuse_triton.tiling.plan import Plan


def refused_aliases(kernel: Kernel, plan: Plan) -> tuple[Alias, ...]:
    """The pairs of a kernel for which its text by a plan would be wrong."""
    if not kernel.aliases:
        return ()
    if plan.is_shared:
        facts = KernelFacts.of(kernel)
        return tuple(a for a in kernel.aliases if not facts.writes(a.output)[0].looped)
    if plan.walks or plan.serial:
        kernel = with_late_stores(with_fewer_passes(kernel))
        facts = KernelFacts.of(kernel)
        return tuple(a for a in kernel.aliases if _is_read_again(facts, a))
    return ()


def with_late_stores(kernel: Kernel) -> Kernel:
    """The kernel with stores over inputs that are loaded again in the last section that does so."""
    if not kernel.aliases:
        return kernel
    facts = KernelFacts.of(kernel)
    moved: dict[int, tuple[int, Store]] = {}
    for alias in kernel.aliases:
        (store,) = facts.writes(alias.output)
        readers = [
            number
            for number, later in enumerate(kernel.sections)
            if number > store.section and later.looped and _reads(facts, later.body, alias.input)
        ]
        if readers and store.looped and isinstance(store.stmt, Store) and _is_known_later(facts, store.stmt):
            moved[id(store.stmt)] = readers[-1], store.stmt
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


def _is_known_later(facts: KernelFacts, store: Store) -> bool:
    """Whether a later loop can compute what a store writes, and nothing in between reads that."""
    for stmt in _behind(facts, (store,)):
        match stmt:
            case Scan():
                return False
            case Load() if stmt.buffer in facts.written and facts.forwarded(stmt) is None:
                return False
    return not facts.reads(store.buffer)


def _is_read_again(facts: KernelFacts, alias: Alias) -> bool:
    """Whether a program that walks loads an element of the input after it has stored it."""
    stored = False
    for section in facts.kernel.sections:
        # a point of a loop loads an element once
        known: set[int] = set()
        for stmt in section.body:
            loads = set(map(id, _reads(facts, (stmt,), alias.input)))
            if stored and not loads <= known:
                return True
            known |= loads
            stored = stored or (isinstance(stmt, Store) and stmt.buffer == alias.output)
    return False


def _reads(facts: KernelFacts, roots: Iterable[Statement], buffer: str) -> list[Load]:
    """The loads of a buffer that some statements need where they stand."""
    return [s for s in _behind(facts, roots) if isinstance(s, Load) and s.buffer == buffer]


def _behind(facts: KernelFacts, roots: Iterable[Statement]) -> Iterator[Statement]:
    """Statements, and all that they and the rows that they read are computed from; but for results of
    reductions and what was computed outside of loops, which stays in registers.
    """
    pending = list(roots)
    seen: set[int] = set()
    while pending:
        stmt = pending.pop()
        if id(stmt) in seen:
            continue
        seen.add(id(stmt))
        yield stmt
        names = list(stmt.args)
        if isinstance(stmt, Load) and stmt.buffer in facts.row_buffers:
            value = facts.row_value(stmt.buffer)
            names += [value] if value is not None else []
        made = (facts.definitions[name] for name in names)
        looped = (d.stmt for d in made if facts.kernel.sections[d.section].looped)
        pending += [s for s in looped if not isinstance(s, Reduce)]
