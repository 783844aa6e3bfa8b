"""Cases of scalar operations: every row of the table in every type, casts, constants and indices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import Tensor

from polyfuse.ir.expr import Expr, apply, bitcast, cast, const, index_value, load
from polyfuse.ir.kernel import KernelArg
from polyfuse.ir.ops import COMPUTED, NUMBERS, SCALAR_OPS, ScalarOp
from polyfuse.ir.types import DType
from polyfuse.symbolic import axis, maximum, minimum
from polyfuse.testing.cases import values
from polyfuse.testing.cases.builder import Builder, Store
from polyfuse.testing.cases.case import EXACT, Case, Operands, Part, Tolerance, grouped

_TOGETHER = 10
"""Operations computed by one kernel: fewer and larger kernels build faster."""


def _signed_remainder(a: Any, b: Any) -> Any:
    rest = numpy.fmod(a, b)
    return numpy.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


_BY_NUMPY: dict[str, Callable[..., Any]] = {
    "sqrt": numpy.sqrt,
    "fmod": numpy.fmod,
    "remainder": _signed_remainder,
}
"""Where torch's vectorised arithmetic is not exact on every processor: the exact answer will do as well."""

_WITH_ROOTS = ("lgamma", "digamma")
"""Near a root the last bits mean little."""

_BIT_PATTERNS = ("nextafter",)
"""What depends on the precision itself."""

_ARITHMETIC = ("add", "sub", "mul", "div", "sqrt")
"""What shows that `f64` has its precision."""

_LOOSE_ZERO = ("minimum", "maximum", "fmin", "fmax")


@dataclass(frozen=True)
class Probe:
    """One value to compute: where it stands in the matrix, and how to compare it."""

    group: str
    row: str
    column: str
    value: Expr
    tolerance: Tolerance = EXACT
    expected: Callable[[Operands], Tensor] | None = None
    valid: Callable[[Operands], Tensor] | None = None
    slack: Callable[[Operands], Tensor] | None = None


def scalar_cases(quick: bool) -> Iterator[Case]:
    """All cases of this file; `quick` leaves out the types between the usual ones."""
    types = (DType.f32, DType.i32, DType.i64, DType.u8, DType.bool) if quick else COMPUTED
    for dtype in types:
        yield from _operation_cases(dtype)
    if quick:
        yield from _operation_cases(DType.f64, _ARITHMETIC)
    sources = types if quick else tuple(DType)
    for dtype in sources if not quick else (*sources, DType.bf16, DType.f16):
        yield from _cast_cases(dtype)
    if not quick:
        yield from _constant_cases()
    yield from _index_cases()


def probe_case(name: str, inputs: Sequence[Tensor], dtypes: Sequence[DType], probes: Sequence[Probe]) -> Case:
    """A pointwise kernel over flat inputs ``in0``, ``in1``, ... that stores each probe to its own output."""
    count = len(inputs[0])

    def make(chosen: tuple[int, ...]) -> Case:
        i = axis("i0", count)
        some = [probes[p] for p in chosen]
        args = [KernelArg(f"in{k}", "in", t, count) for k, t in enumerate(dtypes)]
        args += [KernelArg(f"out{k}", "out", p.value.dtype, count) for k, p in enumerate(some)]
        builder = Builder(name, (i,), (), tuple(args))
        builder.once(*(Store(f"out{k}", i, p.value) for k, p in enumerate(some)))

        def operands() -> Operands:
            outputs = [torch.zeros(count, dtype=p.value.dtype.torch) for p in some]
            return (*(t.clone() for t in inputs), *outputs)

        parts = tuple(
            Part(
                p.group,
                p.row,
                p.column,
                len(inputs) + k,
                p.tolerance,
                p.expected,
                p.valid,
                p.slack,
                (builder.nodes[k],),
            )
            for k, p in enumerate(some)
        )
        return Case(builder.kernel((count,)), (operands,), parts)

    return grouped(make, len(probes))


def _chunks(probes: Sequence[Probe]) -> Iterator[Sequence[Probe]]:
    for start in range(0, len(probes), _TOGETHER):
        yield probes[start : start + _TOGETHER]


def _operation_cases(dtype: DType, only: Sequence[str] | None = None) -> Iterator[Case]:
    rows = [row for row in SCALAR_OPS.values() if dtype in row.types and (only is None or row.name in only)]
    i = {arity: axis("i0", len(values.operands(dtype, arity)[0])) for arity in (1, 2, 3)}
    for arity in (1, 2, 3):
        inputs = values.operands(dtype, arity)
        names = [load(f"in{k}", i[arity], dtype) for k in range(arity)]
        probes = [
            _operation(row, apply(row.name, *names), dtype)
            for row in rows
            if row.arity == arity and row.name != "where"
        ]
        for number, some in enumerate(_chunks(probes)):
            yield probe_case(f"ops{arity}_{dtype}_{number}", inputs, (dtype,) * arity, some)
    if only is not None:
        return
    count = len(values.operands(dtype, 2)[0])
    chosen = (values.plain(DType.bool, count, 5), *values.operands(dtype, 2))
    condition = load("in0", i[2], DType.bool)
    value = apply("where", condition, load("in1", i[2], dtype), load("in2", i[2], dtype))
    probe = Probe("scalar operations", "where", str(dtype), value)
    yield probe_case(f"where_{dtype}", chosen, (DType.bool, dtype, dtype), (probe,))


