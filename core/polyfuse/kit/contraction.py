"""Matmuls recognised in a kernel: which axes are rows, columns, batch and depth, what makes the two
operands, and what is done with each result.

A kernel is a contraction if its one loop carries nothing but a reduction of one of the kinds in
`polyfuse.ir.ops.CONTRACTIONS`, and each operand varies along some of its axes only: such operands are
read as tiles that many results share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from polyfuse.ir.kernel import Kernel
from polyfuse.ir.ops import CONTRACTIONS
from polyfuse.ir.statements import Load, Reduce, Scan, Statement, Store
from polyfuse.ir.types import DType
from polyfuse.kit.facts import KernelFacts
from polyfuse.symbolic import Index, IndexLike, axis_name


def backward_slice(
    statements: Sequence[Statement],
    names: Iterable[str],
    leave_out: Callable[[Statement], bool] = lambda stmt: isinstance(stmt, Reduce),
) -> tuple[Statement, ...]:
    """The statements among some that values are computed from, in order.

    Args:
        leave_out: what is neither listed nor followed to its operands; reductions, whose results are known
            from elsewhere, where nothing is given.
    """
    wanted = set(names)
    found: list[Statement] = []
    for stmt in reversed(statements):
        if wanted.intersection(stmt.targets) and not leave_out(stmt):
            wanted.update(stmt.args)
            found.append(stmt)
    return tuple(reversed(found))


_LONG = 32
"""Steps of a depth that are worth reading by themselves."""
_GRAIN = 128
"""Steps of which each part has a multiple, at most."""
_LONGER, _LONGEST = 1.1, 1.125
"""How much longer than the mean a part may be, and one of an odd number of parts, which seldom are equal."""


def divided_depth(sizes: Sequence[IndexLike], parts: int) -> tuple[int, int]:
    """The position of the axis of a depth that is divided into some parts, and the steps of each part;
    (-1, 0) where there is none. Of the first axis, the last part may have fewer.

    It is the first one, but for an odd count in each part where a later axis has an even count of 32 or more.
    """
    steps = [(k, _steps_each(n, parts), n) for k, n in enumerate(sizes) if isinstance(n, int)]
    found = [(k, each) for k, each, n in steps if each and (k == 0 or each * parts == n)]
    even = [(k, each) for k, each in found if each % 2 == 0 and (k == found[0][0] or each >= _LONG)]
    return (even or found or [(-1, 0)])[0]


def _steps_each(size: int, parts: int) -> int:
    """Steps of each part but the last one: a multiple of the largest power of two that makes no part much
    longer than others. 0 where there are too few.
    """
    grain, most = min(_GRAIN, size & -size), _LONGEST if parts % 2 else _LONGER
    while grain:
        each = -(-size // (parts * grain)) * grain
        if each * parts <= most * size and each * (parts - 1) < size:
            return each
        grain //= 2
    return 0


@dataclass(frozen=True)
class Operand:
    """One operand.

    Attributes:
        body: the statements that compute it at one point, in order; those that do not depend on the depth
            axes are among them.
        value: the name of its value.
        dtype: its type.
    """

    body: tuple[Statement, ...]
    value: str
    dtype: DType

    @property
    def plain(self) -> Load | None:
        """The load that is all there is to the operand: no mask, no indirect index, no arithmetic. None where
        there is more to it.
        """
        match self.body:
            case (Load(indirect=(), mask=None) as load,):
                return load
        return None


@dataclass(frozen=True)
class Contraction:
    """A kernel as a matrix multiplication.

    Attributes:
        batch: parallel axes along which both operands vary, or neither.
        rows, columns: parallel axes along which only the left, only the right operand varies. Either may be
            empty: the matmul of a matrix and a vector, or of two vectors.
        depth: the reduction axes.
        left, right: the operands.
        kind: `dot`, or another one of `CONTRACTIONS`.
        accumulator: the name of the sum.
        dtype: its type.
        epilogue: the statements that use it, with all else that is done once for each result, in order.
        hints: example extent of every axis, by name.
    """

    batch: tuple[Index, ...]
    rows: tuple[Index, ...]
    columns: tuple[Index, ...]
    depth: tuple[Index, ...]
    left: Operand
    right: Operand
    kind: str
    accumulator: str
    dtype: DType
    epilogue: tuple[Statement, ...]
    hints: Mapping[str, int]

    def extent(self, axes: Iterable[Index]) -> int:
        """How many points some axes span together, for the example sizes."""
        return prod(self.hints[axis_name(a)] for a in axes)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Example extents: batch, rows, columns, depth."""
        groups = (self.batch, self.rows, self.columns, self.depth)
        batch, rows, columns, depth = (self.extent(axes) for axes in groups)
        return batch, rows, columns, depth


