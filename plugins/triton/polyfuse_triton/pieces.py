"""Rows whose pieces are programs of their own: which kernels allow it, and what such programs share."""

from __future__ import annotations

from polyfuse.ir.kernel import Kernel
from polyfuse_triton.facts import Facts
from polyfuse_triton.meta import WORKSPACE

__all__ = ["HEAD", "WORDS", "can_look_back", "ticket", "words"]

HEAD = 2
"""Shared words in front of those that programs tell: the counter, and one that keeps what follows aligned."""
WORDS = 2
"""Words that a number takes at most."""


def can_look_back(kernel: Kernel, facts: Facts) -> bool:
    """Whether pieces of a kernel's rows may be programs of their own: nothing but scans looks beyond one
    point, and nothing is written that another program reads.
    """
    ops = {stmt.op for section in kernel.sections for stmt in section.body}
    if "scan" not in ops or "reduce" in ops:
        return False
    for buffer in facts.written:
        here = [a for a in facts.accesses if a.buffer == buffer]
        if not all(a.looped for a in here) and any(a.mode != "set" for a in here):
            # every piece of a row would do it
            return False
        alone = len({a.index for a in here}) == 1 and not any(a.indirect for a in here)
        if not alone and not all(a.is_store for a in here):
            return False
    return True


def words(kernel: Kernel, programs: int | str) -> int | str:
    """Words of memory that a kernel's programs share: each tells its own total, and that up to its end."""
    values = sum(len(stmt.targets) for s in kernel.sections for stmt in s.body if stmt.op == "scan")
    count = 2 * WORDS * values
    return HEAD + count * programs if isinstance(programs, int) else f"{HEAD} + {count} * ({programs})"


def ticket() -> str:
    """The number of a program, in the order in which they start."""
    return f'tl.atomic_add({WORKSPACE}, 1, sem="relaxed").to(tl.int32)'
