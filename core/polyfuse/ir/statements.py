"""The statements of a kernel: one frozen dataclass each, with named fields.

Whatever reads statements matches on these classes. What all have in common: `op`, its word in IR text;
`targets`, the names it defines; `args`, the names it uses, in order; `dtype`, the type of the first target or
of the value stored; `payload`, what is neither (as `Expr` has it); `key`, all of it but names.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, assert_never

from polyfuse.ir.expr import Access, Expr
from polyfuse.ir.ops import CHECK_MODE
from polyfuse.ir.types import DType
from polyfuse.symbolic import Index, IndexLike


@dataclass(frozen=True)
class _Single:
    """A statement that defines one value."""

    target: str

    @property
    def targets(self) -> tuple[str, ...]:
        """The names that it defines."""
        return (self.target,)


@dataclass(frozen=True)
class Load(_Single):
    """``target = buffer[index]``, where `mask` if there is one, and `other` elsewhere.

    Attributes:
        buffer: an argument or a row buffer of the kernel.
        index: in elements; ``@0``, ``@1``, ... in it are the values of `indirect`.
        mask: where it is false nothing is read.
    """

    op: ClassVar[str] = "load"
    buffer: str
    index: IndexLike
    dtype: DType
    indirect: tuple[str, ...] = ()
    mask: str | None = None
    other: str | None = None

    @property
    def args(self) -> tuple[str, ...]:
        """The indirect values, then mask and other."""
        if self.mask is None or self.other is None:
            return self.indirect
        return (*self.indirect, self.mask, self.other)

    @property
    def payload(self) -> Access:
        """What is read."""
        return Access(self.buffer, self.index, len(self.indirect), self.mask is not None)


@dataclass(frozen=True)
class Store:
    """``buffer[index] = value``, where `mask` if there is one, combined as `mode` says.

    Attributes:
        mode: of `ops.STORE_MODES`, where all but ``set`` are atomic, of `ops.GROUP_MODES`, or
            `ops.CHECK_MODE`.
    """

    op: ClassVar[str] = "store"
    targets: ClassVar[tuple[str, ...]] = ()
    buffer: str
    index: IndexLike
    value: str
    dtype: DType
    mode: str = "set"
    indirect: tuple[str, ...] = ()
    mask: str | None = None

    @property
    def args(self) -> tuple[str, ...]:
        """The value, the indirect values, then the mask."""
        return (self.value, *self.indirect, *(() if self.mask is None else (self.mask,)))

    @property
    def payload(self) -> tuple[Access, str]:
        """What is written, and how."""
        return Access(self.buffer, self.index, len(self.indirect), self.mask is not None), self.mode


@dataclass(frozen=True)
class Constant(_Single):
    """``target = value``."""

    op: ClassVar[str] = "const"
    args: ClassVar[tuple[str, ...]] = ()
    value: Any
    dtype: DType

    @property
    def payload(self) -> Any:
        """The value."""
        return self.value


@dataclass(frozen=True)
class IndexValue(_Single):
    """``target = index``, as i64; `op` is ``size`` for one that is made of shape symbols alone."""

    args: ClassVar[tuple[str, ...]] = ()
    index: IndexLike
    dtype: DType = DType.i64
    op: str = "index"

    @property
    def payload(self) -> IndexLike:
        """The index."""
        return self.index


@dataclass(frozen=True)
class Compute(_Single):
    """``target = op(args)``: an operation of `ops.SCALAR_OPS`."""

    op: str
    args: tuple[str, ...]
    dtype: DType
    payload: ClassVar[None] = None


@dataclass(frozen=True)
class Cast(_Single):
    """`arg` converted to `dtype` as torch converts it, or (`bitwise`) its bits read as that type."""

    arg: str
    dtype: DType
    bitwise: bool = False
    payload: ClassVar[None] = None

    @property
    def op(self) -> str:
        """``cast`` or ``bitcast``."""
        return "bitcast" if self.bitwise else "cast"

    @property
    def args(self) -> tuple[str, ...]:
        """The operand."""
        return (self.arg,)


@dataclass(frozen=True)
class Random(_Single):
    """``target``: a random number of a kind of `ops.RANDOM`."""

    op: ClassVar[str] = "rand"
    kind: str
    seed: str
    offset: str
    dtype: DType

    @property
    def args(self) -> tuple[str, ...]:
        """Seed and offset."""
        return (self.seed, self.offset)

    @property
    def payload(self) -> str:
        """The kind."""
        return self.kind


@dataclass(frozen=True)
class Reduce:
    """``targets = kind(args)`` over the section's loop, known after it.

    Kinds are those of `ops.REDUCTIONS` and `ops.CONTRACTIONS`.
    """

    op: ClassVar[str] = "reduce"
    targets: tuple[str, ...]
    kind: str
    args: tuple[str, ...]
    dtype: DType

    @property
    def payload(self) -> str:
        """The kind."""
        return self.kind


@dataclass(frozen=True)
class Scan:
    """``targets = kind(args)`` along the one reduction axis, known at once at each point: `ops.SCANS`."""

    op: ClassVar[str] = "scan"
    targets: tuple[str, ...]
    kind: str
    args: tuple[str, ...]
    dtype: DType

    @property
    def payload(self) -> str:
        """The kind."""
        return self.kind


Statement = Load | Store | Constant | IndexValue | Compute | Cast | Random | Reduce | Scan


def statement(
    op: str, targets: tuple[str, ...], args: Sequence[str], dtype: DType, payload: Any = None
) -> Statement:
    """The statement of an operation from its parts, as `Statement.op` and the others name them.

    Raises:
        ValueError: the operation cannot have so many targets or operands.
    """
    args = tuple(args)
    match op:
        case "store":
            access, mode = payload
            _count(op, targets, 0, args, 1 + access.indirect + access.masked)
            indirect, mask = args[1 : 1 + access.indirect], args[-1] if access.masked else None
            return Store(access.buffer, access.index, args[0], dtype, mode, indirect, mask)
        case "reduce":
            return Reduce(targets, payload, args, dtype)
        case "scan":
            return Scan(targets, payload, args, dtype)
        case "load":
            _count(op, targets, 1, args, payload.indirect + 2 * payload.masked)
            mask, other = args[payload.indirect :] if payload.masked else (None, None)
            indirect = args[: payload.indirect]
            return Load(targets[0], payload.buffer, payload.index, dtype, indirect, mask, other)
        case "const":
            _count(op, targets, 1, args, 0)
            return Constant(targets[0], payload, dtype)
        case "index" | "size":
            _count(op, targets, 1, args, 0)
            return IndexValue(targets[0], payload, dtype, op)
        case "cast" | "bitcast":
            _count(op, targets, 1, args, 1)
            return Cast(targets[0], args[0], dtype, op == "bitcast")
        case "rand":
            _count(op, targets, 1, args, 2)
            return Random(targets[0], payload, args[0], args[1], dtype)
    _count(op, targets, 1, args, len(args))
    return Compute(targets[0], op, args, dtype)


def _count(op: str, targets: tuple[str, ...], wanted: int, args: tuple[str, ...], operands: int) -> None:
    if len(targets) != wanted:
        raise ValueError(f"{op} defines {wanted or 'no'} value{'s' * (wanted > 1)}, not {len(targets)}")
    if len(args) != operands:
        raise ValueError(f"{op} takes {operands} operands here, not {len(args)}")


def definition(target: str, expr: Expr, args: Sequence[str]) -> Statement:
    """The statement that gives an expression's value a name; `args` are the names of its operands."""
    return statement(expr.op, (target,), args, expr.dtype, expr.payload)


