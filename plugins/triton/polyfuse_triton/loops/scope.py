"""A scope of a kernel's text: the values that are known in it, and the statements that define new ones."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, assert_never

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.rounding import QUICK, coarse_values, stores_halves
from polyfuse.ir.statements import (
    Cast,
    Compute,
    Constant,
    IndexValue,
    Load,
    Random,
    Reduce,
    Scan,
    Statement,
    Store,
)
from polyfuse.ir.statements import key as statement_key
from polyfuse.ir.types import DType
from polyfuse.kit import KernelFacts, Writer, shared_products
from polyfuse.kit.spans import Span, fits_i32, span_of
from polyfuse.symbolic import IndexLike
from polyfuse_triton.dtypes import inline_literal, literal, triton_type
from polyfuse_triton.loops.coordinates import Position
from polyfuse_triton.loops.indexing import Indexer, Variable
from polyfuse_triton.loops.ops import cast_text, is_infix, operation_text
from polyfuse_triton.tiling.plan import Plan

_NARROWED_TYPES = (DType.f32, DType.f64, DType.i32, DType.i64)

_SMALL, _LARGE = 2.0**-100, 2.0**100


@dataclass(frozen=True)
class Value:
    """A value in the text.

    Attributes:
        text: a name, or a plain number.
        dtype: its type in the IR.
        dims: tile dimensions it varies along; a scalar has none.
        narrow: whether it is an i64 that is held in 32 bits.
        constant: the number it is, where it is one.
        span: bounds, where they are known.
    """

    text: str
    dtype: DType
    dims: frozenset[str] = frozenset()
    narrow: bool = False
    constant: bool | int | float | None = None
    span: Span | None = None


class Scope:
    """Values by name, and what has been computed already by what it is.

    A scope is entered for the body of a loop and left behind it; what was defined inside is forgotten then.
    """

    def __init__(
        self,
        kernel: Kernel,
        facts: KernelFacts,
        plan: Plan,
        coordinates: Position,
        out: Writer,
        arguments: dict[str, str],
        prefix: str = "v",
    ) -> None:
        self.kernel = kernel
        self.facts = facts
        self.plan = plan
        self.coordinates = coordinates
        self.out = out
        self.arguments = arguments
        self.values: dict[str, Value] = {}
        self.done: dict[Any, Value] = {}
        self._prefix = prefix
        self._count = 0
        self._is_fast = kernel.numerics == "fast"
        self.halves = self._is_fast and stores_halves(facts.kernel)
        self._coarse = coarse_values(facts.kernel)
        # where the compiler contracts, these would be different numbers in different statements
        self._rounded = shared_products(facts) if self._is_fast else frozenset[str]()

    # --- names -----------------------------------------------------------------------------------------

    def name(self) -> str:
        """A new name."""
        self._count += 1
        return f"{self._prefix}{self._count - 1}"

    def define(self, text: str, value: Value, key: Any = None) -> Value:
        """Give a computed text a name. `key` says what it is, so that it is not computed twice."""
        found = replace(value, text=self.name())
        self.out.line(f"{found.text} = {text}")
        if key is not None:
            self.done[key] = found
        return found

    def typed(self, value: Value) -> str:
        """A value's text with the type that the IR gives it."""
        if value.constant is not None:
            key = ("const", value.dtype, repr(value.constant))
            found = self.done.get(key)
            if found is None:
                found = self.define(literal(value.constant, value.dtype), replace(value, constant=None), key)
            return found.text
        if value.narrow:
            return f"tl.cast({value.text}, tl.int64)"
        return value.text

    def shape(self, dims: Iterable[str]) -> str:
        """The shape of a tensor that varies along some tile dimensions."""
        chosen = set(dims)
        return "[" + ", ".join(d.constant if d.name in chosen else "1" for d in self.plan.dims) + "]"

    def spread(self, text: str, had: frozenset[str], wanted: frozenset[str]) -> str:
        """A text broadcast from some tile dimensions to more."""
        return text if wanted <= had else f"tl.broadcast_to({text}, {self.shape(had | wanted)})"

    # --- statements ------------------------------------------------------------------------------------

    def statement(self, stmt: Statement) -> Value:
        """Compute a statement that gives one value at each point by itself."""
        operands = tuple(self.value(name) for name in stmt.args)
        # a constant by its text: zeros of either sign are equal as numbers
        given = tuple((v.text, v.dtype, repr(v.constant)) for v in operands)
        key = (statement_key(stmt), given)
        if isinstance(stmt, Constant):
            return Value("", stmt.dtype, constant=stmt.value, span=span_of(stmt, ()))
        found = self.done.get(key)
        if found is None:
            found = self.done[key] = self._compute(stmt, operands)
        return found

    def value(self, name: str) -> Value:
        """A value by its name in the IR; what a section before computed at each point of its loop is computed
        again.

        Raises:
            UnsupportedError: it is of another loop.
        """
        found = self.values.get(name)
        if found is None:
            stmt = self.facts.definition(name)
            if stmt.op in ("scan", "reduce"):
                raise UnsupportedError(
                    f"kernel {self.kernel.name} reads {name} of another loop", "keep it in a local"
                )
            found = self.values[name] = self.evaluate(stmt)
        return found

    def evaluate(self, stmt: Statement) -> Value:
        """Compute a statement; accesses of memory are a matter of the class derived from this one."""
        return self.statement(stmt)

    def _compute(self, stmt: Statement, operands: Sequence[Value]) -> Value:
        dims = frozenset[str]().union(*(v.dims for v in operands))
        span = span_of(stmt, [v.span for v in operands])
        plain = Value("", stmt.dtype, dims, span=span)
        match stmt:
            case IndexValue():
                return self._index(stmt.index, span)
            case Cast(bitwise=True):
                text = f"{self.typed(operands[0])}.to({triton_type(stmt.dtype)}, bitcast=True)"
                return self.define(text, plain)
            case Cast():
                return self._cast(stmt, operands[0], plain)
            case Random():
                texts = ", ".join(self.typed(v) for v in operands)
                return self.define(f"random_{stmt.kind}({texts})", plain)
            case Compute():
                return self._operation(stmt, operands, plain)
            case Constant() | Load() | Store() | Reduce() | Scan():
                raise TypeError(f"{stmt.op} is no statement that gives one value by itself")
            case _:
                assert_never(stmt)

    def _index(self, index: IndexLike, span: Span | None) -> Value:
        if isinstance(index, int):
            return Value("", DType.i64, constant=index, span=span)
        text, dims, wide = self.indexer().value(index)
        return self.define(text, Value("", DType.i64, dims, narrow=not wide, span=span))

    def _cast(self, stmt: Statement, operand: Value, plain: Value) -> Value:
        if operand.dtype is stmt.dtype:
            return operand
        if operand.narrow and stmt.dtype is not DType.i64:
            # 32 bits of the same number: whatever it becomes is the same, and one conversion is saved
            source = DType.i32
            if stmt.dtype is DType.i32:
                return replace(operand, dtype=DType.i32, narrow=False)
            return self.define(cast_text(operand.text, source, stmt.dtype), plain)
        if stmt.dtype is DType.i64 and fits_i32(plain.span) and operand.dtype in _NARROWED_TYPES:
            text = self.typed(operand)
            if operand.dtype is not DType.i32:
                return self.define(cast_text(text, operand.dtype, DType.i32), replace(plain, narrow=True))
            return replace(operand, dtype=DType.i64, narrow=True)
        return self.define(cast_text(self.typed(operand), operand.dtype, stmt.dtype), plain)

    def _shorter(self, stmt: Compute, operands: Sequence[Value], plain: Value) -> Value | None:
        """A quotient or an exponential in fewer instructions; None where there is no such way."""
        if plain.dtype is not DType.f32 or not operands[0].dims:
            return None
        if stmt.op in QUICK and self.halves:
            return self.define(f"quick_{stmt.op}({self.typed(operands[0])})", plain)
        if stmt.op == "erf" and stmt.target in self._coarse:
            return self.define(f"quick_erf({self.typed(operands[0])})", plain)
        if stmt.op != "div" or not self._is_fast:
            return None
        numerator, divisor = operands
        if divisor.constant is not None:
            text = quotient_by(self.typed(numerator), float(divisor.constant))
            return None if text is None else self.define(text, plain)
        if not divisor.dims < plain.dims:
            return None
        parts = tuple(self.done.get(("inverse", divisor.text, k)) for k in range(3))
        if None in parts:
            parts = tuple(replace(divisor, text=self.name()) for _ in range(3))
            self.out.line(f"{', '.join(p.text for p in parts if p)} = inverse_of({divisor.text})")
            self.done.update({("inverse", divisor.text, k): p for k, p in enumerate(parts) if p})
        given = ", ".join(part.text for part in parts if part is not None)
        return self.define(f"divide_scaled({numerator.text}, {given})", plain)

    def _operation(self, stmt: Compute, operands: Sequence[Value], plain: Value) -> Value:
        shorter = self._shorter(stmt, operands, plain)
        if shorter is not None:
            return shorter
        if stmt.target in self._rounded:
            return self.define(f"libdevice.mul_rn({', '.join(map(self.typed, operands))})", plain)
        given = operands[1:] if stmt.op == "where" else operands
        dtype = given[-1].dtype
        narrow = dtype is DType.i64 and all(v.narrow or _small(v) for v in given) and self._any_narrow(given)
        if narrow and stmt.dtype is DType.i64:
            narrow = fits_i32(plain.span)
        texts = [self.typed(operands[0])] if stmt.op == "where" else []
        constants = sum(v.constant is not None for v in given)
        for value in given:
            inline = None
            if value.constant is not None and constants < len(given):
                inline = inline_literal(value.constant, dtype)
            if inline is not None and is_infix(stmt.op, dtype):
                texts.append(inline)
            elif inline is not None and narrow:
                texts.append(f"tl.full((), {inline}, tl.int32)")
            elif narrow:
                texts.append(value.text)
            else:
                texts.append(self.typed(value))
        if narrow and constants == len(given):
            texts = [self.typed(v) for v in operands]
            narrow = False
        text = operation_text(stmt.op, dtype, texts)
        return self.define(text, replace(plain, narrow=narrow and stmt.dtype is DType.i64))

    @staticmethod
    def _any_narrow(values: Sequence[Value]) -> bool:
        return any(v.narrow for v in values)

    # --- coordinates ----------------------------------------------------------------------------------------

    def indexer(self, indirect: Sequence[Value] = ()) -> Indexer:
        """Text of indices here; `@k` stands for the k-th indirect value."""

        def find(name: str) -> Variable:
            if name.startswith("@"):
                value = indirect[int(name[1:])]
                text = self.typed(value) if value.constant is not None else value.text
                return Variable(text, value.dims, wide=not value.narrow)
            return self.coordinates.variable(name)

        return Indexer(find, self.arguments)


def _small(value: Value) -> bool:
    return value.constant is not None and abs(int(value.constant)) < 1 << 31


def quotient_by(text: str, divisor: float) -> str | None:
    """An f32 divided by a constant, as a product with its inverse, corrected by what is left over; None where
    the constant is near the ends of the range.
    """
    if not _SMALL < abs(divisor) < _LARGE:
        return None
    inverse = struct.unpack("f", struct.pack("f", 1.0 / divisor))[0]
    return f"divide_by({text}, {divisor!r}, {inverse!r})"
