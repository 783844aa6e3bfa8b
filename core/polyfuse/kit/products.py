"""Products that must be one number wherever a kernel uses them.

A compiler that contracts `a * b - c` into one instruction leaves out the product's rounding there, and keeps
it where the product is stored: `p - round(p)` is then the rounding of `p`, where it should be zero.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable

from polyfuse.ir.statements import Compute, Constant, Load, Reduce, Scan, Store, key
from polyfuse.kit.facts import KernelFacts


def shared_products(facts: KernelFacts) -> frozenset[str]:
    """Names of floating-point products that a kernel uses more than once, in whatever section and under
    whatever name; a row buffer is what is stored there. Left out are products by a power of two: they are
    exact.
    """
    known: dict[Hashable, int] = {}  # what is computed, by number: equal values have equal numbers
    numbers: dict[str, tuple[int, int]] = {}
    uses: Counter[tuple[int, int]] = Counter()
    for stmt in facts.statements:
        stored = facts.forwarded(stmt) if isinstance(stmt, Load) else None
        if stored in numbers:
            numbers[stmt.targets[0]] = numbers[stored]
            continue
        given = tuple(numbers[name] for name in stmt.args)
        what: Hashable = (key(stmt), given)
        if isinstance(stmt, Store | Reduce | Scan):
            what = (what, len(known))  # each of them is a use of its own
        if what not in known:
            known[what] = len(known)
            uses.update(given)
        numbers |= {name: (known[what], k) for k, name in enumerate(stmt.targets)}
    return frozenset(
        stmt.target
        for stmt in facts.statements
        if isinstance(stmt, Compute)
        and (stmt.op == "mul" and stmt.dtype.is_float and uses[numbers[stmt.target]] > 1)
        and not any(_is_power_of_two(facts, name) for name in stmt.args)
    )


def _is_power_of_two(facts: KernelFacts, name: str) -> bool:
    stmt = facts.definition(name)
    return isinstance(stmt, Constant) and abs(math.frexp(float(stmt.value))[0]) == 0.5