def match(kernel: Kernel) -> Contraction | None:
    """`kernel` as a contraction, or None if it is none."""
    at, matmuls = _matmuls(kernel)
    return _contraction(kernel, at, matmuls, 0) if len(matmuls) == 1 else None


def match_two(kernel: Kernel) -> tuple[Contraction, Contraction] | None:
    """A kernel as two contractions over the same axes that have an operand in common, or None if it is none.
    Both have the whole epilogue.
    """
    at, matmuls = _matmuls(kernel)
    if len(matmuls) != 2:
        return None
    first, second = (_contraction(kernel, at, matmuls, number) for number in range(2))
    if first is None or second is None or first.kind != second.kind or first.dtype is not second.dtype:
        return None
    if (first.left == second.left) == (first.right == second.right):
        return None
    same = all(getattr(first, name) == getattr(second, name) for name in ("batch", "rows", "columns"))
    return (first, second) if same else None


def _contraction(kernel: Kernel, at: int, matmuls: Sequence[Reduce], number: int) -> Contraction | None:
    """One of the matmuls in the loop of section `at`."""
    matmul, loop = matmuls[number], kernel.sections[at].body
    before = [stmt for section in kernel.sections[:at] for stmt in section.body]
    after = [stmt for section in kernel.sections[at + 1 :] for stmt in section.body]
    # a value of the loop that something else than a matmul uses would have to be computed twice
    others = (stmt for stmt in loop if isinstance(stmt, (Store, Reduce, Scan)))
    if any(all(stmt is not one for one in matmuls) for stmt in others):
        return None
    left, right = (_operand([*before, *loop], name) for name in matmul.args)
    facts = KernelFacts.of(kernel)
    used = [frozenset[str]().union(*map(facts.depends_of, side.body)) for side in (left, right)]
    if any(names.isdisjoint(facts.raxes) for names in used):
        return None
    groups: dict[tuple[bool, bool], list[Index]] = {}
    for axis in kernel.axes:
        name = axis_name(axis)
        groups.setdefault((name in used[0], name in used[1]), []).append(axis)
    both = {id(axis) for axis in (*groups.get((True, True), ()), *groups.get((False, False), ()))}
    return Contraction(
        tuple(a for a in kernel.axes if id(a) in both),
        tuple(groups.get((True, False), ())),
        tuple(groups.get((False, True), ())),
        kernel.raxes,
        left,
        right,
        matmul.kind,
        matmul.targets[0],
        matmul.dtype,
        _epilogue(before, after),
        facts.hints,
    )


def _matmuls(kernel: Kernel) -> tuple[int, tuple[Reduce, ...]]:
    """The one loop's section and its matmuls, all that it carries; none where there is more."""
    looped = [i for i, section in enumerate(kernel.sections) if section.looped]
    if len(looped) != 1 or kernel.row_buffers:
        return 0, ()
    carried = [s for s in kernel.sections[looped[0]].body if isinstance(s, (Reduce, Scan))]
    matmuls = tuple(s for s in carried if isinstance(s, Reduce) and s.kind in CONTRACTIONS)
    return looped[0], matmuls if len(matmuls) == len(carried) else ()


def _operand(statements: Sequence[Statement], name: str) -> Operand:
    body = backward_slice(statements, [name])
    dtype = next(stmt.dtype for stmt in body if name in stmt.targets)
    return Operand(body, name, dtype)


def _epilogue(before: Sequence[Statement], after: Sequence[Statement]) -> tuple[Statement, ...]:
    """All that is stored, and what it needs; the accumulator is known from elsewhere."""
    statements = [*before, *after]
    stores = [stmt for stmt in statements if stmt.op == "store"]
    needed = {id(s) for s in backward_slice(statements, [name for stmt in stores for name in stmt.args])}
    return tuple(s for s in statements if s.op == "store" or id(s) in needed)
