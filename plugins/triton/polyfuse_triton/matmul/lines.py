"""Weights of which a byte holds two numbers that are no more than scaled, where four warps multiply together:
the instruction takes two neighbours of eight numbers from each thread, which reads sixteen bytes for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from polyfuse.ir.statements import Cast, Compute, Constant, Load, Statement
from polyfuse.ir.types import DType
from polyfuse.symbolic import coefficient, substitute
from polyfuse_triton.loops.scope import Value
from polyfuse_triton.matmul.narrow import GROUP, HALF, INSIDE
from polyfuse_triton.matmul.narrow_scope import NarrowScope

FEWEST_WARPS = 4
"""That multiply together."""
LINE = 32
"""Bytes of which a step has some, at least."""
_WIDEST = 16
"""Bytes that a thread reads at once."""


@dataclass(frozen=True)
class ScaledHalf:
    """What an operand makes of one of a byte's numbers.

    Attributes:
        load: of the byte.
        upper: whether it is the upper half.
        zero: what is subtracted: a load of a whole group, by its name, or a number.
        scale: the load that it is multiplied with then; empty without.
    """

    load: Load
    upper: bool
    zero: str | float
    scale: str


class LineScope(NarrowScope):
    """Where such an operand is computed."""

    def halves_of(
        self,
        name: str,
        body: Mapping[str, Statement],
        before: Mapping[str, Value],
        groups: Mapping[str, tuple[Value, str]],
    ) -> str | None:
        """The text of both numbers of each byte of a step, computed by pairs, where they are no more than
        scaled by groups. `groups`: what each of these has for itself, and its text.
        """

        def of_group(name: str) -> str:
            stmt = body.get(name)
            while isinstance(stmt, Cast) and not stmt.bitwise and stmt.dtype.is_float:
                name = stmt.arg
                stmt = body.get(name)
            return name if name in groups and groups[name][0].dtype is DType.bf16 else ""

        def text_of(factor: str | float) -> str:
            if isinstance(factor, str):
                return groups[factor][1]
            return f"tl.full([MBLOCK, {GROUP.upper()}BLOCK], {factor}, tl.bfloat16)"

        halves = []
        for number in (0, 1):
            self.at(tuple(body.values()), {HALF: number}, before)
            halves.append(self.half_of(name, of_group))
        return self.scaled(halves, text_of)

    def scaled(self, halves: Sequence[ScaledHalf | None], group: Callable[[str | float], str]) -> str | None:
        """The text of both numbers of all bytes of a step, in the order in which the other operand has them.
        `group`: the text of a load of what each group has for itself, or of a number.
        """
        low, high = halves
        if low is None or high is None or low.upper == high.upper or not self._is_line(low.load):
            return None
        one, other = ((h.load.buffer, h.load.index, h.zero, h.scale) for h in (low, high))
        if one != other:
            return None
        factors = f"{group(low.zero)}, {group(low.scale or 1.0)}"
        return f"scaled_lines({self._line(low.load)}, KBLOCK, {factors}, {low.upper}{self._inside()})"

    def converted(self, load: Load) -> str | None:
        """The text of signed bytes of a step that are only converted, in the order of `transposed_rows`."""
        return f"signed_words({self._line(load)}, KBLOCK{self._inside()})" if self._is_line(load) else None

    def half_of(self, name: str, of_group: Callable[[str], str]) -> ScaledHalf | None:
        """What a value makes of one of a byte's numbers, where it is no more than scaled. `of_group`: of a
        value that a whole group has for itself, the name of its load of bf16; empty for others.
        """
        zero: str | float = 0.0
        scale = ""
        subtracted = False
        while True:
            stmt = self._chosen(name)
            if isinstance(stmt, Cast) and not stmt.bitwise and stmt.dtype.is_float:
                name = stmt.arg
            elif not isinstance(stmt, Compute) or not stmt.dtype.is_float:
                return self._half(stmt, zero, scale)
            elif stmt.op == "mul" and not scale and not subtracted:
                own = [arg for arg in stmt.args if of_group(arg)]
                if len(own) != 1:
                    return None
                scale, name = of_group(own[0]), stmt.args[1 - stmt.args.index(own[0])]
            elif stmt.op == "sub" and not subtracted:
                name, other = stmt.args
                constant = self._constant(other)
                if not of_group(other) and not _is_exact(constant):
                    return None
                zero, subtracted = of_group(other) or float(constant), True
            else:
                return None

    def _half(self, stmt: Statement | None, zero: str | float, scale: str) -> ScaledHalf | None:
        """The half of a byte that a statement gives; None where it gives something else."""
        upper = False
        if isinstance(stmt, Compute) and stmt.op == "bitwise_and" and self._constant(stmt.args[1]) == 15:
            rest = self._chosen(stmt.args[0])
            if isinstance(rest, Load):
                return ScaledHalf(rest, False, zero, scale) if rest.dtype is DType.u8 else None
            stmt = rest
        if isinstance(stmt, Compute) and stmt.op == "shift_right" and self._constant(stmt.args[1]) == 4:
            stmt, upper = self._chosen(stmt.args[0]), True
        if not upper or not isinstance(stmt, Load) or stmt.dtype is not DType.u8:
            return None
        return ScaledHalf(stmt, True, zero, scale)

    def _constant(self, name: str) -> Any:
        """The number that a value always is; None for others."""
        stmt = self._chosen(name)
        if isinstance(stmt, Cast):
            return self._constant(stmt.arg)
        return stmt.value if isinstance(stmt, Constant) else None

    def _chosen(self, name: str) -> Statement | None:
        """The statement that gives a value, behind choices that are known."""
        stmt = self._known.get(name)
        while isinstance(stmt, Compute) and stmt.op == "where":
            chosen = self.value(stmt.args[0]).constant
            if chosen is None:
                return stmt
            stmt = self._known.get(stmt.args[1 if chosen else 2])
        if isinstance(stmt, Load) and stmt.mask is not None and self.value(stmt.mask).constant is True:
            return replace(stmt, mask=None, other=None)
        return stmt

    def _is_line(self, load: Load) -> bool:
        """Whether a step of each line is read, from addresses that words of sixteen bytes may have."""
        arg = next(a for a in self.kernel.args if a.name == load.buffer)
        if load.mask is not None or load.indirect or not arg.aligned or coefficient(load.index, INSIDE) != 1:
            return False
        return substitute(load.index, {INSIDE: 0}) % _WIDEST == 0

    def _line(self, load: Load) -> str:
        """Where the lines begin."""
        address = self.indexer().address(substitute(load.index, {INSIDE: 0}))
        return self.spread(address.of(self.arguments[load.buffer]), address.dims, frozenset("m"))

    def _inside(self) -> str:
        return "".join(f", {mask}" for mask in self.coordinates.mask(frozenset("m")))


def _is_exact(constant: object) -> bool:
    """Whether a number is the same in bf16."""
    return isinstance(constant, (int, float)) and abs(constant) <= 256 and float(constant).is_integer()
