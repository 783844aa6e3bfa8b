"""Reduction and scan states: how they start, take a value, and end.

A state is vectors while lanes run along the reduction axis (`across`), and then reduced to a scalar at the
end; where lanes run along a parallel axis every lane has a state of its own and none is reduced.
"""

from __future__ import annotations

from dataclasses import dataclass

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.statements import Reduce
from polyfuse.ir.types import DType
from polyfuse.kit import Writer
from polyfuse_cpp.loops.body import Frame
from polyfuse_cpp.loops.ops import literal, scalar_type, vector_type

BLOCK = 64
"""Steps of the innermost loop after which partial results are combined with the running ones."""

_COMBINE = {
    "sum": "add",
    "prod": "mul",
    "min": "minimum",
    "max": "maximum",
    "any": "bitwise_or",
    "all": "bitwise_and",
    "xor_sum": "bitwise_xor",
}
_REDUCE_LANES = {
    "sum": "reduce_add",
    "prod": "reduce_mul",
    "min": "reduce_min",
    "max": "reduce_max",
    "any": "reduce_or",
    "all": "reduce_and",
    "xor_sum": "reduce_xor",
}
_BUFFERED = ("welford", "online_softmax")
KINDS = (*_REDUCE_LANES, "argmin", "argmax", *_BUFFERED)
"""Kinds that have a text."""


def identity(kind: str, dtype: DType) -> str:
    """The value that a reduction starts from."""
    if dtype is DType.bool:
        return literal(kind in ("all", "prod", "min"), dtype)
    if kind in ("sum", "xor_sum", "any"):
        return literal(0, dtype)
    if kind == "prod":
        return literal(1, dtype)
    if kind == "all":
        return literal(-1 if dtype.is_signed else (1 << dtype.itemsize * 8) - 1, dtype)
    lowest = kind in ("max", "argmax")
    if dtype.is_float:
        return literal(float("-inf") if lowest else float("inf"), dtype)
    bits = dtype.itemsize * 8
    if dtype.is_signed:
        return literal(-(1 << bits - 1) if lowest else (1 << bits - 1) - 1, dtype)
    return literal(0 if lowest else (1 << bits) - 1, dtype)


def combine_text(kind: str, left: str, right: str) -> str:
    """One step of a plain reduction."""
    return f"{_COMBINE[kind]}({left}, {right})"


