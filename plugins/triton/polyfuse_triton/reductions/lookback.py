"""Long scans of few rows: each chunk of a row is a program, which waits for the total of what comes before.

Every program publishes the total of its chunk, and then looks back at those of the chunks before it.
Chunks are grouped: what comes before a group is published by the last program of the group before, so that a
program waits for the totals of its own group and for one number. Which numbers are added, and in which order,
does not depend on which program is faster, so the result is the same at every call.

Programs take their numbers from a counter as they start, so that one only waits for those that run already.
"""

from __future__ import annotations

from collections.abc import Sequence

from polyfuse_triton.loops.scope import Scope
from polyfuse_triton.reductions.row_splits import SharedWords

_GROUP = 256
"""Chunks that are looked at together."""


class LookBack:
    """The look back of the scans of one kernel."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._words = SharedWords()

    def carry(self, names: Sequence[str], totals: Sequence[str], function: str) -> None:
        """Join a scanned chunk, held by `names`, with what comes before it."""
        scope, out = self._scope, self._scope.out
        own = [self._words.address() for _ in names]
        whole = [self._words.address() for _ in names]
        for address, total in zip(own, totals, strict=True):
            out.line(f"publish({address} + program, programs, {total})")
        out.line("if rb > 0:")
        with out.indented():
            window, before = [scope.name() for _ in names], [scope.name() for _ in names]
            start, at = scope.name(), scope.name()
            out.line(f"{start} = (rb - 1) // {_GROUP} * {_GROUP}")
            out.line(f"{at} = tl.arange(0, {_GROUP})")
            for name, address, total in zip(window, own, totals, strict=True):
                first = f"{address} + (program - rb + {start})"
                out.line(f"{name} = wait_for({first} + {at}, {at} < rb - {start}, programs, {total})")
            given = f"({', '.join(window)})" if len(window) > 1 else window[0]
            out.line(f"{', '.join(window)} = tl.associative_scan({given}, 0, {function})")
            for name, found in zip(before, window, strict=True):
                out.line(f"{name} = tl.sum(tl.where({at} == rb - {start} - 1, {found}, 0), 0)")
            out.line(f"if {start} > 0:")
            with out.indented():
                earlier = [scope.name() for _ in names]
                one = scope.name()
                out.line(f"{one} = tl.arange(0, 1)")
                for name, address, total in zip(earlier, whole, totals, strict=True):
                    first = f"{address} + (program - rb + {start} - 1)"
                    out.line(f"{name} = tl.sum(wait_for({first} + {one}, {one} == 0, programs, {total}), 0)")
                out.line(f"{', '.join(before)} = {function}({', '.join([*earlier, *before])})")
            out.line(f"{', '.join(totals)} = {function}({', '.join([*before, *totals])})")
            out.line(f"{', '.join(names)} = {function}({', '.join([*before, *names])})")
        out.line(f"if (rb + 1) % {_GROUP} == 0:")
        with out.indented():
            for address, total in zip(whole, totals, strict=True):
                out.line(f"publish({address} + program, programs, {total})")
