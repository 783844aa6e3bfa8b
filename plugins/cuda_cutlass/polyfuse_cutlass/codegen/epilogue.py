"""The epilogue as one CUDA function: from a few sums that lie side by side to what is stored.

A value that is the same for all neighbours is a scalar, any other an array with an element for each. Loads
and stores of neighbours in memory become one access.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeGuard

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.ops import GROUP_MODES, SCALAR_OPS
from polyfuse.ir.statements import Cast, Constant, IndexValue, Load, Statement, Store, indices
from polyfuse.ir.types import DType
from polyfuse.kit import KernelFacts, is_multiple
from polyfuse.symbolic import Index, IndexLike, axis, axis_name, coefficient, free_axes, substitute
from polyfuse_cutlass.codegen.ops import cast_text, literal, operation_text, unsupported_op
from polyfuse_cutlass.codegen.text import index_text
from polyfuse_cutlass.problem import Problem, extent

_WIDEST = 16
_MOST = 8
_REGISTER = 4


@dataclass(frozen=True)
class Vector:
    """What a thread finishes at once: `count` neighbours along the rows or along the columns."""

    along_rows: bool
    count: int


def is_group_store(stmt: Statement) -> TypeGuard[Store]:
    """Whether a statement combines groups of results before it stores them."""
    return isinstance(stmt, Store) and stmt.mode in GROUP_MODES


def refusal(statements: Iterable[Statement]) -> str:
    """Why an epilogue cannot be expressed, or an empty text."""
    types: dict[str, DType] = {}
    for stmt in statements:
        if isinstance(stmt, Store):
            if stmt.mode != "set" and not is_group_store(stmt):
                return f"a store combines with what is there ({stmt.mode})"
        elif stmt.op in SCALAR_OPS:
            reason = unsupported_op(stmt.op, types.get(stmt.args[-1], stmt.dtype))
            if reason:
                return reason
        elif stmt.op not in ("const", "cast", "bitcast", "index", "size", "load"):
            return f"{stmt.op} is not computed in an epilogue"
        for name in stmt.targets:
            types[name] = stmt.dtype
    return ""


def heavy(problem: Problem) -> bool:
    """Whether an epilogue computes so much that copies of its text cost more than waiting does."""
    return sum(SCALAR_OPS[s.op].slow for s in problem.epilogue if s.op in SCALAR_OPS) > 0


def vector_of(problem: Problem) -> Vector:
    """What a thread finishes at once: as much as the first store writes in one access.

    Raises:
        UnsupportedError: nothing is stored.
    """
    stores = [s for s in problem.epilogue if isinstance(s, Store)]
    first = next((s for s in stores if not is_group_store(s)), None)
    if first is None and stores:
        # what groups of results come to is all that is stored
        return Vector(False, next(n for n in (_MOST, 4, 2, 1) if is_multiple(extent(problem.columns), n)))
    if first is None:
        raise UnsupportedError("nothing is stored", "")
    for along_rows, one in ((False, problem.columns), (True, problem.rows)):
        if one is None or first.indirect or coefficient(first.index, axis_name(one)) != 1:
            continue
        count = min(_MOST, _WIDEST // first.dtype.itemsize)
        while count > 1 and not _lined_up(problem, first.buffer, first.index, one, count):
            count //= 2
        return Vector(along_rows, count)
    return Vector(problem.columns is None, 1)


def _lined_up(problem: Problem, buffer: str, index: IndexLike, one: Index, count: int) -> bool:
    """Whether `count` neighbours along an axis are one access, wherever a group of them begins."""
    arg = next(a for a in problem.kernel.args if a.name == buffer)
    if not arg.aligned or coefficient(index, axis_name(one)) != 1 or not is_multiple(extent(one), count):
        return False
    return is_multiple(substitute(index, {axis_name(one): count * axis("group", extent(one))}), count)


def reduced_parameter(problem: Problem) -> str:
    """The last parameter of `finish`, by which it hands out what is combined over points; empty without."""
    return ", Reduced& reduced" if any(map(is_group_store, problem.epilogue)) else ""


def epilogue_text(problem: Problem, vector: Vector) -> str:
    """The function `finish`, and `fetch` for what it needs from memory besides the sums, wherever that can be
    prefetched for before they are there. The first may be called without the second.
    """
    reduced = reduced_parameter(problem)
    writer = EpilogueWriter(problem, vector)
    for stmt in problem.epilogue:
        writer.statement(stmt)
    return "\n".join(
        [
            f"constexpr int FETCHED = {writer.prefetched.bytes};  // bytes",
            *writer.prefetched.text(problem, "Fetched", "fetch", "xy"),
            "PF_INLINE void finish(const Args& args, int batch, int x, int y, const Acc (&sum)[VEC], "
            f"const Fetched& fetched{reduced}) {{",
            *(f"  {line}" for line in (*axis_values(problem), *writer.lines)),
            "}",
            "PF_INLINE void finish(const Args& args, int batch, int x, int y, "
            f"const Acc (&sum)[VEC]{reduced}) {{",
            "  Fetched fetched;",
            "  fetch(args, batch, x, y, fetched);",
            f"  finish(args, batch, x, y, sum, fetched{', reduced' if reduced else ''});",
            "}",
        ]
    )


def axis_values(problem: Problem, known: str = "xy") -> list[str]:
    """The axes' values, from the numbers of batch, row (`x`) and column (`y`), as far as they are known."""
    lines = ["i64 rest = batch;"] if problem.batch else []
    names = sizes(problem)
    for number, one in enumerate(reversed(problem.batch)):
        name, size = f"a_{axis_name(one)}", index_text(extent(one), names)
        last = number + 1 == len(problem.batch)
        lines.append(f"const i64 {name} = {'rest' if last else f'rest % ({size})'};")
        if not last:
            lines.append(f"rest /= {size};")
    for value, tiled in (("x", problem.rows), ("y", problem.columns)):
        if tiled is not None and value in known:
            lines.append(f"const i64 a_{axis_name(tiled)} = {value};")
    return lines


