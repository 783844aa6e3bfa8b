"""What is known of a kernel before any text is written: the kit's facts, and prices."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from polyfuse.ir.rounding import coarse_values
from polyfuse.ir.statements import Compute, Load, Statement, is_check
from polyfuse.kit import KernelFacts
from polyfuse_cpp.loops.ops import cost_of
from polyfuse_cpp.prelude import functions_apart

_MOST_COPIES = 24
"""Calls of functions that are inlined. A copy takes 10 (`exp`) to 50 ms (`sin`) to compile, and gains nothing
where there are so many: 300 of `exp`, `log`, `sin` and `tanh` took 27 to 31 us either way."""


class Facts(KernelFacts):
    """The kit's facts, and what statements cost in vector additions.

    Checks of indices are free, so that a kernel is vectorised alike with and without them.
    """

    @cached_property
    def checking(self) -> frozenset[int]:
        """The statements (by identity) that check indices, or that only checks need."""
        needed: set[str] = set()
        found: set[int] = set()
        for stmt in reversed(self.statements):
            if is_check(stmt) or (stmt.targets and needed.isdisjoint(stmt.targets)):
                found.add(id(stmt))
            else:
                needed.update(stmt.args)
        return frozenset(found)

    def cost_of(self, stmts: Iterable[Statement]) -> int:
        """Rough price of some statements."""
        return sum(cost_of(s.op) for s in stmts if id(s) not in self.checking)

    @cached_property
    def coarse(self) -> frozenset[str]:
        """Values that need be no more exact than bf16 (`polyfuse.ir.rounding`)."""
        return coarse_values(self.kernel)

    @cached_property
    def loaded(self) -> frozenset[str]:
        """Values that depend on data: on what is loaded."""
        found: set[str] = set()
        for stmt in self.statements:
            if isinstance(stmt, Load) or not found.isdisjoint(stmt.args):
                found.update(stmt.targets)
        return frozenset(found)

    @cached_property
    def apart(self) -> bool:
        """Whether functions of f32 are called so often that to compile copies takes longest."""
        known = functions_apart()
        return sum(s.op in known for s in self.statements if isinstance(s, Compute)) > _MOST_COPIES

    @cached_property
    def cost(self) -> int:
        """Rough price of one innermost point."""
        return max(1, self.cost_of(self.statements))

    def bytes_of(self, buffer: str) -> int:
        """What an argument takes in memory; 0 where that depends on sizes."""
        extent = next((a.numel for a in self.kernel.args if a.name == buffer), 0)
        return extent * self.memory[buffer].itemsize if isinstance(extent, int) else 0