def _operation(row: ScalarOp, value: Expr, dtype: DType) -> Probe:
    tiny = torch.finfo(dtype.torch).tiny if dtype.is_float else 0.0
    tolerance = Tolerance(ulp=row.ulp + 1, absolute=tiny) if row.ulp else EXACT
    if row.name in _LOOSE_ZERO:
        tolerance = Tolerance(signed_zero=False)
    if row.name in _WITH_ROOTS:
        tolerance = Tolerance(ulp=row.ulp + 1, absolute=4 * torch.finfo(dtype.torch).eps)
    expected: Callable[[Operands], Tensor] | None = None
    if dtype.is_float and row.name in _BY_NUMPY:
        expected = _in_numpy(_BY_NUMPY[row.name], row.arity)
    elif dtype is DType.f32 and row.result == "same" and row.name not in _BIT_PATTERNS:
        expected = _in_double(row)
    valid: Callable[[Operands], Tensor] | None = None
    slack: Callable[[Operands], Tensor] | None = None
    if row.name in ("floor_div", "trunc_div", "remainder", "fmod") and not dtype.is_float:
        valid = _divisor_is_not_zero
    if row.name == "fma":
        valid, slack = _product_is_finite, _rounding_of_product
    return Probe("scalar operations", row.name, str(dtype), value, tolerance, expected, valid, slack)


def _in_double(row: ScalarOp) -> Callable[[Operands], Tensor]:
    def expected(given: Operands) -> Tensor:
        wide = [t.double() for t in given[: row.arity] if isinstance(t, Tensor)]
        return torch.as_tensor(row.reference(*wide)).float()

    return expected


def _in_numpy(function: Callable[..., Any], count: int) -> Callable[[Operands], Tensor]:
    def expected(given: Operands) -> Tensor:
        inputs = [t.numpy() for t in _tensors(given)[:count]]
        with numpy.errstate(all="ignore"):
            return torch.from_numpy(function(*inputs))

    return expected


def _tensors(given: Operands) -> list[Tensor]:
    return [t for t in given if isinstance(t, Tensor)]


def _divisor_is_not_zero(given: Operands) -> Tensor:
    return torch.as_tensor(_tensors(given)[1] != 0)


def _product_is_finite(given: Operands) -> Tensor:
    a, b = _tensors(given)[:2]
    return (a * b).isfinite() | ~a.isfinite() | ~b.isfinite()


def _rounding_of_product(given: Operands) -> Tensor:
    a, b = _tensors(given)[:2]
    return (a * b).abs() * torch.finfo(a.dtype).eps


def _cast_cases(source: DType) -> Iterator[Case]:
    inputs = values.operands(source, 1)
    value = load("in0", axis("i0", len(inputs[0])), source)
    probes = [
        Probe("casts", f"from {source}", str(target), cast(value, target), valid=_castable(source, target))
        for target in DType
        if target is not source
    ]
    probes += [
        Probe("bit casts", f"from {source}", str(target), bitcast(value, target))
        for target in DType
        if target is not source and target.itemsize == source.itemsize and {source, target} <= set(NUMBERS)
    ]
    for number, some in enumerate(_chunks(probes)):
        yield probe_case(f"casts_{source}_{number}", inputs, (source,), some)


def _castable(source: DType, target: DType) -> Callable[[Operands], Tensor] | None:
    """Floating-point numbers beyond the target's range have no defined value as integers."""
    if not source.is_float or not target.is_integer:
        return None
    bits = target.itemsize * 8
    low, high = (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1)) if target.is_signed else (0.0, 2.0**bits)

    def inside(given: Operands) -> Tensor:
        whole = _tensors(given)[0].double().trunc()
        return (whole >= low) & (whole < high)

    return inside


def _constant_cases() -> Iterator[Case]:
    for dtype in COMPUTED:
        edges = values.special(dtype)
        probes = [
            Probe("constants", "edge values", str(dtype), const(_number(edges, k), dtype))
            for k in range(len(edges))
        ]
        for number, some in enumerate(_chunks(probes)):
            yield probe_case(f"constants_{dtype}_{number}", (torch.zeros(17),), (DType.f32,), some)


def _number(edges: Tensor, position: int) -> bool | int | float:
    found = values.index(edges, torch.tensor([position]))
    number: bool | int | float = found.numpy().item()
    return number


def _index_cases() -> Iterator[Case]:
    i = axis("i0", 100)
    forms = {
        "linear": 3 * i - 40,
        "floor division": (5 * i - 200) // 7,
        "modulo": (5 * i - 200) % 7,
        "nested": ((i // 4) * 3 + i % 4) // 5,
        "minimum": minimum(i, 60 - i),
        "maximum": maximum(2 * i - 50, i),
        "product": i * (i // 10),
        "large": i * 5_000_000_000,
    }
    probes = [Probe("indices", row, "i64", index_value(form)) for row, form in forms.items()]
    probes.append(Probe("indices", "as a float", "f32", index_value(3 * i + 1, DType.f32)))
    yield probe_case("indices", (torch.zeros(100),), (DType.f32,), probes)