@dataclass
class Reducer:
    """The state of one ``reduce`` statement.

    Attributes:
        stmt: the statement.
        across: whether lanes run along the reduction axis.
        vector: whether the state is vectors.
        copies: states side by side.
        ordered: whether an arg-reduction's position grows from step to step, so that ties need no test.
        blocked: whether partial sums are added to running ones after every block.
    """

    stmt: Reduce
    across: bool
    vector: bool
    copies: int
    ordered: bool = False
    blocked: bool = False
    narrow: bool = False

    @property
    def kind(self) -> str:
        """Its kind, of `ops.REDUCTIONS`."""
        return self.stmt.kind

    @property
    def buffered(self) -> bool:
        """Whether values wait in a buffer until a block is full."""
        return self.kind in _BUFFERED or self.kind in ("welford_merge", "softmax_merge")

    @property
    def merges(self) -> bool:
        """Whether the operands are partial results of another pass."""
        return self.kind in ("welford_merge", "softmax_merge")

    @property
    def type(self) -> str:
        """C++ type of the (first) state."""
        dtype = self.stmt.dtype
        return vector_type(dtype) if self.vector else scalar_type(dtype)

    def _position_type(self) -> str:
        kind = "i32" if self.narrow else "i64"
        return f"v{kind}" if self.vector else kind

    def _name(self, part: str, copy: int = 0) -> str:
        plain = f"{part}_{self.stmt.targets[0]}"
        return plain if copy == 0 else f"{plain}_{copy}"

    def _start(self) -> str:
        return f"fill<{self.type}>({identity(self.kind, self.stmt.dtype)})"

    def declare(self, out: Writer) -> None:
        """Before all loops."""
        for copy in range(self.copies):
            if self.kind in ("welford", "welford_merge"):
                out.line(f"moments<{self.type}> {self._name('all', copy)}{{}};")
            elif self.kind in ("online_softmax", "softmax_merge"):
                out.line(f"online_pair<{self.type}> {self._name('all', copy)} = online_empty<{self.type}>();")
            elif self.kind in ("argmin", "argmax"):
                out.line(f"auto {self._name('acc', copy)} = {self._start()};")
                kind, most = ("i32", "2147483647") if self.narrow else ("i64", "9223372036854775807LL")
                first = "0" if self.ordered else most
                start = f"fill<{self._position_type()}>({kind}({first}))"
                out.line(f"{self._position_type()} {self._name('pos', copy)} = {start};")
            else:
                out.line(f"{self.type} {self._name('acc', copy)} = {self._start()};")
                if self.blocked:
                    out.line(f"{self.type} {self._name('all', copy)} = {self._start()};")
            if self.buffered and not self.merges:
                out.line(f"{self.type} {self._name('wait', copy)}[{BLOCK}];")

    def step(self, frame: Frame, copy: int, waiting: str) -> None:
        """Take the value(s) of one copy. `waiting` is the text of the number of steps since the block
        began.
        """
        out = frame.out
        mask = f"first_n<Vec>({frame.tail})" if frame.tail and self.across else ""
        value = frame.text(self.stmt.args[0], self.vector, copy)
        at = copy if self.copies > 1 else 0
        if self.merges:
            rest = [frame.text(a, self.vector, copy) for a in self.stmt.args]
            name = self._name("all", at)
            if self.kind == "welford_merge":
                out.line(f"{name} = welford_combine({name}, moments<{self.type}>{{{', '.join(rest)}}});")
            else:
                out.line(f"{name} = online_combine({name}, online_pair<{self.type}>{{{', '.join(rest)}}});")
        elif self.kind == "welford":
            if mask:
                name = self._name("all", at)
                out.line(f"{name} = welford_add_masked({name}, {value}, {mask});")
            else:
                out.line(f"{self._name('wait', at)}[{waiting}] = {value};")
        elif self.kind == "online_softmax":
            if mask:
                low = literal(float("-inf"), self.stmt.dtype)
                out.line(
                    f"{self._name('all', at)} = online_take({self._name('all', at)}, "
                    f"where({mask}, {value}, splat<Vec>({low})));"
                )
            else:
                out.line(f"{self._name('wait', at)}[{waiting}] = {value};")
        elif self.kind in ("argmin", "argmax"):
            position = frame.text(self.stmt.args[1], self.vector, copy, narrow=self.narrow)
            better = f"{'first' if self.ordered else 'tied'}_{self.kind[3:]}"
            acc, pos = self._name("acc", at), self._name("pos", at)
            out.line(f"{better}({acc}, {pos}, {value}, {position}{f', {mask}' if mask else ''});")
        else:
            acc = self._name("acc", at)
            new = combine_text(self.kind, acc, value)
            out.line(f"{acc} = {f'where({mask}, {new}, {acc})' if mask else new};")

    def flush(self, out: Writer, waiting: str) -> None:
        """A block has ended, or a part of one."""
        for copy in range(self.copies):
            total = self._name("all", copy)
            if self.merges:
                continue
            if self.kind == "welford":
                out.line(f"welford_take({total}, {self._name('wait', copy)}, int({waiting}));")
            elif self.kind == "online_softmax":
                out.line(f"online_take({total}, {self._name('wait', copy)}, int({waiting}));")
            elif self.blocked:
                acc = self._name("acc", copy)
                out.line(f"{total} = {combine_text(self.kind, total, acc)};")
                out.line(f"{acc} = {self._start()};")

    def finish(self, frame: Frame) -> None:
        """After all loops: join copies and lanes, and name the results in `frame`."""
        out, stmt = frame.out, self.stmt
        count = self.copies
        if self.across and count > 1:
            for step in (4, 2, 1):
                for copy in range(step):
                    if copy + step < count:
                        self._combine(out, copy, copy + step)
            count = 1
        results: list[list[str]] = []
        for copy in range(count):
            total = self._name("all" if self.buffered or self.blocked else "acc", copy)
            over_lanes = self.across and self.vector
            if self.kind in ("welford", "welford_merge"):
                if over_lanes:
                    out.line(f"const auto end_{total} = welford_reduce({total});")
                    total = f"end_{total}"
                results.append([f"{total}.mean", f"{total}.m2", f"{total}.count"])
            elif self.kind in ("online_softmax", "softmax_merge"):
                if over_lanes:
                    out.line(f"const auto end_{total} = online_reduce({total});")
                    total = f"end_{total}"
                results.append([f"{total}.max", f"{total}.sum"])
            elif self.kind in ("argmin", "argmax"):
                position = self._name("pos", copy)
                if over_lanes:
                    out.line(f"const auto end_{total} = reduce_arg{self.kind[3:]}({total}, {position});")
                    results.append([f"end_{total}.value", f"end_{total}.index"])
                else:
                    results.append(
                        [total, f"i64({position})" if not self.vector else f"cast<i64>({position})"]
                    )
            elif over_lanes:
                results.append([f"{_REDUCE_LANES[self.kind]}({total})"])
            else:
                results.append([total])
        frame.bind_results(stmt.targets, results, self.vector and not self.across)

    def _combine(self, out: Writer, left: int, right: int) -> None:
        name = "all" if self.buffered or self.blocked else "acc"
        a, b = self._name(name, left), self._name(name, right)
        if self.kind in ("welford", "welford_merge"):
            out.line(f"{a} = welford_combine({a}, {b});")
        elif self.kind in ("online_softmax", "softmax_merge"):
            out.line(f"{a} = online_combine({a}, {b});")
        elif self.kind in ("argmin", "argmax"):
            pos_a, pos_b = self._name("pos", left), self._name("pos", right)
            out.line(f"tied_{self.kind[3:]}({a}, {pos_a}, {b}, {pos_b});")
        elif self.kind in _COMBINE:
            out.line(f"{a} = {combine_text(self.kind, a, b)};")
        else:
            raise UnsupportedError(
                f"the reduction {self.kind} is unknown", "add it to the code generator's table"
            )
