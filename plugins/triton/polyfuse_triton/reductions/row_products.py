"""Matmuls of a matrix and a row (GEMV), which each program may normalise by itself first."""

from __future__ import annotations

from polyfuse.ir.kernel import Kernel
from polyfuse.ir.statements import Reduce
from polyfuse.kit import KernelFacts


def matrices_of_row(kernel: Kernel, facts: KernelFacts) -> int:
    """How many matrices a kernel multiplies by a row in its last reductions, without reading one before; 0:
    it is no such kernel.
    """
    *before, last = _matrices(kernel, facts) or [frozenset()]
    if not last or any(before):
        return 0
    rows = [a for a in facts.accesses if a.looped and not a.is_store and facts.share(a) <= 0.5]
    return len(last) if any(facts.raxes[-1] in a.strides for a in rows) else 0


def normalises_row(kernel: Kernel, facts: KernelFacts) -> bool:
    """Whether such a kernel reduces the row first."""
    return len(_matrices(kernel, facts)) > 1 and matrices_of_row(kernel, facts) > 0


def _matrices(kernel: Kernel, facts: KernelFacts) -> list[frozenset[str]]:
    """What each section with reductions reads at nearly every point."""
    found: list[frozenset[str]] = []
    for number, section in enumerate(kernel.sections):
        if any(isinstance(stmt, Reduce) for stmt in section.body):
            read = [a for a in facts.accesses if a.section == number and not a.is_store]
            found.append(frozenset(a.buffer for a in read if facts.share(a) > 0.5))
    return found
