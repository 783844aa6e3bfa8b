"""Checks of what data have to be: indices in range, above all.

A check is a `Scatter` of the mode `ops.CHECK_MODE` over all points of an index tensor, whatever of them is
used later, so that exactly what eager mode refuses is refused. It reads what the read or write beside it
reads, so that the scheduler makes one kernel of both where their loops agree. Where a read is done, its index
is limited to what exists besides: memory out of range is never touched.

On the CPU, the checks of a graph share a status, which the host program looks at; other devices stop by
themselves. Backward graphs use the indices of their forwards, which were checked there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from polyfuse.ir.expr import Expr, const, index_value, loads, walk
from polyfuse.ir.nodes import RAISE, Buffer, Collective, ExternCall, Node, Origin, Scatter
from polyfuse.ir.ops import CHECK_MODE
from polyfuse.ir.types import DType
from polyfuse.lowering.indexing.error_texts import ErrorText, error_text_for
from polyfuse.rewrite import make
from polyfuse.rewrite.algebra import is_const
from polyfuse.runtime.devices.registry import device_of
from polyfuse.symbolic import (
    Index,
    IndexLike,
    as_atom,
    axis_name,
    axis_size,
    bounds,
    free_axes,
    is_less,
    is_nonnegative,
)

_SAID = 1 << 62
"""What makes the number that is stored differ from zero, whatever the index is."""


@dataclass
class Checks:
    """The checks of one graph.

    Attributes:
        enabled: whether there are any; off while a function is computed inside a kernel.
    """

    enabled: bool
    rows: list[tuple[str, str, IndexLike]] = field(default_factory=list)
    status: str = ""
    _done: dict[tuple[Expr, Expr], None] = field(default_factory=dict)

    def add(
        self,
        ctx: Any,
        wrong: Expr,
        value: Expr,
        axes: Sequence[IndexLike],
        own: int,
        size: IndexLike,
        error: ErrorText,
        device: str,
    ) -> None:
        """Raise where `wrong` holds at some point of `axes`; the message may tell `value` and `size`. Of the
        first `own` axes, those are looped over that matter, and of the others all."""
        if not self.enabled or (wrong, value) in self._done or is_const(wrong, False):
            return
        self._done[wrong, value] = None
        varying = _axes_of(wrong)
        loops = tuple(
            a for k, a in enumerate(axes) if isinstance(a, Index) and (k >= own or axis_name(a) in varying)
        )
        host = device_of(device).is_host
        target = (
            self._target(ctx) if host else ctx.add_buffer(DType.i64, DType.i64.torch, device, (1,), (1,)).name
        )
        slot = len(self.rows) if host else 0
        said = make("bitwise_or", value, const(_SAID, DType.i64))
        ctx.emit(
            Scatter(
                ctx.fresh("op"), loops, (), target, slot, (), said, CHECK_MODE, wrong, origins=ctx.origins
            )
        )
        if host:
            self.rows.append((error.kind, error.text, size))

    def _target(self, ctx: Any) -> str:
        if not self.status:
            self.status = ctx.add_buffer(
                DType.i64, DType.i64.torch, "cpu", (1,), (1,), name=ctx.fresh("status")
            ).name
        return self.status

    def forget(self, buffer: str) -> None:
        """A buffer is about to be overwritten: what it held was checked, and what it will hold is not."""
        self._done = {
            key: None for key in self._done if all(e.buffer != buffer for root in key for e in loads(root))
        }

    def finish(self, nodes: list[Node], buffers: dict[str, Buffer], fresh: Any) -> tuple[Node, ...]:
        """The nodes with looks at the status where that matters: before numbers are read from data, before
        anything is sent away, and at the end."""
        if not self.rows:
            return tuple(nodes)
        status = replace(buffers[self.status], size=(len(self.rows),), kind="status")
        buffers[self.status] = status
        origins: tuple[Origin, ...] = ()
        made: list[Node] = []
        pending = False

        def look() -> ExternCall:
            args = (status.view(), tuple(self.rows))
            return ExternCall(fresh("call"), RAISE, args, (), (), out="none", ordered=True, origins=origins)

        for node in nodes:
            if isinstance(node, Scatter) and node.mode == CHECK_MODE and node.target == self.status:
                pending = True
                origins = tuple(dict.fromkeys((*origins, *node.origins)))
            elif pending and isinstance(node, ExternCall):
                if node.ordered or node.symbols or isinstance(node, Collective):
                    made.append(look())
                    pending, origins = False, ()
            made.append(node)
        if pending:
            made.append(look())
        return tuple(made)


def check_number(ctx: Any, node: Any, index: IndexLike, selected: Any, dim: int) -> None:
    """Let a number of the host be checked, which selects along the dimension `dim` and may count from the
    end."""
    error = error_text_for(node, selected.rank, dim)
    if error is not None:
        size, value = selected.size[dim], index_value(index)
        low = make("lt", value, index_value(-size))
        wrong = make("bitwise_or", low, make("ge", value, index_value(size)))
        ctx.checks.add(ctx, wrong, value, (), 0, size, error, "cpu")


_DIVISION = ErrorText("RuntimeError", "ZeroDivisionError")


def check_divisor(ctx: Any, divisor: Expr, axes: Sequence[IndexLike], device: str) -> None:
    """Let a divisor of integers raise where it is zero, at any point of `axes`: eager mode's kernels for the
    host do."""
    if not divisor.dtype.is_integer or not device_of(device).is_host:
        return
    least, most = _span(divisor)
    if (least is not None and is_nonnegative(least - 1)) or (most is not None and is_nonnegative(-1 - most)):
        return
    # results without elements divide nothing, whatever the divisor is
    some = all(not isinstance(a, Index) or is_nonnegative(axis_size(a) - 1) for a in axes)
    wrong = make("eq", divisor, const(0, divisor.dtype))
    one = const(1, DType.i64)
    ctx.checks.add(ctx, wrong, one, axes, len(axes) if some else 0, 1, _DIVISION, device)


def _axes_of(*roots: Expr) -> frozenset[str]:
    found: set[str] = set()
    for expr in walk(*roots):
        if expr.op in ("load", "index"):
            found.update(free_axes(expr.index))
    return frozenset(found)


def may_be_outside(index: Expr, low: IndexLike, size: IndexLike) -> bool:
    """Whether an index may be less than `low`, or not less than `size`, for all that its expression tells."""
    least, most = _span(index)
    return least is None or not is_nonnegative(least - low) or most is None or not is_less(most, size)


def _span(value: Expr) -> tuple[IndexLike | None, IndexLike | None]:
    """The least and the greatest number that an integer can be, as far as its expression tells."""
    if value.op == "const" and value.dtype is not DType.bool:
        return int(value.value), int(value.value)
    if value.op in ("index", "size"):
        index = value.index
        low, high = bounds(index)
        if isinstance(index, Index) and not free_axes(index):
            return index, index
        return low, _highest(index) if high is None else high
    if value.op == "cast":
        source = value.args[0]
        if source.dtype is DType.bool:
            return 0, 1
        if source.dtype.is_integer:
            least, most = _span(source)
            bits = source.dtype.itemsize * 8
            if not source.dtype.is_signed and bits < 64:
                return 0 if least is None else least, (1 << bits) - 1 if most is None else most
            return least, most
        return None, None
    if value.op in ("minimum", "maximum"):
        return _of_extreme(value)
    if value.op == "where":
        (a, b), (c, d) = _span(value.args[1]), _span(value.args[2])
        least = a if a is not None and a == c else _least(a, c)
        return least, b if b is not None and b == d else _most(b, d)
    return None, None


def _of_extreme(value: Expr) -> tuple[IndexLike | None, IndexLike | None]:
    (a, b), (c, d) = _span(value.args[0]), _span(value.args[1])
    if value.op == "minimum":
        # of two limits the one that is no larger; of two that cannot be compared any, for each is one
        upper = b if d is None else d if b is None or is_nonnegative(b - d) else b
        return _least(a, c), upper
    lower = a if c is None else c if a is None or is_nonnegative(c - a) else a
    return lower, _most(b, d)


def _least(a: IndexLike | None, b: IndexLike | None) -> IndexLike | None:
    if a is None or b is None:
        return None
    return a if is_nonnegative(b - a) else b if is_nonnegative(a - b) else None


def _most(a: IndexLike | None, b: IndexLike | None) -> IndexLike | None:
    if a is None or b is None:
        return None
    return a if is_nonnegative(a - b) else b if is_nonnegative(b - a) else None


def _highest(index: IndexLike) -> IndexLike | None:
    """The greatest value of an axis whose extent is a symbol."""
    atom = None if isinstance(index, int) else as_atom(index)
    return atom.args[0] - 1 if atom is not None and atom.kind == "axis" else None
