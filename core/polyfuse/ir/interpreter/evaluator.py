"""Evaluation of single operations over an iteration space: what expressions and kernel statements share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, assert_never

import torch
from torch import Tensor

from polyfuse.base.errors import IRError
from polyfuse.ir import random
from polyfuse.ir.expr import Expr, walk
from polyfuse.ir.interpreter import semantics
from polyfuse.ir.interpreter.space import Number, Space, index_values
from polyfuse.ir.ops import SCALAR_OPS
from polyfuse.ir.statements import (
    Cast,
    Compute,
    Constant,
    IndexValue,
    Load,
    Random,
    Reduce,
    Scan,
    Store,
    definition,
)
from polyfuse.ir.types import DType
from polyfuse.symbolic import IndexLike

PointStatement = Load | Constant | IndexValue | Compute | Cast | Random
"""Statements that define one value at each point by itself."""


class Evaluator:
    """The values of one part of an iteration space.

    A value is a tensor with one dimension for each axis, of length one where the value does not vary.
    """

    def __init__(self, space: Space, sizes: Mapping[str, int], storages: Mapping[str, Tensor]) -> None:
        self.space = space
        self.storages = storages
        self.names: dict[str, Number] = {**sizes, **space.variables()}

    def index(self, index: IndexLike, indirect: tuple[Tensor, ...] = ()) -> Tensor:
        """An index at every point, ``@k`` standing for ``indirect[k]``."""
        names = self.names
        if indirect:
            names = {**names, **{f"@{k}": value.to(torch.int64) for k, value in enumerate(indirect)}}
        value = index_values(index, names)
        if isinstance(value, int):
            value = torch.tensor(value, dtype=torch.int64, device=self.space.device)
        return value if value.dim() == self.space.rank else value.reshape((1,) * self.space.rank)

    def value(self, stmt: PointStatement, known: Mapping[str, Any]) -> Any:
        """What a statement defines, at each point; `known` has its operands by name.

        Raises:
            IRError: its operation is unknown.
        """
        match stmt:
            case Load():
                return self.load(stmt, known)
            case Compute(op=op):
                if op not in SCALAR_OPS:
                    raise IRError(
                        f"operation {op!r} is unknown", "polyfuse.ir.ops.SCALAR_OPS lists those that exist"
                    )
                args = tuple(known[name] for name in stmt.args)
                return semantics.scalar(op, args, type_of(args[-1]))
            case Constant():
                found = semantics.constant(stmt.value, stmt.dtype, self.space.device)
                return found.reshape((1,) * self.space.rank)
            case Cast(arg=arg, dtype=dtype):
                convert = semantics.bitcast if stmt.bitwise else semantics.cast
                return convert(known[arg], dtype)
            case IndexValue():
                return self.index(stmt.index)
            case Random():
                return random.draw(stmt.kind, known[stmt.seed], known[stmt.offset])
            case _:
                assert_never(stmt)

    def load(self, stmt: Load, known: Mapping[str, Any]) -> Any:
        """Elements of a buffer."""
        storage = self._storage(stmt.buffer, stmt.dtype)
        position = self.index(stmt.index, tuple(known[name] for name in stmt.indirect))
        if stmt.mask is None or stmt.other is None:
            return semantics.gather(storage, self.storage_index(stmt.buffer, position))
        other = known[stmt.other]
        position, mask = torch.broadcast_tensors(position, known[stmt.mask])
        if not mask.any():
            return other.expand(position.shape).contiguous()
        position = torch.where(mask, position, position[mask][0])
        loaded = semantics.gather(storage, self.storage_index(stmt.buffer, position))
        mask, loaded, other = torch.broadcast_tensors(mask, loaded, other)
        return semantics.where(mask, loaded.contiguous(), other.contiguous())

    def store(self, stmt: Store, known: Mapping[str, Any], looped: bool = False) -> None:
        """Store values."""
        storage = self._storage(stmt.buffer, stmt.dtype)
        shape = self.space.shape(looped)
        position = self.index(stmt.index, tuple(known[name] for name in stmt.indirect)).expand(shape)
        value = known[stmt.value].expand(shape)
        if stmt.mask is not None:
            mask = known[stmt.mask].expand(shape)
            if not mask.any():
                return
            # what is not stored must neither fail the check of bounds nor reach memory
            position = torch.where(mask, position, position[mask][0])
            inside = mask.reshape(-1)
            at = self.storage_index(stmt.buffer, position).expand(shape).reshape(-1)[inside]
            semantics.scatter(storage, at, semantics.gather(value.reshape(-1), inside), stmt.mode)
            return
        at = self.storage_index(stmt.buffer, position).expand(shape)
        semantics.scatter(storage, at.reshape(-1), value.reshape(-1), stmt.mode)

    def storage_index(self, name: str, position: Tensor) -> Tensor:
        """Where in its storage an element of a buffer lies; raises where it lies outside."""
        self.check(name, position, self.storages[name].numel())
        return position

    def row(self, value: Tensor) -> Tensor:
        """A value with its reduction axes joined to one last dimension, in full length."""
        return value.expand(self.space.lengths).reshape(*self.space.outer, -1)

    def reduce(self, kind: str, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """A reduction over all reduction axes."""
        found = semantics.reduce(kind, tuple(self.row(a) for a in args), type_of(args[0]))
        return tuple(t.reshape(self.space.shape(False)) for t in found)

    def scan(self, kind: str, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """A scan along the one reduction axis."""
        found = semantics.scan(kind, tuple(self.row(a) for a in args), type_of(args[0]))
        return tuple(t.reshape(self.space.lengths) for t in found)

    def expressions(self, *roots: Expr) -> tuple[Tensor, ...]:
        """The values of expressions; what they share is computed once."""
        names: dict[Expr, str] = {}
        known: dict[str, Tensor] = {}
        for expr in walk(*roots):
            name = names[expr] = f"v{len(names)}"
            stmt = definition(name, expr, [names[arg] for arg in expr.args])
            assert not isinstance(stmt, (Store, Reduce, Scan)), f"{expr.op} is no expression"
            known[name] = self.value(stmt, known)
        return tuple(known[names[root]] for root in roots)

    def _storage(self, name: str, dtype: DType) -> Tensor:
        if name not in self.storages:
            raise IRError(f"buffer {name!r} is accessed but was not given")
        storage = self.storages[name]
        if storage.dtype is not dtype.torch:
            raise IRError(f"buffer {name!r} holds {storage.dtype} but is accessed as {dtype}")
        return storage

    def check(self, name: str, position: Tensor, length: int) -> None:
        """Raise `IRError` where a position is outside a buffer of that length."""
        if position.numel() == 0:
            return
        low, high = int(position.min()), int(position.max())
        if low < 0 or high >= length:
            raise IRError(
                f"elements {low} to {high} of buffer {name!r} are accessed, which has {length}",
                "its index is wrong, or an indirect value is out of range",
            )


_TYPES = {d.torch: d for d in DType}


def type_of(value: Tensor) -> DType:
    """The IR type of a value."""
    return _TYPES[value.dtype]
