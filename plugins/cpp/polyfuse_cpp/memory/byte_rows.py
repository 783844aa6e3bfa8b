"""Rows whose elements are only moved, or combined bit by bit, or are bytes: done in whole registers of bytes.

Vectors have as many lanes as a register has numbers of four bytes, so that those of bools or of floats of
16 bits fill a part of one. What is done to bits alone needs no lanes: padding, joining, reversing, selecting
of rows and logic of masks run over bytes, and what does not fill a register at the end of a row is done by
one that overlaps the one before. Arithmetic, comparisons and selections of bytes have a lane for each byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from polyfuse.ir.statements import Cast, Compute, Load, Statement, Store
from polyfuse.ir.types import DType
from polyfuse.symbolic import IndexLike, coefficient, substitute, symbol
from polyfuse_cpp.facts import Facts
from polyfuse_cpp.loops.body import Frame
from polyfuse_cpp.memory.address import index_text
from polyfuse_cpp.tiling import Plan

_BITWISE = {"bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^"}
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_IN_LANES = ("add", "sub", "mul", "neg", "minimum", "maximum", "abs", "where", *_COMPARISONS)
"""Operations on elements that are bytes (`prelude/byte_ops.h`)."""

_BYTES = (DType.bool, DType.i8, DType.u8)

_SIGNED = (DType.bf16, DType.f16, DType.f32, DType.f64)
"""Floating-point numbers whose sign is a bit of its own."""


@dataclass(frozen=True)
class ByteRows:
    """The rows of a kernel.

    Attributes:
        facts: those of the kernel.
        lane: the axis that a row runs along.
        varying: the statements that vary along a row, by the names of their values.
        kinds: the types as which those values lie in memory.
        stores: what is stored, in order.
    """

    facts: Facts
    lane: str
    varying: Mapping[str, Load | Compute | Cast]
    kinds: Mapping[str, DType]
    stores: tuple[Store, ...]

    def emit(self, frame: Frame) -> None:
        """Write the row from ``from`` to ``to``; `frame` knows what does not vary along it."""
        frame.features.add("bytes")
        for stmt in self.stores:
            row = f"byte_row({self._start(stmt, frame)}, to - from, [&](auto w, i64 i) {{"
            with frame.out.block(row.removesuffix(" {"), "});"):
                for name in self._needed(stmt.value):
                    frame.out.line(f"const auto {_local(name)} = {self._bytes(name, frame)};")
                frame.out.line(f"return {self._operand(stmt.value, self.facts.memory[stmt.buffer], frame)};")

    def _needed(self, value: str) -> list[str]:
        """The values that vary along a row and make `value`, in the order in which they are computed."""
        wanted = {value}
        for name in reversed(tuple(self.varying)):
            if name in wanted:
                wanted.update(self.varying[name].args)
        return [name for name in self.varying if name in wanted]

    def _operand(self, name: str, kind: DType, frame: Frame) -> str:
        """A value as bytes."""
        return _local(name) if name in self.varying else f"bytes_of<{kind}>(w, {frame.text(name, False)})"

    def _bytes(self, name: str, frame: Frame) -> str:
        """The bytes of a value at element ``i`` of the row, as many as ``w`` has."""
        stmt = self.varying[name]
        if isinstance(stmt, Load):
            forwards = coefficient(stmt.index, self.lane) == 1
            start = self._start(stmt, frame)
            found = f"bytes_at(w, {start} + i)" if forwards else f"bytes_back(w, {start} - i)"
            if stmt.mask is None or stmt.other is None:
                return found
            other = self._operand(stmt.other, self.facts.memory[stmt.buffer], frame)
            return f"({frame.text(stmt.mask, False)} ? {found} : {other})"
        kinds = [self._kind_of(a) for a in stmt.args]
        known = [k for a, k in zip(stmt.args, kinds, strict=True) if a in self.varying]
        texts = [
            # where one operand varies, the other one has its type, which is wider in registers for some
            self._operand(a, k if k in _BYTES else known[0], frame)
            for a, k in zip(stmt.args, kinds, strict=True)
        ]
        if isinstance(stmt, Cast):
            if stmt.dtype is not DType.bool or kinds[0] is DType.bool:
                return texts[0]
            frame.features.add("byte_ops")
            return f"byte_any<u8>({texts[0]})"
        if kinds[0] in _SIGNED:
            return self._signed(stmt.op, texts[0], kinds[0])
        if stmt.op == "bitwise_not":
            ones = "bytes_of<bool>(w, true)" if kinds[0] is DType.bool else "bytes_of<u8>(w, u8(255))"
            return f"decltype(w)({texts[0]} ^ {ones})"
        if stmt.op in _BITWISE:
            # of words shorter than an int
            return f"decltype(w)({texts[0]} {_BITWISE[stmt.op]} {texts[1]})"
        frame.features.add("byte_ops")
        lanes = "i8" if kinds[-1] is DType.i8 else "u8"
        return f"byte_{stmt.op}<{lanes}>({', '.join(texts)})"

    def _signed(self, op: str, text: str, kind: DType) -> str:
        """Floating-point numbers with their signs taken away or turned."""
        bits = 8 * kind.itemsize
        sign = 1 << (bits - 1)
        mask, how = (sign - 1, "&") if op == "abs" else (sign, "^")
        return f"decltype(w)({text} {how} bytes_of<u{bits}>(w, u{bits}({mask}ULL)))"

    def _kind_of(self, name: str) -> DType:
        """The type in memory of a value."""
        return self.kinds.get(name, self.facts.dtypes[name])

    def _start(self, stmt: Load | Store, frame: Frame) -> str:
        """The address of an access at the start of the row."""
        names = {f"@{k}": frame.text(name, False) for k, name in enumerate(stmt.indirect)}
        start = substitute(stmt.index, {self.lane: symbol("from")})
        return f"{stmt.buffer} + {index_text(start, names)}"


def byte_rows(facts: Facts, plan: Plan) -> ByteRows | None:
    """The rows of a kernel that only moves or combines bits along its lanes; None of another one."""
    kernel, lane = facts.kernel, plan.lane
    if not lane or plan.across or plan.tile or plan.repeated or facts.raxes or kernel.row_buffers:
        return None
    if len(kernel.sections) != 1:
        return None
    varying: dict[str, Load | Compute | Cast] = {}
    stores: list[Store] = []
    kinds: dict[str, DType] = {}
    for stmt in facts.statements:
        if isinstance(stmt, Store):
            kind = facts.memory[stmt.buffer]
            if _step(stmt, facts, lane) != 1 or stmt.mode != "set" or stmt.mask is not None:
                return None
            if kinds.get(stmt.value, kind) is not kind:
                return None
            stores.append(stmt)
        elif not facts.is_pure(stmt) or lane in facts.depends_of(stmt):
            found = _kind(stmt, facts, lane, kinds)
            if found is None or not isinstance(stmt, Load | Compute | Cast):
                return None
            varying[stmt.targets[0]], kinds[stmt.targets[0]] = stmt, found
    # a value is read where it is stored: it may not have been written to since
    loads = {s.buffer for s in varying.values() if isinstance(s, Load)}
    if not stores or (len(stores) > 1 and loads & facts.may_change):
        return None
    return ByteRows(facts, lane, varying, kinds, tuple(stores))


def _kind(stmt: Statement, facts: Facts, lane: str, kinds: Mapping[str, DType]) -> DType | None:
    """The type in memory of a value that varies along the lanes; None where bits do not make it."""
    if isinstance(stmt, Load):
        kind = facts.memory[stmt.buffer]
        if _step(stmt, facts, lane) not in (1, -1) or (stmt.mask and lane in facts.depends[stmt.mask]):
            return None
        return kind if stmt.other is None or kinds.get(stmt.other, kind) is kind else None
    if not isinstance(stmt, Compute | Cast):
        return None
    of = [kinds.get(a, facts.dtypes[a]) for a in stmt.args]
    if of[0] in _SIGNED:
        # a 16-bit number that was widened is still its bits as long as only its sign changes
        widened = isinstance(stmt, Cast) and stmt.dtype in (of[0], of[0].compute) and not stmt.bitwise
        return of[0] if widened or stmt.op in ("abs", "neg") else None
    if all(kind in _BYTES for kind in of) and stmt.dtype in _BYTES:
        # numbers that are bool are logic
        logic = isinstance(stmt, Compute) and of[-1] is DType.bool and stmt.op in ("add", "sub", "mul")
        known = isinstance(stmt, Cast) or (stmt.op in _IN_LANES and not logic)
        if known:
            return stmt.dtype
    if stmt.op not in _BITWISE and stmt.op != "bitwise_not":
        return None
    return of[0] if len(set(of)) == 1 else None


def _local(name: str) -> str:
    return f"bytes_{name}"


def _step(stmt: Load | Store, facts: Facts, lane: str) -> IndexLike | None:
    """How far apart the elements of an access are along the lanes; None where indices from memory say so."""
    indirect = any(lane in facts.depends[v] for v in stmt.indirect)
    return None if indirect else coefficient(stmt.index, lane)
