"""Matmuls as ordinary loops: each pair multiplied, then added up.

That is what a matrix with one row or one column needs, where memory decides and no value is used twice, and
it serves types that the GPU has no matrix instruction for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from polyfuse.ir.kernel import Kernel, Section
from polyfuse.ir.ops import CONTRACTIONS
from polyfuse.ir.statements import Cast, Compute, Reduce, Statement


def as_sums(kernel: Kernel) -> Kernel:
    """The kernel with every matmul as a multiplication and a sum; itself where it has none."""
    if not any(_is_contraction(stmt) for section in kernel.sections for stmt in section.body):
        return kernel
    types = {t: stmt.dtype for section in kernel.sections for stmt in section.body for t in stmt.targets}

    def rewritten(stmt: Statement) -> Iterator[Statement]:
        if not _is_contraction(stmt):
            yield stmt
            return
        result, operands = stmt.targets[0], []
        for side, name in zip(("left", "right"), stmt.args, strict=True):
            if types[name] is not stmt.dtype:
                wide = f"{result}_{side}"
                yield Cast(wide, name, stmt.dtype)
                name = wide
            operands.append(name)
        yield Compute(f"{result}_term", "mul", tuple(operands), stmt.dtype)
        yield Reduce((result,), "sum", (f"{result}_term",), stmt.dtype)

    sections = tuple(
        Section(section.looped, tuple(new for stmt in section.body for new in rewritten(stmt)))
        for section in kernel.sections
    )
    return replace(kernel, sections=sections)


def _is_contraction(stmt: Statement) -> bool:
    return isinstance(stmt, Reduce) and stmt.kind in CONTRACTIONS
