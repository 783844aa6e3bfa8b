"""What a kernel that is a shared object says about itself."""

from __future__ import annotations

import json
from dataclasses import dataclass

from polyfuse.base.digest import stable_json
from polyfuse.symbolic import IndexLike, product, python_text
from polyfuse_cutlass.build.meta import MetaArg
from polyfuse_cutlass.problem import Matrix, Problem, extent


@dataclass(frozen=True)
class Expression:
    """A number for the entry point: a Python expression over size arguments, and the argument (by number) to
    whose address it is added; -1 for none.
    """

    text: str
    base: int = -1


@dataclass(frozen=True)
class LinkedMeta:
    """The launch side of one kernel. `Source.meta` is its text.

    Attributes:
        args: in calling order.
        numbers: what the entry point is called with besides.
        empty: whether nothing is to be done, as an expression over size arguments.
        architectures: for which machine code is made, such as `90a`; `80+` also leaves code that newer GPUs
            translate.
        fuse: whether multiplications and additions may be contracted.
    """

    args: tuple[MetaArg, ...]
    numbers: tuple[Expression, ...]
    empty: str
    architectures: tuple[str, ...]
    fuse: bool = True

    def text(self) -> str:
        """The canonical text, from which `parse` makes an equal value."""
        return stable_json(self)

    @staticmethod
    def parse(text: str) -> LinkedMeta:
        """Read what `text` wrote."""
        values = json.loads(text)
        return LinkedMeta(
            tuple(MetaArg(**one) for one in values["args"]),
            tuple(Expression(**one) for one in values["numbers"]),
            values["empty"],
            tuple(values["architectures"]),
            values["fuse"],
        )


def meta_of(problem: Problem, architectures: tuple[str, ...]) -> LinkedMeta:
    """How the matmul of `problem`, with at most one batch axis, is launched."""
    sizes = [extent(problem.rows), extent(problem.columns), extent(problem.depth)]
    batch = product(extent(a) for a in problem.batch)
    numbers = [Expression(python_text(size)) for size in (*sizes, batch)]
    for matrix in (problem.left, problem.right):
        numbers += _operand(problem, matrix)
    return LinkedMeta(
        args=tuple(MetaArg(arg.name, arg.kind != "size") for arg in problem.kernel.args),
        numbers=tuple(numbers),
        empty=f"0 in ({python_text(sizes[0])}, {python_text(sizes[1])}, {python_text(batch)})",
        architectures=architectures,
        fuse=problem.kernel.numerics != "eager",
    )


def _operand(problem: Problem, matrix: Matrix) -> list[Expression]:
    """Address, and steps between rows, depths and matrices."""
    number = [arg.name for arg in problem.kernel.args].index(matrix.arg.name)
    steps: list[IndexLike] = [matrix.row, matrix.depth, matrix.batch[0] if matrix.batch else 0]
    return [
        Expression(python_text(matrix.offset * matrix.dtype.itemsize), number),
        *(Expression(python_text(step)) for step in steps),
    ]