def expression(stmt: Statement, args: tuple[Expr, ...]) -> Expr:
    """The expression that a statement with one target computes, from those of its operands."""
    return Expr(stmt.op, args, stmt.dtype, stmt.payload)


def with_names(stmt: Statement, targets: tuple[str, ...], args: Sequence[str]) -> Statement:
    """The same statement, with other names for what it defines and uses."""
    return statement(stmt.op, targets, args, stmt.dtype, stmt.payload)


def is_check(stmt: Statement) -> bool:
    """Whether a statement stores that something from data is not what it has to be: `ops.CHECK_MODE`."""
    return isinstance(stmt, Store) and stmt.mode == CHECK_MODE


def indices(stmt: Statement) -> tuple[Index, ...]:
    """The index expressions that a statement holds, plain integers left out."""
    match stmt:
        case Load() | Store() | IndexValue():
            return (stmt.index,) if isinstance(stmt.index, Index) else ()
        case Constant() | Compute() | Cast() | Random() | Reduce() | Scan():
            return ()
        case _:
            assert_never(stmt)


def with_index(stmt: Statement, change: Callable[[IndexLike], IndexLike]) -> Statement:
    """The same statement with its index changed, if it has one."""
    match stmt:
        case Load() | Store() | IndexValue():
            return replace(stmt, index=change(stmt.index))
        case Constant() | Compute() | Cast() | Random() | Reduce() | Scan():
            return stmt
        case _:
            assert_never(stmt)


def key(stmt: Statement) -> Hashable:
    """All that a statement is but names of values: with equal operands, equal keys mean equal values."""
    # repr keeps 0.0 and -0.0, True and 1 apart, which == does not
    return stmt.op, stmt.dtype, repr(stmt.value) if isinstance(stmt, Constant) else stmt.payload