def names_of(problem: Problem) -> dict[str, str]:
    """What axes and size arguments are called."""
    axes = (*problem.batch, *(a for a in (problem.rows, problem.columns) if a is not None))
    return {**sizes(problem), **{axis_name(a): f"a_{axis_name(a)}" for a in axes}}


def sizes(problem: Problem) -> dict[str, str]:
    """What size arguments are called."""
    return {arg.name: f"args.{arg.name}" for arg in problem.kernel.args if arg.kind == "size"}


@dataclass
class Prefetch:
    """What is prefetched of memory before sums are there.

    Attributes:
        name: what a structure of it is called where it is used.
        fields: of that structure.
        lines: that fill it.
        bytes: that it holds.
    """

    name: str
    fields: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    bytes: int = 0

    def text(self, problem: Problem, structure: str, function: str, known: str) -> list[str]:
        """The structure, and the function that fills it, which takes the batch and what else is `known`."""
        given = "".join(f"int {name}, " for name in known)
        return [
            f"struct {structure} {{",
            *(f"  {one};" for one in self.fields),
            "};",
            f"PF_INLINE void {function}(const Args& args, int batch, {given}{structure}& {self.name}) {{",
            *(f"  {line}" for line in (*axis_values(problem, known), *self.lines) if self.lines),
            "}",
        ]


