"""The table of scalar operations: the contract that every backend implements.

The conformance kit, the interpreter and the documentation page are generated from it. A row gives the types
an operation takes, the type it gives, the torch function that defines what it means, and how close an
implementation must come to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from polyfuse.ir.types import DType

FLOATS = (DType.f32, DType.f64)
SIGNED = (DType.i8, DType.i16, DType.i32, DType.i64)
UNSIGNED = (DType.u8, DType.u16, DType.u32, DType.u64)
INTEGERS = SIGNED + UNSIGNED
BOOL = (DType.bool,)
NUMBERS = FLOATS + INTEGERS
COMPUTED = NUMBERS + BOOL
"""Types that values are computed in; narrower floating-point types exist only in memory."""


@dataclass(frozen=True)
class ScalarOp:
    """One scalar operation.

    Attributes:
        name: its name in IR text.
        arity: number of operands; all have one type, except `where`'s first, which is bool.
        types: operand types it is defined for.
        result: ``"same"`` as the operands, or ``"bool"``.
        reference: torch function over tensors that defines it.
        ulp: allowed distance from the reference in units in the last place (0: exact).
        commutative: whether operands may be swapped.
        slow: whether it costs many times a multiplication (decides what is worth keeping rather than
            recomputing).
    """

    name: str
    arity: int
    types: tuple[DType, ...]
    result: str
    reference: Callable[..., Any]
    ulp: int = 0
    commutative: bool = False
    slow: bool = False


def _integer_safe(function: Callable[..., Any]) -> Callable[..., Any]:
    """Division on integers without traps: a zero divisor may give anything, so the reference divides by one;
    a divisor of minus one wraps the lowest integer, so the reference negates."""

    def reference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if a.dtype.is_floating_point:
            return torch.as_tensor(function(a, b))
        one = torch.ones_like(b)
        negated = b == -one if a.dtype.is_signed else torch.zeros_like(b, dtype=torch.bool)
        found = function(a, torch.where((b == 0) | negated, one, b))
        return torch.where(negated, -found, found)

    return reference


def _fmod(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Exact: torch's vectors of f32 give NaN where the quotient is no f32, its single numbers do not."""
    return torch.fmod(a.double(), b.double()).float() if a.dtype is torch.float32 else torch.fmod(a, b)


