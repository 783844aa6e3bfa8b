"""The rules of single operations: what types they take and give. The verifiers are made of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from polyfuse.ir.expr import Access
from polyfuse.ir.ops import CONTRACTIONS, NUMBERS, RANDOM, REDUCTIONS, SCALAR_OPS, SCANS
from polyfuse.ir.types import DType
from polyfuse.symbolic import (
    IndexLike,
    as_atom,
    atoms,
    axis_size,
    is_nonnegative,
    substitute,
)


def operation_fault(op: str, operands: Sequence[DType], dtype: DType, payload: Any) -> str:
    """What is wrong with an operation that gives one value at each point, or an empty text."""
    if op in SCALAR_OPS:
        return _scalar_fault(op, operands, dtype)
    if op == "const":
        return _constant_fault(operands, dtype, payload)
    if op in ("index", "size"):
        if operands or dtype is not DType.i64:
            return f"{op} takes one index expression, no operands, and gives i64"
    elif op == "cast":
        if len(operands) != 1:
            return "cast takes one operand"
    elif op == "bitcast":
        if len(operands) != 1 or operands[0].itemsize != dtype.itemsize:
            return f"bitcast to {dtype} takes one operand of the same width"
        if operands[0] not in NUMBERS or dtype not in NUMBERS:
            return f"bitcast is between numbers that are computed with, not from {operands[0]} to {dtype}"
    elif op == "load":
        return _load_fault(operands, dtype, payload)
    elif op == "rand":
        if payload not in RANDOM:
            return f"rand takes a kind, one of {', '.join(RANDOM)}"
        if tuple(operands) != (DType.i64, DType.i64) or dtype is not DType[RANDOM[payload]]:
            return f"rand {payload} takes an i64 seed and an i64 offset and gives {RANDOM[payload]}"
    else:
        return f"operation {op!r} is unknown"
    return ""


def result_types(op: str, kind: str, operands: Sequence[DType]) -> tuple[DType, ...] | str:
    """The types that a reduction or scan gives, or what is wrong with it."""
    if op == "reduce" and kind in CONTRACTIONS:
        return _contracted(kind, operands)
    table = REDUCTIONS if op == "reduce" else SCANS
    if kind not in table:
        known = [*table, *(CONTRACTIONS if op == "reduce" else ())]
        return f"{op} kind {kind!r} is unknown; the kinds are {', '.join(known)}"
    row = table[kind]
    if len(operands) != row.operands:
        return f"{op} {kind} takes {row.operands} operands, not {len(operands)}"
    if operands[0] not in row.types:
        return f"{op} {kind} does not take {operands[0]}"
    if row.operands == 2:
        if operands[1] is not DType.i64:
            return f"{op} {kind} takes a position of type i64, not {operands[1]}"
        return (operands[0], DType.i64)
    return (operands[0],) * row.results


def accumulates(operand: DType) -> DType:
    """The type in which products of two values of type `operand` are added up."""
    if operand.itemsize == 1 and operand.is_integer:
        return DType.i32
    return operand.compute


def _contracted(kind: str, operands: Sequence[DType]) -> tuple[DType, ...] | str:
    if len(operands) != 2:
        return f"reduce {kind} takes 2 operands, not {len(operands)}"
    left, right = operands
    both = {left, right}
    alike = left is right or all(t.is_eight_bit_float or t in (DType.i8, DType.u8) for t in both)
    if DType.bool in both or not alike or left.is_float != right.is_float:
        return f"reduce {kind} does not take {left} with {right}"
    if kind == "dot_tf32" and left is not DType.f32:
        return f"reduce {kind} takes f32, not {left}"
    if kind == "dot_fast" and not left.is_eight_bit_float:
        return f"reduce {kind} takes floats of eight bits, not {left}"
    return (accumulates(left),)


def index_fault(
    index: IndexLike,
    axes: Sequence[IndexLike],
    indirect: int = 0,
    symbols: Sequence[str] | None = None,
) -> str:
    """What is wrong with an index: a variable that is bound nowhere around it, or an empty text.

    `axes` are the loops around it; `symbols`, where given, the shape symbols that are known.
    """
    known = {as_atom(a) for a in axes}
    for atom in atoms(index):
        if atom.kind == "axis" and atom not in known:
            if atom.name.startswith("@"):
                if atom.name[1:].isdigit() and int(atom.name[1:]) < indirect:
                    continue
                return f"the index {index} names {atom.name}, but there are {indirect} indirect operands"
            return f"the index {index} uses axis {atom.name} of size {atom.args[0]}, which is not around it"
        if atom.kind == "sym" and symbols is not None and atom.name not in symbols:
            return f"the index {index} uses the symbol {atom.name}, which nothing defines"
    return ""


def extent_fault(index: IndexLike, numel: IndexLike, axes: Sequence[IndexLike]) -> str:
    """Whether an index provably leaves a buffer of `numel` elements somewhere in a non-empty space."""
    if any(not is_nonnegative(axis_size(a) - 1) for a in axes):
        return ""
    if any(atom.kind == "axis" and atom.name.startswith("@") for atom in atoms(index)):
        return ""
    sizes = {atom.name: axis_size(a) for a in axes for atom in (as_atom(a),) if atom is not None}
    lowest: dict[str, IndexLike] = dict.fromkeys(sizes, 0)
    highest: dict[str, IndexLike] = {name: size - 1 for name, size in sizes.items()}
    for corner in (lowest, highest, _corner(index, sizes, 1), _corner(index, sizes, -1)):
        value = substitute(index, corner)
        if is_nonnegative(-value - 1):
            return f"the index {index} reaches {value}, before the first element"
        if is_nonnegative(value - numel):
            return f"the index {index} reaches element {value} of a buffer that has {numel}"
    return ""


def _corner(index: IndexLike, sizes: dict[str, IndexLike], sign: int) -> dict[str, IndexLike]:
    """Every axis at the end where its own terms are largest (`sign` 1) or smallest (-1)."""
    found: dict[str, IndexLike] = {}
    for name, size in sizes.items():
        rising = True
        if not isinstance(index, int):
            for monomial, factor in index.terms:
                if len(monomial) == 1 and monomial[0].kind == "axis" and monomial[0].name == name:
                    rising = factor * sign > 0
        found[name] = size - 1 if rising else 0
    return found


def _scalar_fault(op: str, operands: Sequence[DType], dtype: DType) -> str:
    row = SCALAR_OPS[op]
    if len(operands) != row.arity:
        return f"{op} takes {row.arity} operands, not {len(operands)}"
    if op == "where" and operands[0] is not DType.bool:
        return f"the condition of where is {operands[0]}, not bool"
    same = operands[1:] if op == "where" else operands
    if any(t is not same[0] for t in same):
        return f"{op} takes operands of one type, not {', '.join(map(str, same))}"
    if same[0] not in row.types:
        return f"{op} does not take {same[0]}"
    wanted = DType.bool if row.result == "bool" else same[0]
    return "" if dtype is wanted else f"{op} gives {wanted} here, not {dtype}"


def _constant_fault(operands: Sequence[DType], dtype: DType, value: Any) -> str:
    if operands:
        return "const takes no operands"
    if dtype is DType.bool:
        return "" if isinstance(value, bool) else f"the constant {value!r} is not a bool"
    if dtype.is_float:
        return "" if isinstance(value, float) else f"the constant {value!r} is not a float"
    if isinstance(value, bool) or not isinstance(value, int):
        return f"the constant {value!r} is not an integer"
    bits = dtype.itemsize * 8
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if dtype.is_signed else (0, (1 << bits) - 1)
    return "" if low <= value <= high else f"the constant {value} does not fit {dtype}"


def _load_fault(operands: Sequence[DType], dtype: DType, access: Access) -> str:
    count, masked = access.indirect, access.masked
    if len(operands) != count + 2 * bool(masked):
        return f"load takes {count} indirect operands{', a mask and a value' if masked else ''}"
    if any(t is not DType.i64 for t in operands[:count]):
        return "an indirect operand is not i64"
    if masked and operands[count] is not DType.bool:
        return f"the mask is {operands[count]}, not bool"
    if masked and operands[count + 1] is not dtype:
        return f"the value where nothing is loaded is {operands[count + 1]}, not {dtype}"
    return ""
