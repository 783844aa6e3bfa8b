"""What the texts of both operands of a matmul share: loops over a depth, addresses, computed values."""

from __future__ import annotations

from dataclasses import dataclass

from polyfuse.kit import Writer
from polyfuse_cpp.loops.body import Frame
from polyfuse_cpp.loops.odometer import start_at
from polyfuse_cpp.matmul.paths import MatmulPlan
from polyfuse_cpp.matmul.problem import Matmul, MatrixOperand
from polyfuse_cpp.memory.address import index_text


@dataclass
class OperandText:
    """One operand in the text of a matmul."""

    matmul: Matmul
    plan: MatmulPlan
    lanes: int
    out: Writer
    features: set[str]

    def __post_init__(self) -> None:
        self.facts = self.matmul.facts
        self.paired = self.plan.path.paired

    @property
    def operand(self) -> MatrixOperand:
        """The operand."""
        raise NotImplementedError

    def _start(self, axes: tuple[str, ...], position: str, *, fixed: bool = True) -> None:
        start_at(axes, self.facts.sizes, position, self.out, fixed=fixed)

    def _address(self, depth: str, column: str = "") -> str:
        """Where an operand that is a plain load is, at some step of the depth (and column)."""
        operand = self.operand
        assert operand.index is not None
        # where the depth has several axes, they lie one inside the other: the last one counts on
        names = dict.fromkeys(self.matmul.depth, "0")
        names |= dict.fromkeys(self.matmul.moving_depth[-1:], depth)
        if column:
            names[operand.axes[-1]] = column
        return f"{operand.buffer} + {index_text(operand.index, names)}"

    def frame(self, lane: str | None, copies: int = 1, tail: str | None = None) -> Frame:
        """A level of the loop nest around statements."""
        return Frame(
            facts=self.facts,
            out=self.out,
            lane=lane,
            lanes=self.lanes,
            copies=copies,
            tail=tail,
            features=self.features,
        )

    def _values(self, lane: str | None, copies: int = 1, tail: str | None = None) -> list[str]:
        """Text of computed values, in the type of the sums."""
        computed, kind = self.operand.operand, self.matmul.dtype
        frame = self.frame(lane, copies, tail)
        for stmt in computed.body:
            frame.emit(stmt)
        texts = [frame.text(computed.value, lane is not None, copy) for copy in range(copies)]
        return texts if computed.dtype.compute is kind else [f"cast<{kind}>({t})" for t in texts]
