"""Defects of what is carried along an axis: reductions, scans, and the rows that are stored meanwhile."""

from __future__ import annotations

from dataclasses import replace

from polyfuse.ir.kernel import Kernel
from polyfuse.ir.ops import REDUCTIONS, identity
from polyfuse.ir.statements import Compute, Constant, Reduce, Scan, Statement
from polyfuse.ir.types import DType
from polyfuse.symbolic import IndexLike, axis_size, product
from polyfuse.testing.lying.planting import Defect, Planter, change_each, tail_start

_NARROWER = {DType.f32: DType.bf16, DType.f64: DType.f32}


def _skips_last(stmt: Statement, planter: Planter) -> bool:
    if not isinstance(stmt, Reduce) or stmt.kind not in REDUCTIONS or not REDUCTIONS[stmt.kind].is_plain:
        return False
    last = planter.kernel.raxes[-1]
    dtype = planter.types[stmt.args[0]]
    here = planter.add("lt", planter.index(last), planter.index(tail_start(axis_size(last))))
    nothing = planter.const(identity(stmt.kind, dtype), dtype)
    planter.put(replace(stmt, args=(planter.add("where", here, stmt.args[0], nothing),)))
    return True


def _wrong_start(stmt: Statement, planter: Planter) -> bool:
    combined = {"sum": ("add", 1), "min": ("minimum", 0), "max": ("maximum", 0), "prod": ("mul", 2)}
    if not isinstance(stmt, Reduce) or stmt.kind not in combined or not planter.is_free(stmt):
        return False
    if stmt.dtype is DType.bool:
        return False
    (right,) = planter.renamed(stmt)
    planter.afterwards()
    op, start = combined[stmt.kind]
    planter.add(op, right, planter.const(start, stmt.dtype), to=stmt.targets)
    return True


def _narrow(stmt: Statement, planter: Planter) -> bool:
    """Rounded before and after: what is lost on the way is more, and the same in kind."""
    if not isinstance(stmt, Reduce) or stmt.kind not in ("sum", "prod", "dot"):
        return False
    narrow = _NARROWER.get(stmt.dtype)
    if narrow is None or any(planter.types[a] is not stmt.dtype for a in stmt.args):
        return False
    rounded = tuple(planter.round_trip(a, narrow) for a in stmt.args)
    (total,) = planter.renamed(replace(stmt, args=rounded))
    planter.afterwards()
    planter.round_trip(total, narrow, stmt.targets)
    return True


def _overflowing(stmt: Statement, planter: Planter) -> bool:
    if not isinstance(stmt, Reduce) or stmt.kind not in ("sum", "prod") or stmt.dtype is not DType.i64:
        return False
    (total,) = planter.renamed(stmt)
    planter.afterwards()
    planter.cast(planter.cast(total, DType.i32), DType.i64, stmt.targets)
    return planter.is_free(stmt)


def _nan_dropped(stmt: Statement, planter: Planter) -> bool:
    if not isinstance(stmt, Reduce) or stmt.kind not in ("min", "max") or not stmt.dtype.is_float:
        return False
    nothing = planter.const(identity(stmt.kind, stmt.dtype), stmt.dtype)
    value = planter.add("where", planter.add("isnan", stmt.args[0]), nothing, stmt.args[0])
    planter.put(replace(stmt, args=(value,)))
    return True


def _last_of_equals(stmt: Statement, planter: Planter) -> bool:
    """Positions are counted from the end, so that the smallest is the last."""
    if not isinstance(stmt, Reduce) or stmt.kind not in ("argmin", "argmax"):
        return False
    value, position = stmt.args
    if not planter.is_free(stmt):
        return False
    zero = planter.const(0, DType.i64)
    negated = replace(stmt, args=(value, planter.add("sub", zero, position)))
    best, position = planter.renamed(negated)
    planter.afterwards()
    planter.add("where", planter.const(1, DType.bool), best, best, to=stmt.targets[:1])
    planter.add("neg", position, to=stmt.targets[1:])
    return True


def _exclusive(stmt: Statement, planter: Planter) -> bool:
    if not isinstance(stmt, Scan) or stmt.kind != "sum":
        return False
    (total,) = planter.renamed(stmt)
    planter.add("sub", total, stmt.args[0], to=stmt.targets)
    return True


def _count(kernel: Kernel) -> Kernel | None:
    """The number of elements, where it stands as a constant."""
    extent: IndexLike = product(kernel.rsizes) if kernel.raxes else 0

    def change(stmt: Statement, planter: Planter) -> bool:
        if not isinstance(stmt, Constant) or not stmt.dtype.is_float or not planter.is_free(stmt):
            return False
        if not isinstance(extent, int) or extent < 2:
            return False
        inverse = abs(stmt.value * extent - 1) < 1e-6
        if stmt.value != extent and not inverse:
            return False
        count = extent - 1
        planter.put(replace(stmt, value=1 / count if inverse else float(count)))
        return True

    return Planter(kernel).plant(change)


def _unshifted(stmt: Statement, planter: Planter) -> bool:
    if not isinstance(stmt, Compute) or stmt.op != "sub" or not stmt.dtype.is_float:
        return False
    largest = planter.made[stmt.args[1]]
    if not isinstance(largest, Reduce) or largest.kind != "max":
        return False
    planter.put(replace(stmt, args=(stmt.args[0], planter.const(0, stmt.dtype))))
    return True


DEFECTS = (
    Defect(
        "reduction-tail-skipped",
        "the last elements are left out of a reduction",
        "reduces",
        change_each(_skips_last),
    ),
    Defect("reduction-start", "a sum starts at one, a maximum at zero", "reduces", change_each(_wrong_start)),
    Defect(
        "narrow-accumulator",
        "a sum is accumulated in bf16 (of f64: in f32)",
        "adds up f32 or f64",
        change_each(_narrow),
    ),
    Defect(
        "integer-sum-overflow",
        "a sum of 64-bit integers is accumulated in 32 bits",
        "adds up i64",
        change_each(_overflowing),
    ),
    Defect(
        "reduction-drops-nan",
        "the largest of some numbers and NaN is a number",
        "takes a minimum or maximum",
        change_each(_nan_dropped),
    ),
    Defect(
        "last-of-equals",
        "of several largest elements, the last is found",
        "has argmin or argmax",
        change_each(_last_of_equals),
    ),
    Defect(
        "exclusive-scan",
        "a running sum lacks the element that it stands at",
        "has a running sum",
        change_each(_exclusive),
    ),
    Defect("mean-count", "a mean is divided by one less than the number of elements", "has a mean", _count),
    Defect(
        "maximum-not-subtracted",
        "the exponentials of softmax overflow",
        "has softmax",
        change_each(_unshifted),
    ),
)
