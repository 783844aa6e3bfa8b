"""Statements as C++ text, in the form that their loop needs: plain scalars, vectors, or the first lanes
of one.

A `Frame` is one level of the loop nest. Values that do not depend on the lane axis are scalars there and are
written once; the others are vectors, one copy for each step of an unrolled loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass, replace

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.statements import Cast, Constant, IndexValue, Load, Statement, Store
from polyfuse.ir.types import DType
from polyfuse.kit import fits_i32_throughout, is_multiple
from polyfuse.symbolic import IndexLike, axis, coefficient, free_axes
from polyfuse_cpp.loops.ops import literal, unsupported_op
from polyfuse_cpp.memory.access import MemoryScope
from polyfuse_cpp.memory.address import index_text
from polyfuse_cpp.memory.lanes import lane_index
from polyfuse_cpp.prelude import features_for, functions_apart

_NARROW_OPS = frozenset(("add", "sub", "mul", "neg", "minimum", "maximum", "where"))
_COMPARISONS = frozenset(("eq", "ne", "lt", "le", "gt", "ge"))
_FLIPPED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
_BYTES = frozenset((DType.bool, DType.i8, DType.u8))
_SIXTEEN_BITS = frozenset((DType.bf16, DType.f16))
"""They hold each number of `_BYTES` exactly: bf16 has integers up to 256."""


@dataclass
class Frame(MemoryScope):
    """A level of the loop nest where statements are written."""

    # Writing statements.

    def emit(self, stmt: Statement) -> None:
        """Write one statement other than a reduction or scan."""
        match stmt:
            case Constant():
                self._bind(stmt, False, [literal(stmt.value, stmt.dtype)], declare=False)
                if stmt.dtype is DType.i64:
                    self._note_index(stmt, int(stmt.value))
            case IndexValue():
                self._index(stmt)
            case Load():
                self._load(stmt)
            case Store():
                self._store(stmt)
            case Cast():
                self._convert(stmt)
            case _:
                self._scalar_op(stmt)

    def emit_invariants(self, stmts: Iterable[Statement], varying: Set[str]) -> frozenset[int]:
        """Write the statements that depend on none of some axes; which ones (by identity) these are."""
        done: set[int] = set()
        for stmt in stmts:
            if not self.facts.is_pure(stmt) or stmt.targets[0] in self.env:
                continue
            if varying.isdisjoint(self.facts.depends_of(stmt)) and all(a in self.env for a in stmt.args):
                self.emit(stmt)
                done.add(id(stmt))
        return frozenset(done)

    def _uniform_test(self, stmt: Statement) -> list[str] | None:
        """A comparison of indices that comes out alike in all lanes of a vector, as scalar text for each
        copy.

        The lane axis stands at a multiple of the lanes wherever a vector begins.
        """
        if stmt.op not in _FLIPPED or self.lane is None or self.lanes == 1:
            return None
        left, right = (self.env[a].index for a in stmt.args)
        if left is None or right is None:
            return None
        op, index = stmt.op, left - right
        if coefficient(index, self.lane) == -1:
            op, index = _FLIPPED[op], -index
        if coefficient(index, self.lane) != 1:
            return None
        if op in ("le", "gt"):
            op, index = {"le": "lt", "gt": "ge"}[op], index - 1
        if not is_multiple(index - axis(self.lane, self.facts.sizes[self.lane]), self.lanes):
            return None
        sign = "<" if op == "lt" else ">="
        return [f"{index_text(self.at_copy(index, c))} {sign} 0" for c in range(self.copies)]

    def _scalar_op(self, stmt: Statement) -> None:
        first = self.env[stmt.args[-1]].dtype
        reason = unsupported_op(stmt.op, first)
        if reason:
            raise UnsupportedError(reason, "let another backend take the node")
        self.features.update(features_for(stmt.op, str(first)))
        vector = self._is_vector(*stmt.args)
        uniform = self._uniform_test(stmt) if vector else None
        if uniform is not None:
            self._bind(stmt, False, uniform)
            return
        operands = stmt.args[1:] if stmt.op == "where" else stmt.args
        all_narrow = all(self.env[a].narrow or self._small_const(a) for a in operands)
        result = stmt.op in _NARROW_OPS and self.facts.fits_i32(stmt.targets[0]) and all_narrow
        narrow = first is DType.i64 and all_narrow and (result or stmt.op in _COMPARISONS)
        if stmt.targets[0] in self.checks and not narrow and self._limit_checked(stmt):
            return
        function = self._function(stmt)
        texts = []
        for copy in self._spread(*stmt.args):
            arguments = []
            for position, name in enumerate(stmt.args):
                chooses = stmt.op == "where" and position == 0
                wide = vector and not (chooses and not self.env[name].vector)
                arguments.append(self._operand(name, wide, copy, narrow and not chooses))
            texts.append(f"{function}({', '.join(arguments)})")
        self._bind(stmt, vector, texts, narrow=result and first is DType.i64)

    def _function(self, stmt: Statement) -> str:
        """The function of an operation: one that is as exact as bf16 where results are rounded to that, and
        one that is not inlined where there are very many."""
        name = f"coarse_{stmt.op}" if stmt.targets[0] in self.facts.coarse else stmt.op
        if self.facts.apart and stmt.dtype is DType.f32 and name in functions_apart():
            self.features.add("apart")
            return f"apart_{name}"
        return name

    def _limit_checked(self, stmt: Statement) -> bool:
        """Limit an index and check it in one step, unless a part of a vector is left out."""
        check = self.checks[stmt.targets[0]]
        vector = self.env[check.index].vector
        limits = [name for name in (check.last, check.size) if name]
        if (vector and self.tail) or self._is_vector(*limits):
            return False
        self.features.add("check")
        status = f"{check.store.buffer} + {index_text(check.store.index)}"
        texts = []
        for copy in self._spread(check.index):
            said = self.stored(check.store.value, vector, copy)
            numbers = [self.text(check.index, vector, copy), *(self.text(name, False) for name in limits)]
            texts.append(f"limit_checked({status}, {said}, {', '.join(numbers)})")
        self._bind(stmt, vector, texts)
        self.env[stmt.targets[0]] = replace(self.env[stmt.targets[0]], checked=True)
        return True

    def _small_const(self, name: str) -> bool:
        found = self.env[name]
        return self.facts.fits_i32(name) and found.texts[0].startswith("i64(")

    def _operand(self, name: str, vector: bool, copy: int, narrow: bool) -> str:
        if narrow and not self.env[name].narrow:
            text = "i32" + self.env[name].texts[0].removeprefix("i64")
            return f"splat<Vec>({text})" if vector else text
        return self.text(name, vector, copy, narrow)

    def _convert(self, stmt: Cast) -> None:
        source = self.env[stmt.arg]
        vector = source.vector
        copies = self._spread(stmt.arg)
        if stmt.bitwise:
            if source.dtype.is_storage or stmt.dtype.is_storage:
                self.features.add("kernel")
                texts = [self.text(stmt.arg, vector, c) for c in copies]
                if source.dtype.is_storage:
                    texts = [f"bits_of<{source.dtype}>({t})" for t in texts]
                if stmt.dtype.is_storage:
                    texts = [f"value_of<{stmt.dtype}>({t})" for t in texts]
                elif stmt.dtype.is_signed:
                    texts = [f"cast<{stmt.dtype}>({t})" for t in texts]
            else:
                texts = [f"bitcast<{stmt.dtype}>({self.text(stmt.arg, vector, c)})" for c in copies]
            self._bind(stmt, vector, texts)
            return
        if stmt.dtype.is_storage:
            # rounding is left to the store, which does it anyway; any other reader rounds
            texts = [self.text(stmt.arg, vector, c, narrow=True) for c in copies]
            if source.dtype is not DType.f32:
                texts = [f"cast<f32>({t})" for t in texts]
            exact = source.dtype in _BYTES and stmt.dtype in _SIXTEEN_BITS
            self._bind(stmt, vector, texts, rounded=exact, declare=source.dtype is not DType.f32)
            return
        if source.dtype.is_storage and stmt.dtype is DType.f32:
            texts = [self.text(stmt.arg, vector, c) for c in copies]
            self._bind(stmt, vector, texts, declare=not source.rounded)
            return
        narrow = stmt.dtype is DType.i64 and self.facts.fits_i32(stmt.target)
        kind = "i32" if narrow else stmt.dtype.value
        texts = [f"cast<{kind}>({self.text(stmt.arg, vector, c, narrow=True)})" for c in copies]
        self._bind(stmt, vector, texts, narrow=narrow)

    def _index(self, stmt: IndexValue) -> None:
        index = stmt.index
        narrow = self.facts.fits_i32(stmt.target)
        vector = self.lane is not None and self.lane in free_axes(index)
        if not vector:
            text = index_text(index)
            self._bind(stmt, False, [f"{'i32' if narrow else 'i64'}({text})"], narrow=narrow)
        else:
            kind = "i32" if narrow else "i64"
            texts = [self._lane_values(self.at_copy(index, c), kind) for c in range(self.copies)]
            self._bind(stmt, True, texts, narrow=narrow)
        self._note_index(stmt, index)

    def _lane_values(self, index: IndexLike, kind: str) -> str:
        self.features.add("kernel")
        if kind == "i32" and not fits_i32_throughout(index):
            return f"cast<i32>({lane_index(index, self.lane or '', 'i64', {})})"
        return lane_index(index, self.lane or "", kind, {})
