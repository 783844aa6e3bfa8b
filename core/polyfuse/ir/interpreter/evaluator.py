"""Evaluation of single operations over an iteration space: what expressions and kernel statements share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from polyfuse.base.errors import IRError
from polyfuse.ir import random
from polyfuse.ir.expr import Access, Expr, walk
from polyfuse.ir.interpreter import semantics
from polyfuse.ir.interpreter.space import Number, Space, index_values
from polyfuse.ir.ops import SCALAR_OPS
from polyfuse.ir.types import DType
from polyfuse.symbolic import IndexLike


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

    def simple(self, op: str, args: tuple[Tensor, ...], dtype: DType, payload: Any) -> Tensor:
        """Any operation that gives one value at each point by itself; `dtype` is the type of that value."""
        if op in SCALAR_OPS:
            operand = type_of(args[-1])
            return semantics.scalar(op, args, operand)
        if op == "const":
            value = semantics.constant(payload, dtype, self.space.device)
            return value.reshape((1,) * self.space.rank)
        if op == "cast":
            return semantics.cast(args[0], dtype)
        if op == "bitcast":
            return semantics.bitcast(args[0], dtype)
        if op in ("index", "size"):
            return self.index(payload)
        if op == "load":
            return self.load(args, dtype, payload)
        if op == "rand":
            return random.draw(payload, args[0], args[1])
        raise IRError(f"operation {op!r} is unknown", "polyfuse.ir.ops.SCALAR_OPS lists those that exist")

    def load(self, args: tuple[Tensor, ...], dtype: DType, access: Access) -> Tensor:
        """Elements of a buffer."""
        name, index, count, masked = access
        storage = self._storage(name, dtype)
        position = self.index(index, args[:count])
        if not masked:
            return semantics.gather(storage, self.storage_index(name, position))
        mask, other = args[count], args[count + 1]
        position, mask = torch.broadcast_tensors(position, mask)
        if not mask.any():
            return other.expand(position.shape).contiguous()
        position = torch.where(mask, position, position[mask][0])
        loaded = semantics.gather(storage, self.storage_index(name, position))
        mask, loaded, other = torch.broadcast_tensors(mask, loaded, other)
        return semantics.where(mask, loaded.contiguous(), other.contiguous())

    def store(
        self, args: tuple[Tensor, ...], dtype: DType, access: Access, mode: str, looped: bool = False
    ) -> None:
        """Store values: `args` are the value, the indirect values, then the mask."""
        name, index, count, masked = access
        storage = self._storage(name, dtype)
        shape = self.space.shape(looped)
        position = self.index(index, args[1 : 1 + count]).expand(shape)
        value = args[0].expand(shape)
        if masked:
            mask = args[1 + count].expand(shape)
            if not mask.any():
                return
            # what is not stored must neither fail the check of bounds nor reach memory
            position = torch.where(mask, position, position[mask][0])
            inside = mask.reshape(-1)
            at = self.storage_index(name, position).expand(shape).reshape(-1)[inside]
            semantics.scatter(storage, at, semantics.gather(value.reshape(-1), inside), mode)
            return
        at = self.storage_index(name, position).expand(shape)
        semantics.scatter(storage, at.reshape(-1), value.reshape(-1), mode)

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
        done: dict[Expr, Tensor] = {}
        for expr in walk(*roots):
            done[expr] = self.simple(expr.op, tuple(done[a] for a in expr.args), expr.dtype, expr.payload)
        return tuple(done[r] for r in roots)

    def _storage(self, name: str, dtype: DType) -> Tensor:
        if name not in self.storages:
            raise IRError(f"buffer {name!r} is accessed but was not given")
        storage = self.storages[name]
        if storage.dtype is not dtype.torch:
            raise IRError(f"buffer {name!r} holds {storage.dtype} but is accessed as {dtype}")
        return storage

    def check(self, name: str, position: Tensor, length: int) -> None:
        """Raise where a position is outside a buffer of that length."""
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