def _remainder(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if not a.dtype.is_floating_point:
        return torch.remainder(a, b)
    rest = _fmod(a, b)
    return torch.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


def _unary_float(name: str, ulp: int) -> ScalarOp:
    return ScalarOp(name, 1, FLOATS, "same", getattr(torch, name), ulp, slow=True)


_FUNCTIONS = (
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p"),
    *("sin", "cos", "tan", "asin", "acos", "atan"),
    *("sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
    *("erf", "erfc", "erfinv", "lgamma", "digamma", "sigmoid"),
)


def _rows() -> tuple[ScalarOp, ...]:
    t = torch
    arithmetic = (
        ScalarOp("add", 2, NUMBERS, "same", t.add, commutative=True),
        ScalarOp("sub", 2, NUMBERS, "same", t.sub),
        ScalarOp("mul", 2, NUMBERS, "same", t.mul, commutative=True),
        ScalarOp("fma", 3, FLOATS, "same", lambda a, b, c: a * b + c, 1),
        ScalarOp("div", 2, FLOATS, "same", t.div),
        ScalarOp("floor_div", 2, NUMBERS, "same", _integer_safe(partial(t.div, rounding_mode="floor"))),
        ScalarOp("trunc_div", 2, NUMBERS, "same", _integer_safe(partial(t.div, rounding_mode="trunc"))),
        ScalarOp("remainder", 2, NUMBERS, "same", _integer_safe(_remainder)),
        ScalarOp("fmod", 2, NUMBERS, "same", _integer_safe(_fmod)),
        ScalarOp("pow", 2, FLOATS, "same", t.pow, 2, slow=True),
        ScalarOp("minimum", 2, NUMBERS, "same", t.minimum, commutative=True),
        ScalarOp("maximum", 2, NUMBERS, "same", t.maximum, commutative=True),
        ScalarOp("fmin", 2, FLOATS, "same", t.fmin, commutative=True),
        ScalarOp("fmax", 2, FLOATS, "same", t.fmax, commutative=True),
        ScalarOp("neg", 1, NUMBERS, "same", t.neg),
        ScalarOp("abs", 1, FLOATS + SIGNED, "same", t.abs),
        ScalarOp("sign", 1, FLOATS + SIGNED, "same", t.sign),
        ScalarOp("copysign", 2, FLOATS, "same", t.copysign),
        ScalarOp("nextafter", 2, FLOATS, "same", t.nextafter),
        ScalarOp("reciprocal", 1, FLOATS, "same", t.reciprocal),
        ScalarOp("sqrt", 1, FLOATS, "same", t.sqrt),
        ScalarOp("rsqrt", 1, FLOATS, "same", t.rsqrt, 2),
        ScalarOp("floor", 1, FLOATS, "same", t.floor),
        ScalarOp("ceil", 1, FLOATS, "same", t.ceil),
        ScalarOp("trunc", 1, FLOATS, "same", t.trunc),
        ScalarOp("round", 1, FLOATS, "same", t.round),
    )
    functions = tuple(_unary_float(name, 2) for name in _FUNCTIONS) + (
        ScalarOp("atan2", 2, FLOATS, "same", t.atan2, 2, slow=True),
        ScalarOp("hypot", 2, FLOATS, "same", t.hypot, 2, slow=True),
    )
    compare = ("eq", "ne", "lt", "le", "gt", "ge")
    classify = ("isnan", "isinf", "signbit")
    tests = tuple(ScalarOp(name, 2, COMPUTED, "bool", getattr(t, name)) for name in compare)
    tests += tuple(ScalarOp(name, 1, FLOATS, "bool", getattr(t, name)) for name in classify)
    bits = (
        ScalarOp("bitwise_and", 2, INTEGERS + BOOL, "same", t.bitwise_and, commutative=True),
        ScalarOp("bitwise_or", 2, INTEGERS + BOOL, "same", t.bitwise_or, commutative=True),
        ScalarOp("bitwise_xor", 2, INTEGERS + BOOL, "same", t.bitwise_xor, commutative=True),
        ScalarOp("bitwise_not", 1, INTEGERS + BOOL, "same", t.bitwise_not),
        ScalarOp("shift_left", 2, INTEGERS, "same", t.bitwise_left_shift),
        ScalarOp("shift_right", 2, INTEGERS, "same", t.bitwise_right_shift),
        ScalarOp("where", 3, COMPUTED, "same", t.where),
    )
    return arithmetic + functions + tests + bits


SCALAR_OPS: dict[str, ScalarOp] = {row.name: row for row in _rows()}
"""Every scalar operation by name. `cast` and `bitcast`, which change the type, are expressions of their
own."""


@dataclass(frozen=True)
class ReductionKind:
    """One kind of reduction or scan.

    Attributes:
        operands, results: how many.
        types: what the first operand may be; a second one is an i64 position, but for contractions.
        combine: the scalar operation by which first results are combined; empty where none does.
    """

    operands: int
    results: int
    types: tuple[DType, ...]
    combine: str = ""

    @property
    def is_plain(self) -> bool:
        """Whether the one operation combines all there is."""
        return self.results == 1 and bool(self.combine)

    @property
    def has_value_of_nothing(self) -> bool:
        """Whether reducing no elements has a value in torch."""
        return self.is_plain and self.combine not in ("minimum", "maximum")


REDUCTIONS: dict[str, ReductionKind] = {
    "sum": ReductionKind(1, 1, NUMBERS, "add"),
    "prod": ReductionKind(1, 1, NUMBERS, "mul"),
    "min": ReductionKind(1, 1, COMPUTED, "minimum"),
    "max": ReductionKind(1, 1, COMPUTED, "maximum"),
    "any": ReductionKind(1, 1, BOOL, "bitwise_or"),
    "all": ReductionKind(1, 1, BOOL, "bitwise_and"),
    "xor_sum": ReductionKind(1, 1, INTEGERS, "bitwise_xor"),
    "argmin": ReductionKind(2, 2, COMPUTED, "minimum"),
    "argmax": ReductionKind(2, 2, COMPUTED, "maximum"),
    "welford": ReductionKind(1, 3, FLOATS),
    "online_softmax": ReductionKind(1, 2, FLOATS, "maximum"),
}
"""Reduction kinds.

``argmin``/``argmax`` take (value, i64 position) and give (extreme value, its position), NaN winning and the
smallest position on ties; ``welford`` gives (mean, infinite where the sum is, sum of squared deviations,
count as float); ``online_softmax`` gives (maximum, sum of ``exp(x - maximum)``). ``min`` and ``max``
propagate NaN."""

CONTRACTIONS: dict[str, ReductionKind] = {
    "dot": ReductionKind(2, 1, tuple(DType), "add"),
    "dot_tf32": ReductionKind(2, 1, (DType.f32,), "add"),
    "dot_fast": ReductionKind(2, 1, tuple(t for t in DType if t.is_eight_bit_float), "add"),
}
"""Reductions of products.

``dot`` gives the sum of the products of its two operands, added up in the type that `rules.accumulates`
names. Its operands alone may be of floating-point types that are otherwise not computed with. With
``dot_tf32``, f32 operands may be rounded to ten bits of fraction before they are multiplied; with
``dot_fast``, sums of products of 8-bit floats may be accumulated with as few bits as the device's multipliers
have. They stand apart from `REDUCTIONS` because ordinary loops compute them many times slower than a matmul
should run: a backend claims them only if it does better."""

SCANS: dict[str, ReductionKind] = {
    "sum": ReductionKind(1, 1, NUMBERS, "add"),
    "prod": ReductionKind(1, 1, NUMBERS, "mul"),
    "min": ReductionKind(2, 2, COMPUTED, "minimum"),
    "max": ReductionKind(2, 2, COMPUTED, "maximum"),
    "logsumexp": ReductionKind(1, 1, FLOATS),
}
"""Scan kinds, inclusive. ``min``/``max`` take (value, i64 position) and give the running extreme and its
position (NaN wins, the later position on ties, as cummax has it)."""

RANDOM: dict[str, str] = {"uniform": "f32", "normal": "f32", "bits": "i64"}
"""Kinds of random numbers, and their type, drawn by `polyfuse.ir.random` as words w0, w1, ... from a seed and
an offset.

``uniform``: ``(w0 >> 8) * 2**-24``; ``normal``: ``sqrt(-2 * log(1 - u0)) * cos(2 * pi * u1)`` with both `u`
made like that from w0 and w1; ``bits``: ``w0 | w1 << 32``."""

STORE_MODES: dict[str, str] = {"set": "", "add": "add", "min": "minimum", "max": "maximum", "mul": "mul"}
"""What a store does to the element: overwrite it, or combine with it atomically by the scalar operation that
the table names (``min``/``max`` propagate NaN)."""

CHECK_MODE = "check"
"""Stores by which a kernel says that a value from data is not what it has to be, such as an index that is out
of range. Each is masked: where the mask holds, an element of the kernel's i64 status becomes a number that is
not zero, and any one of colliding numbers is stored. The host program looks at the status after the kernel
and raises. A backend on a device whose memory the host cannot look at stops the device's program instead, or
does not claim the node."""

GROUP_MODES: dict[str, str] = {"group_sum": "sum", "group_min": "min", "group_max": "max"}
"""Stores that combine what the points of one kernel store at an element, in an order that is the same in
every run, and nothing else: what was there before does not count. By the reduction that each does. They stand
apart from `STORE_MODES` because only kernels in which points that share an element lie side by side can have
them, as results of a matmul do; see `Backend.epilogue_reduction_width`."""


def combining_op(mode: str) -> str:
    """The scalar operation by which a store combines with what is there; empty where it overwrites."""
    if mode in GROUP_MODES:
        return REDUCTIONS[GROUP_MODES[mode]].combine
    return STORE_MODES.get(mode, "")


def can_store(mode: str, dtype: DType) -> bool:
    """Whether elements of a type can be stored so: what combines them has to compute in that type."""
    op = combining_op(mode)
    return not op or dtype.compute in SCALAR_OPS[op].types


def identity(kind: str, dtype: DType) -> bool | int | float:
    """The identity element of a reduction in `REDUCTIONS`: combining a number with it changes nothing.

    Raises:
        KeyError: the kind has no operation that combines.
    """
    op = REDUCTIONS[kind].combine
    if op in ("minimum", "maximum"):
        return dtype.highest if op == "minimum" else dtype.lowest
    if op == "bitwise_and" and dtype is not DType.bool:
        return -1 if dtype.is_signed else dtype.highest
    return {"add": 0, "bitwise_or": 0, "bitwise_xor": 0, "mul": 1, "bitwise_and": 1}[op]
