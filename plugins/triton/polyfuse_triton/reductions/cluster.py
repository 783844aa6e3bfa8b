"""Long rows that several programs reduce together, so that each keeps its chunk in registers, or finds its
part of the row in the last cache when it walks it again.

The programs of a row are started as one cluster: the device runs them side by side or not at all, so they may
wait for each other. Each publishes what it found of its chunk, waits until all have, and joins what
they found in the order of the chunks: every program of a row has the same result, and every call.
"""

from __future__ import annotations

from collections.abc import Sequence

from polyfuse.ir.types import DType
from polyfuse_triton.dtypes import literal, triton_type
from polyfuse_triton.loops.scope import Scope, Value
from polyfuse_triton.reductions.row_splits import SharedWords
from polyfuse_triton.tiling.plan import power_of_two


class Join:
    """What the chunks of a row exchange in one kernel."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._words = SharedWords()
        self._count = scope.plan.chunks
        self._size = power_of_two(self._count)

    def of(self, found: Sequence[str], neutral: Sequence[str]) -> list[str]:
        """Each number that this chunk found as a vector of those of all chunks; `neutral` fills its end."""
        scope, out = self._scope, self._scope.out
        addresses = [self._words.address() for _ in found]
        for address, name in zip(addresses, found, strict=True):
            out.line(f"publish({address} + program, programs, {name})")
        at = self._numbers()
        vectors = [scope.name() for _ in found]
        for vector, address, name, nothing in zip(vectors, addresses, found, neutral, strict=True):
            first = f"{address} + (program - rb)"
            text = f"wait_for({first} + {at}, {at} < {self._count}, programs, {name})"
            if self._count < self._size:
                text = f"tl.where({at} < {self._count}, {text}, {nothing})"
            out.line(f"{vector} = {text}")
        return vectors

    def points(self, dtype: DType) -> str:
        """How many points this chunk has, as a number of a type."""
        extent, part, constant = self._extent()
        if extent % part == 0:
            return literal(float(part), dtype)
        first = f"rb * {part}" if self._scope.plan.walkers else "r0"
        return f"tl.minimum({extent} - {first}, {constant}).to({triton_type(dtype)})"

    def points_of_all(self, dtype: DType) -> str:
        """How many points each chunk has, as a vector; none where there is no chunk."""
        extent, _, constant = self._extent()
        left = f"tl.maximum({extent} - {self._numbers()} * {constant}, 0)"
        return f"tl.minimum({left}, {constant}).to({triton_type(dtype)})"

    def _numbers(self) -> str:
        """The numbers of the chunks, and as many more as make a vector."""
        scope = self._scope
        key = ("chunks", self._size)
        if key not in scope.done:
            scope.define(f"tl.arange(0, {self._size})", Value("", DType.i32), key)
        return scope.done[key].text

    def _extent(self) -> tuple[int, int, str]:
        reduced = self._scope.plan.reduced
        assert reduced is not None and isinstance(reduced.extent, int)
        part = self._scope.plan.part
        return reduced.extent, part, reduced.constant if part == reduced.block else str(part)
