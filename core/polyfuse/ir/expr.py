"""Scalar expressions: what one point of an iteration space computes, as interned data."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from polyfuse.ir.ops import SCALAR_OPS
from polyfuse.ir.types import DType
from polyfuse.symbolic import IndexLike, substitute

_INTERN: dict[object, Expr] = {}


class Expr:
    """One scalar expression; equal expressions are the same object.

    Attributes:
        op: a name of `ops.SCALAR_OPS`, or one of
            ``const`` (attrs: value), ``index`` (attrs: an index expression; type i64),
            ``load`` (attrs: buffer name, index, number of indirect operands, masked flag; args: the indirect
            i64 values, which the index names ``@0``, ``@1``, ...; then, if masked, a bool and the value where
            it is false), ``cast``, ``bitcast`` (type: `dtype`), ``size`` (attrs: index over shape symbols;
            i64), ``rand`` (attrs: kind; args: seed, offset).
        args: operand expressions.
        dtype: type of the value. A load has its buffer's type, storage types included; its readers cast it.
        attrs: what is not an expression.
    """

    __slots__ = ("_hash", "args", "attrs", "dtype", "op", "weight")

    op: str
    args: tuple[Expr, ...]
    dtype: DType
    attrs: tuple[Any, ...]
    weight: int
    _hash: int

    def __new__(cls, op: str, args: tuple[Expr, ...], dtype: DType, attrs: tuple[Any, ...] = ()) -> Expr:
        # repr keeps 0.0 and -0.0, True and 1, and NaN payloads' text apart, which == does not
        key = (op, args, dtype, repr(attrs) if op == "const" else attrs)
        found = _INTERN.get(key)
        if found is not None:
            return found
        self = object.__new__(cls)
        self.op, self.args, self.dtype, self.attrs = op, args, dtype, attrs
        self._hash = hash(key)
        self.weight = 1 + sum(a.weight for a in args)
        return _INTERN.setdefault(key, self)

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return (Expr, (self.op, self.args, self.dtype, self.attrs))

    def __repr__(self) -> str:
        inside = [repr(a) for a in self.args] + [repr(a) for a in self.attrs]
        return f"{self.op}.{self.dtype}({', '.join(inside)})"


def const(value: bool | int | float, dtype: DType) -> Expr:
    """A constant of the given type; integers wrap to its width, f32 is rounded to its precision."""
    if dtype is DType.bool:
        return Expr("const", (), dtype, (bool(value),))
    if dtype.is_float:
        # rounded here, so that the constant in the text is the number that is computed with; one NaN object,
        # so that attributes which hold it compare equal
        number = math.nan if value != value else float(value)
        return Expr("const", (), dtype, (_round_f32(number) if dtype is DType.f32 else number,))
    width = dtype.itemsize * 8
    wrapped = int(value) & ((1 << width) - 1)
    if dtype.is_signed and wrapped >> (width - 1):
        wrapped -= 1 << width
    return Expr("const", (), dtype, (wrapped,))


def index_value(index: IndexLike, dtype: DType = DType.i64) -> Expr:
    """The value of an index expression as a scalar."""
    if isinstance(index, int):
        return const(index, dtype)
    value = Expr("index", (), DType.i64, (index,))
    return value if dtype is DType.i64 else cast(value, dtype)


def load(
    buffer: str,
    index: IndexLike,
    dtype: DType,
    indirect: tuple[Expr, ...] = (),
    mask: Expr | None = None,
    other: Expr | None = None,
) -> Expr:
    """An element of a buffer, at `index` counted in elements from its start. Where `mask` is false nothing is
    read."""
    extra = () if mask is None else (mask, other if other is not None else const(0, dtype))
    return Expr("load", indirect + extra, dtype, (buffer, index, len(indirect), mask is not None))


def cast(value: Expr, dtype: DType) -> Expr:
    """`value` converted to another type as torch converts it."""
    if value.dtype is dtype:
        return value
    if value.op == "const" and not dtype.is_storage:
        if dtype.is_float or not value.dtype.is_float or _finite(value.attrs[0]):
            return const(value.attrs[0], dtype)
    return Expr("cast", (value,), dtype)


def _finite(value: float) -> bool:
    return value == value and value not in (float("inf"), float("-inf"))


def _round_f32(value: float) -> float:
    if value != value:
        return value
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def bitcast(value: Expr, dtype: DType) -> Expr:
    """The bits of `value` read as another type of the same width; neither bool nor a storage type."""
    return value if value.dtype is dtype else Expr("bitcast", (value,), dtype)


def apply(op: str, *args: Expr) -> Expr:
    """A scalar operation; operand types must be equal (`where`'s condition apart) and in the operation's row.

    Raises:
        TypeError: operands do not fit the operation's row of the table.
    """
    row = SCALAR_OPS[op]
    operands = args[1:] if op == "where" else args
    dtype = operands[0].dtype
    if len(args) != row.arity or any(a.dtype is not dtype for a in operands) or dtype not in row.types:
        given = ", ".join(a.dtype.value for a in args)
        raise TypeError(f"{op} does not take ({given}); cast the operands first")
    return Expr(op, args, DType.bool if row.result == "bool" else dtype)


def walk(*roots: Expr) -> Iterator[Expr]:
    """Every expression under `roots`, operands first, each once."""
    seen: set[Expr] = set()
    stack: list[tuple[Expr, bool]] = [(r, False) for r in reversed(roots)]
    while stack:
        expr, ready = stack.pop()
        if ready:
            yield expr
        elif expr not in seen:
            seen.add(expr)
            stack.append((expr, True))
            stack.extend((a, False) for a in reversed(expr.args) if a not in seen)


def rewrite(root: Expr, change: Callable[[Expr], Expr], memo: dict[Expr, Expr] | None = None) -> Expr:
    """`root` rebuilt bottom-up, `change` applied to every expression after its operands are."""
    done = {} if memo is None else memo
    for expr in walk(root):
        if expr in done:
            continue
        args = tuple(done[a] for a in expr.args)
        done[expr] = change(expr if args == expr.args else Expr(expr.op, args, expr.dtype, expr.attrs))
    return done[root]


def reindex(root: Expr, replacement: Mapping[str, IndexLike], memo: dict[Expr, Expr] | None = None) -> Expr:
    """`root` with axis variables and symbols replaced in every index it holds."""

    def change(expr: Expr) -> Expr:
        if expr.op == "load":
            index = substitute(expr.attrs[1], replacement)
            if index is not expr.attrs[1]:
                return Expr("load", expr.args, expr.dtype, (expr.attrs[0], index, *expr.attrs[2:]))
        elif expr.op in ("index", "size"):
            index = substitute(expr.attrs[0], replacement)
            if index is not expr.attrs[0]:
                return index_value(index)
        return expr

    return rewrite(root, change, memo) if replacement else root


def loads(*roots: Expr) -> tuple[Expr, ...]:
    """The distinct loads under `roots`, operands first."""
    return tuple(e for e in walk(*roots) if e.op == "load")


def guard(root: Expr, mask: Expr) -> Expr:
    """`root` such that no load in it touches memory where `mask` is false (its value there is
    unspecified)."""
    loaded_by_mask = set(walk(mask))

    def change(expr: Expr) -> Expr:
        if expr.op != "load" or expr in loaded_by_mask:
            return expr
        buffer, index, count, masked = expr.attrs
        both = apply("bitwise_and", mask, expr.args[count]) if masked else mask
        other = expr.args[count + 1] if masked else const(0, expr.dtype)
        return load(buffer, index, expr.dtype, expr.args[:count], both, other)

    return rewrite(root, change)
