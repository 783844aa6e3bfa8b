"""How many registers a point of a tile needs: an estimate that keeps tiles from being too large."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from polyfuse.ir.statements import Load, Statement
from polyfuse.kit import KernelFacts


class Facts(KernelFacts):
    """What tilings depend on."""

    @cached_property
    def registers(self) -> int:
        """An estimate of what one point of a tile needs."""
        return _registers_of_point(self.statements)


def _registers_of_point(statements: Sequence[Statement]) -> int:
    """The most 32-bit registers that one point's values take at a time, statements in their order.

    A load that several sections repeat is one value, as it is where a tile holds whole rows.
    """
    names: dict[str, Any] = {}
    last: dict[Any, int] = {}
    widths: dict[Any, int] = {}
    order: list[tuple[Any, ...]] = []
    for position, stmt in enumerate(statements):
        used = [names[name] for name in stmt.args]
        made = []
        for name in stmt.targets:
            key = _key(stmt, name)
            names[name] = key
            if key not in widths:
                widths[key] = _width(stmt)
                made.append(key)
        for key in (*used, *(names[t] for t in stmt.targets)):
            last[key] = position
        order.append(tuple(made))
    live: set[Any] = set()
    most = 0
    for position, made_here in enumerate(order):
        live.update(made_here)
        most = max(most, sum(widths[key] for key in live))
        live = {key for key in live if last[key] > position}
    return most


def _key(stmt: Statement, name: str) -> Any:
    if isinstance(stmt, Load) and not stmt.args:
        return ("load", stmt.buffer, repr(stmt.index))
    return name


def _width(stmt: Statement) -> int:
    """Registers of a value; constants and flags take none to speak of."""
    if stmt.op in ("const", "index", "reduce") or stmt.dtype.value == "bool":
        return 0
    return 2 if stmt.dtype.itemsize == 8 else 1
