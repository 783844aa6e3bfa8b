"""Scans as Triton text: of a whole row at once, or of its chunks, joined with what came before."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from polyfuse.ir.ops import identity
from polyfuse.ir.statements import Scan
from polyfuse.ir.types import DType
from polyfuse_triton.dtypes import triton_type
from polyfuse_triton.loops.memory import MemoryScope
from polyfuse_triton.loops.scope import Value
from polyfuse_triton.reductions.lookback import LookBack

_FUNCTIONS: Mapping[str, str] = MappingProxyType(
    {
        "sum": "combine_sum",
        "prod": "combine_mul",
        "min": "scan_min",
        "max": "scan_max",
        "logsumexp": "combine_logsumexp",
    }
)
SCANS = frozenset(_FUNCTIONS)
"""Kinds that have a text."""


class ScanWriter:
    """One scan: `step` writes it where it stands, `begin` what stands before the loop."""

    def __init__(self, scope: MemoryScope, stmt: Scan, look_back: LookBack | None = None) -> None:
        self._scope = scope
        self._look_back = look_back
        self._stmt = stmt
        self._kind = stmt.kind
        self._carried = [scope.name() for _ in stmt.targets] if scope.plan.walks else []

    def step(self) -> tuple[Value, ...]:
        """Write the scan of a tile, and give its results at each point."""
        scope = self._scope
        full = frozenset(d.name for d in scope.plan.dims)
        texts = [self._operand(scope.value(name), full) for name in self._stmt.args]
        axis, function = len(scope.plan.dims) - 1, _FUNCTIONS[self._kind]
        names = [scope.name() for _ in self._stmt.targets]
        given = f"({', '.join(texts)})" if len(texts) > 1 else texts[0]
        scope.out.line(f"{', '.join(names)} = tl.associative_scan({given}, {axis}, {function})")
        if self._carried:
            names = self._carry(names, function, axis)
        if self._look_back is not None:
            totals = [scope.name() for _ in names]
            self._last_column(totals, names, axis)
            self._look_back.carry(names, totals, function)
        return tuple(self._held(Value(n, t, full)) for n, t in zip(names, self._results(), strict=True))

    def begin(self) -> list[str]:
        """The lines that stand before the loop."""
        shape = self._scope.shape(d.name for d in self._scope.plan.tiles)
        shape = shape if self._scope.plan.tiles else "()"
        return [
            f"{name} = tl.full({shape}, {value}, {triton_type(self._wide(t))})"
            for name, value, t in zip(self._carried, self._starts(), self._results(), strict=True)
        ]

    def _operand(self, value: Value, full: frozenset[str]) -> str:
        scope = self._scope
        text = scope.typed(value)
        if self._wide(value.dtype) is not value.dtype:
            text = f"{text}.to({triton_type(self._wide(value.dtype))})"
        return scope.spread(text, value.dims, full)

    def _carry(self, names: list[str], function: str, axis: int) -> list[str]:
        """Join a scanned tile with what came before, and keep its last column for the next."""
        scope = self._scope
        fresh = [scope.name() for _ in names]
        scope.out.line(f"{', '.join(fresh)} = {function}({', '.join([*self._carried, *names])})")
        self._last_column(self._carried, fresh, axis)
        return fresh

    def _last_column(self, into: list[str], names: list[str], axis: int) -> None:
        """Name what a scanned tile ends with."""
        reduced = self._scope.plan.reduced
        assert reduced is not None
        keep = ", keep_dims=True" if axis else ""
        for last, name in zip(into, names, strict=True):
            column = f"tl.where(rl == {reduced.constant} - 1, {name}, 0)"
            self._scope.out.line(f"{last} = tl.sum({column}, {axis}{keep})")

    def _results(self) -> tuple[DType, ...]:
        types = (self._stmt.dtype, DType.i64)
        return types[: len(self._stmt.targets)]

    @staticmethod
    def _wide(dtype: DType) -> DType:
        """The type in which a scan is done: short numbers as 32 bits."""
        return DType.i32 if dtype is DType.bool or (dtype.is_integer and dtype.itemsize < 4) else dtype

    def _held(self, value: Value) -> Value:
        wide = self._wide(value.dtype)
        if wide is value.dtype:
            return value
        if value.dtype is DType.bool:
            return self._scope.define(f"{value.text} != 0", value)
        return self._scope.define(f"{value.text}.to({triton_type(value.dtype)})", value)

    def _starts(self) -> list[str]:
        if self._kind == "logsumexp":
            return ['float("-inf")']
        first = identity(self._kind, self._stmt.dtype)
        text = f'float("{first}")' if isinstance(first, float) else str(int(first))
        return [text, "0"][: len(self._carried)]
