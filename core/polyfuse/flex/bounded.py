"""The functions of scores, evaluated with how far each value may be off: what moving each operand by its
error changes, and a rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from polyfuse.ir.interpreter import semantics
from polyfuse.ir.interpreter.space import index_values
from polyfuse.ir.statements import Cast, Compute, Constant, IndexValue, Load, Statement

F32: Final = 2.0**-23
"""What one rounding may change of a number."""
TINY: Final = 1e-36
"""Denormal numbers count as zero."""
_SMOOTH: Final = frozenset(("add", "sub", "mul", "div", "neg", "abs", "where", "minimum", "maximum"))
"""Functions that are rounded once; others are approximated."""


class Sure(NamedTuple):
    """Values, and how far each may be off in f64; None where nothing is."""

    values: Tensor
    errors: Tensor | None


def values_of(
    statements: Sequence[Statement],
    tensors: Mapping[str, Tensor],
    names: Mapping[str, Any],
    known: Mapping[str, Sure],
    approximation: float,
) -> dict[str, Sure]:
    """The values of all statements that can be computed from what is known, as matrices or what fits to them.

    Args:
        tensors: that are read, each from its first element on in all of its memory.
        names: sizes and axes.
        known: values by their names.
        approximation: of a function, what its result may be off.
    """
    found = dict(known)
    evaluation = _Evaluation(tensors, names, found, approximation)
    for stmt in statements:
        if stmt.targets[0] not in found and all(name in found for name in stmt.args):
            found[stmt.targets[0]] = evaluation.value(stmt)
    return found


class _Evaluation(NamedTuple):
    """What statements are evaluated with."""

    tensors: Mapping[str, Tensor]
    names: Mapping[str, Any]
    found: dict[str, Sure]
    approximation: float

    def value(self, stmt: Statement) -> Sure:
        """What a statement defines."""
        found, device = self.found, self.names["m"].device
        match stmt:
            case Constant(value=value, dtype=dtype):
                return Sure(semantics.constant(value, dtype, device).reshape(1, 1), None)
            case IndexValue(index=index):
                return Sure(self._index(index, {}), None)
            case Load():
                more = {f"@{k}": found[name].values.long() for k, name in enumerate(stmt.indirect)}
                return self._loaded(stmt, self._index(stmt.index, more))
            case Cast(arg=arg, dtype=dtype):
                convert = semantics.bitcast if stmt.bitwise else semantics.cast
                return self._applied("cast", (found[arg],), lambda x: convert(x, dtype))
            case Compute(op=op, args=args):
                given = tuple(found[name] for name in args)
                kind = stmt.dtype
                return self._applied(op, given, lambda *x: semantics.scalar(op, x, kind))
        raise TypeError(f"{type(stmt).__name__} is no function of a score")

    def _index(self, index: Any, more: Mapping[str, Tensor]) -> Tensor:
        at = torch.as_tensor(index_values(index, {**self.names, **more}), device=self.names["m"].device)
        return at if at.dim() == 2 else at.reshape(1, 1)

    def _loaded(self, stmt: Load, at: Tensor) -> Sure:
        tensor = self.tensors[stmt.buffer]
        room = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
        flat = tensor.as_strided((room,), (1,), tensor.storage_offset())
        values = semantics.gather(flat, at.clamp(0, max(0, room - 1)))
        if stmt.mask is not None and stmt.other is not None:
            values = torch.where(self.found[stmt.mask].values, values, self.found[stmt.other].values)
        return Sure(values, None)

    def _applied(self, op: str, given: tuple[Sure, ...], function: Callable[..., Tensor]) -> Sure:
        plain = tuple(one.values for one in given)
        found = function(*plain)
        total: Tensor | None = None
        for k, one in enumerate(given):
            if one.errors is None:
                continue
            change = torch.zeros((), dtype=torch.float64, device=found.device)
            for moved in _moved(one.values, one.errors):
                other = function(*plain[:k], moved, *plain[k + 1 :])
                change = torch.maximum(change, _apart(other, found))
            total = change if total is None else total + change
        if found.dtype.is_floating_point and op != "cast":
            rounded = found.double().abs() * (F32 if op in _SMOOTH else self.approximation)
            total = rounded if total is None else total + rounded
        return Sure(found, total)


def _moved(values: Tensor, errors: Tensor) -> Iterator[Tensor]:
    """Values by their errors up and down, or others where they are truth values that may be wrong."""
    if values.dtype is torch.bool:
        yield values ^ (errors > 0)
        return
    for sign in (1, -1):
        if values.dtype.is_floating_point:
            yield (values.double() + sign * errors).to(values.dtype)
        else:
            yield values + sign * errors.clamp(max=2.0**31).ceil().to(values.dtype)


def _apart(one: Tensor, other: Tensor) -> Tensor:
    a, b = one.double(), other.double()
    return torch.where((a == b) | (a.isnan() & b.isnan()), 0.0, (a - b).abs().nan_to_num(torch.inf))
