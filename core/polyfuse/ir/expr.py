"""Scalar expressions: what one point of an iteration space computes, as interned data."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from polyfuse.base.intern import InternTable
from polyfuse.ir.ops import SCALAR_OPS
from polyfuse.ir.types import DType
from polyfuse.symbolic import IndexLike, substitute

_INTERN: InternTable[Expr] = InternTable()


class Access(NamedTuple):
    """The element of a buffer that a load reads or a store writes.

    Attributes:
        buffer: by name.
        index: in elements from the buffer's start; ``@0``, ``@1``, ... in it are the indirect operands.
        indirect: how many indirect operands (i64 values) there are.
        masked: whether there is a mask: nothing is accessed where it is false.
    """

    buffer: str
    index: IndexLike  # type: ignore[assignment]  # hides tuple.index, which nobody calls
    indirect: int = 0
    masked: bool = False


class Expr:
    """One scalar expression; equal expressions are the same object.

    Attributes:
        op: a name of `ops.SCALAR_OPS`, or one of
            ``const`` (payload: `value`), ``index`` (payload: `index`; type i64), ``load`` (payload: `access`;
            args: the indirect values, then, if masked, a bool and the value where it is false), ``cast``,
            ``bitcast`` (type: `dtype`), ``size`` (payload: `index`, over shape symbols; i64), ``rand``
            (payload: `kind`; args: seed, offset).
        args: operand expressions.
        dtype: type of the value. A load has its buffer's type, storage types included; its readers cast it.
        payload: what is not an expression, None for most; read it by the names below.
    """

    __slots__ = ("__weakref__", "_loads", "args", "dtype", "op", "payload", "weight")

    op: str
    args: tuple[Expr, ...]
    dtype: DType
    payload: Any
    weight: int
    _loads: tuple[Expr, ...] | None

    def __new__(cls, op: str, args: tuple[Expr, ...], dtype: DType, payload: Any = None) -> Expr:
        # repr keeps 0.0 and -0.0, True and 1, and NaN payloads' text apart, which == does not
        key = (op, args, dtype, repr(payload) if op == "const" else payload)
        found = _INTERN.find(key)
        if found is not None:
            return found
        self = object.__new__(cls)
        self.op, self.args, self.dtype, self.payload = op, args, dtype, payload
        self._loads = None
        self.weight = 1 + sum(a.weight for a in args)
        return _INTERN.add(key, self)

    def __reduce__(self) -> tuple[Any, ...]:
        return (Expr, (self.op, self.args, self.dtype, self.payload))

    def __repr__(self) -> str:
        inside = [repr(a) for a in self.args] + ([] if self.payload is None else [repr(self.payload)])
        return f"{self.op}.{self.dtype}({', '.join(inside)})"

    @property
    def value(self) -> Any:
        """The number or truth value of a ``const``."""
        return self.payload

    @property
    def access(self) -> Access:
        """What a ``load`` reads."""
        assert isinstance(self.payload, Access), f"{self.op} reads no buffer"
        return self.payload

    @property
    def buffer(self) -> str:
        """The buffer that a ``load`` reads."""
        return self.access.buffer

    @property
    def index(self) -> Any:
        """The index of a ``load`` into its buffer; what an ``index`` or ``size`` is the value of."""
        return self.payload.index if self.op == "load" else self.payload

    @property
    def indirect(self) -> tuple[Expr, ...]:
        """The operands that stand for ``@0``, ``@1``, ... in the index of a ``load``."""
        return self.args[: self.access.indirect]

    @property
    def mask(self) -> Expr | None:
        """Where a ``load`` reads; None: everywhere."""
        return self.args[self.access.indirect] if self.access.masked else None

    @property
    def other(self) -> Expr | None:
        """The value of a masked ``load`` where it does not read."""
        return self.args[self.access.indirect + 1] if self.access.masked else None

    @property
    def kind(self) -> str:
        """The kind of random number of a ``rand``."""
        return str(self.payload)


def const(value: bool | int | float, dtype: DType) -> Expr:
    """A constant of the given type; integers wrap to its width, f32 is rounded to its precision."""
    if dtype is DType.bool:
        return Expr("const", (), dtype, bool(value))
    if dtype.is_float:
        # rounded here, so that the constant in the text is the number that is computed with; one NaN object,
        # so that attributes which hold it compare equal
        number = math.nan if value != value else float(value)
        return Expr("const", (), dtype, _round_f32(number) if dtype is DType.f32 else number)
    width = dtype.itemsize * 8
    wrapped = int(value) & ((1 << width) - 1)
    if dtype.is_signed and wrapped >> (width - 1):
        wrapped -= 1 << width
    return Expr("const", (), dtype, wrapped)


def index_value(index: IndexLike, dtype: DType = DType.i64) -> Expr:
    """The value of an index expression as a scalar."""
    if isinstance(index, int):
        return const(index, dtype)
    value = Expr("index", (), DType.i64, index)
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
    return Expr("load", indirect + extra, dtype, Access(buffer, index, len(indirect), mask is not None))


def cast(value: Expr, dtype: DType) -> Expr:
    """`value` converted to another type as torch converts it."""
    if value.dtype is dtype:
        return value
    if value.op == "const" and not dtype.is_storage:
        if dtype.is_float or not value.dtype.is_float or _finite(value.value):
            return const(value.value, dtype)
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
        done[expr] = change(expr if args == expr.args else Expr(expr.op, args, expr.dtype, expr.payload))
    return done[root]


def reindex(root: Expr, replacement: Mapping[str, IndexLike]) -> Expr:
    """`root` with axis variables and symbols replaced in every index it holds."""

    def change(expr: Expr) -> Expr:
        if expr.op == "load":
            index = substitute(expr.index, replacement)
            if index is not expr.index:
                return moved(expr, index)
        elif expr.op in ("index", "size"):
            index = substitute(expr.index, replacement)
            if index is not expr.index:
                return index_value(index)
        return expr

    return rewrite(root, change) if replacement else root


def moved(read: Expr, index: IndexLike, buffer: str | None = None) -> Expr:
    """A load at another index, and of another buffer where one is named."""
    access = read.access._replace(index=index, buffer=buffer or read.buffer)
    return Expr("load", read.args, read.dtype, access)


def loads(*roots: Expr) -> tuple[Expr, ...]:
    """The distinct loads under `roots`, operands first."""
    if len(roots) != 1:
        return tuple(dict.fromkeys(read for root in roots for read in loads(root)))
    root = roots[0]
    # cached, as every pass over a graph asks; a single load does not keep itself alive
    if root.op == "load" and not root.args:
        return roots
    found = root._loads
    if found is None:
        found = tuple(e for e in walk(*root.args) if e.op == "load")
        root._loads = found
    return (*found, root) if root.op == "load" else found


def guard(root: Expr, mask: Expr) -> Expr:
    """`root` such that no load in it touches memory where `mask` is false (its value there is
    unspecified)."""
    loaded_by_mask = set(walk(mask))

    def change(expr: Expr) -> Expr:
        if expr.op != "load" or expr in loaded_by_mask:
            return expr
        both = mask if expr.mask is None else apply("bitwise_and", mask, expr.mask)
        return load(expr.buffer, expr.index, expr.dtype, expr.indirect, both, expr.other)

    return rewrite(root, change)