@dataclass
class EpilogueWriter:
    """What becomes of statements.

    Attributes:
        lines: of `finish`.
        prefetched: what is prefetched for beforehand.
        reductions: how many stores combine groups of results.
    """

    problem: Problem
    vector: Vector
    lines: list[str] = field(default_factory=list)
    prefetched: Prefetch = field(default_factory=lambda: Prefetch("fetched"))
    types: dict[str, DType] = field(default_factory=dict)
    varies: dict[str, bool] = field(default_factory=dict)
    reductions: int = 0

    def __post_init__(self) -> None:
        problem = self.problem
        one = problem.rows if self.vector.along_rows else problem.columns
        self.along = axis_name(one) if one is not None else ""
        self.axis = one
        self.types[problem.accumulator] = problem.dtype
        self.varies[problem.accumulator] = True
        self.args = {arg.name: arg for arg in problem.kernel.args}
        self.names = names_of(problem)
        self.changed = KernelFacts.of(problem.kernel).may_change

    def is_read_only(self, buffer: str) -> bool:
        """Whether nothing writes to a buffer while the kernel runs."""
        return self.args[buffer].kind == "in" and buffer not in self.changed

    def value(self, name: str) -> str:
        """A value at neighbour `j`."""
        if name == self.problem.accumulator:
            return "sum[j]"
        return f"v_{name}[j]" if self.varies[name] else f"v_{name}"

    def index(self, index: IndexLike, indirect: tuple[str, ...], each: bool) -> str:
        """An index at neighbour `j`, or at the first of them."""
        names: Mapping[str, str] = self.names
        if each and self.along:
            names = {**names, self.along: f"({names[self.along]} + j)"}
        values = {f"@{i}": f"(i64){self.value(name)}" for i, name in enumerate(indirect)}
        return index_text(index, {**names, **values})

    def statement(self, stmt: Statement) -> None:
        """One statement."""
        if is_group_store(stmt):
            value = cast_text(self.value(stmt.value), self.types[stmt.value], DType.f32)
            self.lines += [
                "#pragma unroll",
                f"for (int j = 0; j < VEC; ++j) reduced.of[{self.reductions}][j] = {value};",
            ]
            self.reductions += 1
            return
        if isinstance(stmt, Store):
            self.store(stmt)
            return
        (target,) = stmt.targets
        varies = any(self.varies[name] for name in stmt.args) or any(
            self.along in free_axes(index) for index in indices(stmt)
        )
        self.types[target], self.varies[target] = stmt.dtype, varies
        if isinstance(stmt, Load) and self._fetched(stmt, varies):
            return
        if isinstance(stmt, Load) and varies and self.packed(stmt):
            kind = self.args[stmt.buffer].dtype.value
            read_only = str(self.is_read_only(stmt.buffer)).lower()
            at = self.index(stmt.index, (), False)
            self.lines.append(f"Pack<{kind}, VEC> p_{target};")
            self.lines.append(f"read<VEC, {read_only}>(args.{stmt.buffer} + ({at}), p_{target});")
            self._define(target, stmt.dtype, True, f"p_{target}.item[j]")
            return
        self._define(target, stmt.dtype, varies, self._text(stmt))

    def _fetched(self, stmt: Load, varies: bool) -> bool:
        """Let `fetch` load it, if it can do so in one access."""
        buffer, target = stmt.buffer, stmt.target
        if stmt.args or self.args[buffer].kind != "in" or (varies and not self.packed(stmt)):
            return False
        kind = self.args[buffer].dtype
        at = self.index(stmt.index, (), False)
        prefetched = self.prefetch_for(varies)
        if varies:
            prefetched.fields.append(f"PackedWords<{kind.value}, VEC> p_{target}")
            read_only = "" if self.is_read_only(buffer) else ", false"
            prefetched.lines.append(
                f"load_words<VEC{read_only}>(args.{buffer} + ({at}), {prefetched.name}.p_{target});"
            )
            self.lines.append(
                f"const Pack<{kind.value}, VEC> p_{target} = {prefetched.name}.p_{target}.pack();"
            )
            self._define(target, stmt.dtype, True, f"p_{target}.item[j]")
        else:
            prefetched.fields.append(f"{kind.value} v_{target}")
            element = f"args.{buffer}[{at}]"
            read = f"read_only(&{element})" if self.is_read_only(buffer) else element
            prefetched.lines.append(f"{prefetched.name}.v_{target} = {read};")
            self._define(target, stmt.dtype, False, f"{prefetched.name}.v_{target}")
        prefetched.bytes += max(_REGISTER, kind.itemsize * (self.vector.count if varies else 1))
        return True

    def prefetch_for(self, varies: bool) -> Prefetch:
        """With what a value is prefetched for that varies among neighbours, or does not."""
        return self.prefetched

    def _define(self, target: str, dtype: DType, varies: bool, text: str) -> None:
        if varies:
            self.lines += [
                f"{dtype.value} v_{target}[VEC];",
                "#pragma unroll",
                f"for (int j = 0; j < VEC; ++j) v_{target}[j] = {text};",
            ]
        else:
            self.lines.append(f"const {dtype.value} v_{target} = {text};")

    def _text(self, stmt: Statement) -> str:
        values = [self.value(name) for name in stmt.args]
        match stmt:
            case Constant():
                return literal(stmt.value, stmt.dtype)
            case IndexValue():
                return self.index(stmt.index, (), True)
            case Cast(bitwise=True):
                return f"same_bits<{stmt.dtype.value}>({values[0]})"
            case Cast():
                return cast_text(values[0], self.types[stmt.arg], stmt.dtype)
            case Load():
                at = f"args.{stmt.buffer}[{self.index(stmt.index, stmt.indirect, True)}]"
                read = f"read_only(&{at})" if self.is_read_only(stmt.buffer) else at
                return read if stmt.mask is None else f"{values[-2]} ? {read} : {values[-1]}"
        return operation_text(stmt.op, self.types[stmt.args[-1]], values)

    def packed(self, stmt: Load | Store) -> bool:
        """Whether an access of neighbours is one."""
        if stmt.indirect or stmt.mask is not None or self.vector.count == 1 or self.axis is None:
            return False
        return _lined_up(self.problem, stmt.buffer, stmt.index, self.axis, self.vector.count)

    def store(self, stmt: Store) -> None:
        """What becomes of a result."""
        buffer = stmt.buffer
        kind = self.args[buffer].dtype
        value = cast_text(self.value(stmt.value), self.types[stmt.value], kind)
        if self.packed(stmt):
            self.lines += [
                "{",
                f"  Pack<{kind.value}, VEC> p;",
                "#pragma unroll",
                f"  for (int j = 0; j < VEC; ++j) p.item[j] = {value};",
                f"  write<VEC>(args.{buffer} + ({self.index(stmt.index, (), False)}), p);",
                "}",
            ]
            return
        at = self.index(stmt.index, stmt.indirect, True)
        condition = "" if stmt.mask is None else f"if ({self.value(stmt.mask)}) "
        self.lines += [
            "#pragma unroll",
            f"for (int j = 0; j < VEC; ++j) {condition}args.{buffer}[{at}] = {value};",
        ]
