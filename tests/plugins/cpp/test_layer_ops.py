"""Every exact operator of the vector layer on every dtype at edge values, against torch eager, at every
width."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch

from cpp_layer import DTYPES, FLOATS, SIGNED, UNSIGNED, Level, Op, build_ops, level_params, run

INF, NAN = float("inf"), float("nan")
FLOAT_EDGES = [
    NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, -7.0, 1e-40, -1e-40, 1e-45, 1e10,
    -1e10, 3.4e38, -3.4e38, 8388607.5, 0.49999997, 2147483648.0, 1.17549435e-38, 3.14159, 100.25,
]  # fmt: skip
WIDE_EDGES = [2**51 - 1, 1 - 2**51, 3 * 2**40 + 1, 7, -5, 6, 4, 12, 2**51, -(2**51) - 1]
"""Integers about which divisions in double arithmetic end."""
INT_EDGES = [0, 1, -1, 2, -2, 3, -3, 5, 7, -7, 11, 31, 33, 63, 100, -100, 127, -128]


def edges(dtype: str) -> torch.Tensor:
    """Values worth trying for *dtype*."""
    if dtype in FLOATS:
        return torch.tensor(FLOAT_EDGES, dtype=DTYPES[dtype])
    if dtype == "bool":
        return torch.tensor([True, False, True, True, False])
    if dtype == "u64":
        return torch.tensor([abs(v) for v in INT_EDGES] + [2**63 - 1]).to(torch.uint64)
    info = torch.iinfo(DTYPES[dtype])
    values = [*INT_EDGES, info.min, info.max, info.min + 1, info.max - 1]
    values += WIDE_EDGES if dtype == "i64" else []
    if dtype in UNSIGNED:
        return torch.tensor([v % (info.max + 1) for v in values]).to(DTYPES[dtype])
    return torch.tensor([max(info.min, min(v, info.max)) for v in values]).to(DTYPES[dtype])


def pairs(dtype: str) -> tuple[torch.Tensor, torch.Tensor]:
    """All pairs of edge values."""
    e = edges(dtype)
    index = torch.tensor(list(itertools.product(range(len(e)), repeat=2)))
    return e[index[:, 0]].clone(), e[index[:, 1]].clone()


def wide_enough(function: Callable[..., torch.Tensor], *arguments: torch.Tensor) -> torch.Tensor:
    """Apply *function*; dtypes whose kernels torch lacks go through int64 and wrap."""
    dtype = arguments[0].dtype
    if dtype in (torch.uint16, torch.uint32, torch.uint64):
        result = function(*(a.to(torch.int64) for a in arguments))
        return result if result.dtype == torch.bool else result.to(dtype)
    return function(*arguments)


def same(actual: torch.Tensor, expected: torch.Tensor, what: str, inputs: tuple[torch.Tensor, ...]) -> None:
    """Equal in every bit that matters: NaN equals NaN, -0.0 differs from 0.0."""
    assert actual.dtype == expected.dtype, what
    if actual.dtype.is_floating_point:
        ok = (actual == expected) & (actual.signbit() == expected.signbit()) | (
            actual.isnan() & expected.isnan()
        )
    else:
        ok = actual == expected
    if not ok.all():
        bad = (~ok).nonzero().flatten()[:6]
        rows = [(tuple(x[i].item() for x in inputs), actual[i].item(), expected[i].item()) for i in bad]
        raise AssertionError(f"{what}: {(~ok).sum()} wrong, (inputs, ours, torch): {rows}")


NO_SHIFT_64 = ("u16", "u32", "u64")
BINARY: dict[str, tuple[tuple[str, ...], Callable[..., torch.Tensor]]] = {
    "add": (FLOATS + SIGNED + UNSIGNED + ("bool",), torch.add),
    "sub": (FLOATS + SIGNED + UNSIGNED, torch.sub),
    "mul": (FLOATS + SIGNED + UNSIGNED + ("bool",), torch.mul),
    "div": (FLOATS, torch.div),
    "floor_div": (FLOATS + SIGNED + UNSIGNED, torch.floor_divide),
    "trunc_div": (FLOATS + SIGNED + UNSIGNED, lambda a, b: torch.div(a, b, rounding_mode="trunc")),
    "remainder": (FLOATS + SIGNED + UNSIGNED, torch.remainder),
    "fmod": (FLOATS + SIGNED + UNSIGNED, torch.fmod),
    "minimum": (FLOATS + SIGNED + UNSIGNED + ("bool",), torch.minimum),
    "maximum": (FLOATS + SIGNED + UNSIGNED + ("bool",), torch.maximum),
    "fmin": (FLOATS + SIGNED + UNSIGNED, torch.fmin),
    "fmax": (FLOATS + SIGNED + UNSIGNED, torch.fmax),
    "copysign": (FLOATS, torch.copysign),
    "nextafter": (FLOATS, torch.nextafter),
    "bitwise_and": (SIGNED + UNSIGNED + ("bool",), torch.bitwise_and),
    "bitwise_or": (SIGNED + UNSIGNED + ("bool",), torch.bitwise_or),
    "bitwise_xor": (SIGNED + UNSIGNED + ("bool",), torch.bitwise_xor),
    "shift_left": (SIGNED + ("u8",), torch.bitwise_left_shift),
    "shift_right": (SIGNED + ("u8",), torch.bitwise_right_shift),
    "pow": (SIGNED + ("u8",), torch.pow),
    "eq": (FLOATS + SIGNED + UNSIGNED + ("bool",), torch.eq),
    "ne": (FLOATS + SIGNED + UNSIGNED + ("bool",), torch.ne),
    "lt": (FLOATS + SIGNED + UNSIGNED + ("bool",), torch.lt),
    "le": (FLOATS + SIGNED + UNSIGNED + ("bool",), torch.le),
    "gt": (FLOATS + SIGNED + UNSIGNED + ("bool",), torch.gt),
    "ge": (FLOATS + SIGNED + UNSIGNED + ("bool",), torch.ge),
}
UNARY: dict[str, tuple[tuple[str, ...], Callable[..., torch.Tensor]]] = {
    "neg": (FLOATS + SIGNED + UNSIGNED, torch.neg),
    "abs": (FLOATS + SIGNED + UNSIGNED, torch.abs),
    "sign": (FLOATS + SIGNED + UNSIGNED, torch.sign),
    "reciprocal": (FLOATS, torch.reciprocal),
    "sqrt": (FLOATS, torch.sqrt),
    "floor": (FLOATS + SIGNED, torch.floor),
    "ceil": (FLOATS + SIGNED, torch.ceil),
    "trunc": (FLOATS + SIGNED, torch.trunc),
    "round": (FLOATS + SIGNED, torch.round),
    "signbit": (FLOATS + SIGNED, torch.signbit),
    "isnan": (FLOATS + SIGNED, torch.isnan),
    "isinf": (FLOATS + SIGNED, torch.isinf),
    "bitwise_not": (SIGNED + UNSIGNED + ("bool",), torch.bitwise_not),
}
PREDICATES = ("eq", "ne", "lt", "le", "gt", "ge", "signbit", "isnan", "isinf")
DIVISIONS = ("floor_div", "trunc_div", "remainder", "fmod")


def exact_ops(group: tuple[str, ...]) -> list[Op]:
    """The operators of both tables on the dtypes of *group*."""
    made = []
    for table, letters in ((UNARY, "a"), (BINARY, "ab")):
        for name, (dtypes, _) in table.items():
            for dtype in dtypes:
                if dtype in group:
                    out = "bool" if name in PREDICATES else dtype
                    made.append(
                        Op(f"{name}__{dtype}", f"{name}({', '.join(letters)})", (dtype,) * len(letters), out)
                    )
    return made


# of integers the smallest and the largest are quick: those between them are lanes of other widths
GROUPS = {
    "float": FLOATS,
    "signed": ("i64",),
    "more signed": ("i8", "i16", "i32"),
    "unsigned": ("u8", "bool"),
    "more unsigned": tuple(name for name in UNSIGNED if name != "u8"),
}
QUICK = ("float", "signed")


@pytest.mark.parametrize(
    "group", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in GROUPS]
)
@pytest.mark.parametrize("level", level_params())
def test_exact_operators(level: Level, group: str) -> None:
    ops = exact_ops(GROUPS[group])
    kernels = build_ops(level, ops)
    failures = []
    for op in ops:
        name, dtype = op.name.split("__")
        _, function = (UNARY if len(op.inputs) == 1 else BINARY)[name]
        inputs = pairs(dtype) if len(op.inputs) == 2 else (edges(dtype).repeat(3),)
        if name in DIVISIONS and dtype not in FLOATS:
            # torch raises on zero and traps on the overflow of min / -1
            low = torch.iinfo(DTYPES[dtype]).min
            ints = inputs[1].to(torch.int64)
            kernels[f"v_{op.name}"](
                inputs[0].clone(), torch.zeros_like(inputs[0]), torch.empty_like(inputs[0]), 17
            )
            kernels[f"s_{op.name}"](
                inputs[0].clone(), torch.zeros_like(inputs[0]), torch.empty_like(inputs[0]), 17
            )
            overflow = (ints == -1) & (inputs[0].to(torch.int64) == low) if low < 0 else ints < 0
            inputs = tuple(x[(ints != 0) & ~overflow].clone() for x in inputs)
        if name == "pow":
            keep = (inputs[1].to(torch.int64) >= 0) | (inputs[0] == 1) | (inputs[0].to(torch.int64) == -1)
            inputs = tuple(x[keep].clone() for x in inputs)
        expected = wide_enough(function, *inputs)
        if name == "sqrt":  # torch's vector code is not correctly rounded
            expected = (
                torch.sqrt(inputs[0].double()).to(inputs[0].dtype)
                if dtype == "f32"
                else inputs[0]
                .new_tensor([math.sqrt(x) if x >= 0 else math.nan for x in inputs[0].tolist()])
                .copysign(inputs[0])
            )
        if name in ("remainder", "fmod") and dtype in FLOATS:  # nor does it know huge quotients
            known = (
                ((inputs[0] / inputs[1]).abs() < 1e8)
                | inputs[0].isnan()
                | inputs[1].isnan()
                | (inputs[1] == 0)
            )
            inputs, expected = tuple(x[known].clone() for x in inputs), expected[known]
        for form in "vs":
            try:
                same(run(kernels, form, op, *inputs), expected, f"{form}_{op.name}", inputs)
            except AssertionError as error:
                failures.append(str(error))
    assert not failures, "\n".join(failures)


MIXED = [
    Op("where__f32", "where(a, b, c)", ("bool", "f32", "f32"), "f32"),
    Op("where__f64", "where(a, b, c)", ("bool", "f64", "f64"), "f64"),
    Op("where__i64", "where(a, b, c)", ("bool", "i64", "i64"), "i64"),
    Op("where__i8", "where(a, b, c)", ("bool", "i8", "i8"), "i8"),
    Op("where__u16", "where(a, b, c)", ("bool", "u16", "u16"), "u16"),
    Op("where__bool", "where(a, b, c)", ("bool", "bool", "bool"), "bool"),
]


@pytest.mark.parametrize("level", level_params())
def test_where_fma_and_bitcast(level: Level) -> None:
    fma = [Op(f"fma__{t}", "fma(a, b, c)", (t, t, t), t) for t in FLOATS]
    bits = [
        Op("bits__f32", "bitcast<i32>(a)", ("f32",), "i32"),
        Op("bits__i32", "bitcast<f32>(a)", ("i32",), "f32"),
        Op("bits__f64", "bitcast<i64>(a)", ("f64",), "i64"),
        Op("bits__u8", "bitcast<i8>(a)", ("u8",), "i8"),
    ]
    back = [
        Op(f"back__{t}__{i}", f"cast<{t}>(cast<{i}>(a))", (t,), t) for t in FLOATS for i in ("i32", "i64")
    ]
    kernels = build_ops(level, MIXED + fma + bits + back)
    for op in MIXED:
        m = (torch.arange(37) * 7 % 3) == 0
        b, c = (
            (torch.arange(37) % 5 == k).to(DTYPES[op.output]) if op.output == "bool" else
            (torch.arange(37) + k).to(DTYPES[op.output]) for k in (1, 90)
        )  # fmt: skip
        for form in "vs":
            expected = torch.where(m, b.to(torch.int64), c.to(torch.int64)).to(b.dtype)
            same(run(kernels, form, op, m, b, c), expected, op.name, (m, b, c))
    for op in fma:
        a = torch.full(
            (19,), 1.0 + 2.0**-12 if op.output == "f32" else 1.0 + 2.0**-30, dtype=DTYPES[op.output]
        )
        c = -(a * a)
        for form in "vs":
            error = run(kernels, form, op, a, a, c)
            assert (error == (2.0**-24 if op.output == "f32" else 2.0**-60)).all(), (
                f"{form}_{op.name} rounds twice"
            )
    for op in bits:
        x = edges(op.inputs[0])
        for form in "vs":
            same(run(kernels, form, op, x), x.view(DTYPES[op.output]), op.name, (x,))
    for op in back:  # no compiler makes one truncation of it, with a negative zero for -0.5
        x = torch.tensor([-0.5, -0.0, 0.5, 2.5, -7.9, 1e30, -1e30] * 5, dtype=DTYPES[op.output])
        whole = x.to(DTYPES[op.name.rsplit("__", 1)[1]]).to(x.dtype)
        for form in "vs":
            result = run(kernels, form, op, x)
            same(result, whole, op.name, (x,))
            assert torch.equal(result.signbit(), whole.signbit()), f"{form}_{op.name}"


ALL = (*FLOATS, *SIGNED, *UNSIGNED, "bool", "bf16", "f16")


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("level", level_params())
def test_casts(level: Level, every: int) -> None:
    """Of every type into a fifth of all others, each of them by a fifth of all; or all pairs."""
    compute = [t for t in ALL if t not in ("bf16", "f16")]
    ops = [
        Op(f"cast__{s}_{d}", f"cast<{d}>(a)", (s,), d)
        for i, s in enumerate(compute)
        for j, d in enumerate(compute)
        if not (i + j) % every
    ]
    # 16-bit floats are cast by their load and store
    ops += [Op(f"cast__{s}_f32", "a", (s,), "f32") for s in ("bf16", "f16")]
    ops += [Op(f"cast__f32_{d}", "a", ("f32",), d) for d in ("bf16", "f16")]
    kernels = build_ops(level, ops)
    failures = []
    for op in ops:
        source, target = op.inputs[0], op.output
        x = edges("f32").to(DTYPES[source]) if source in ("bf16", "f16") else edges(source)
        if target in ("bf16", "f16"):
            halfway = torch.arange(0x3F800000, 0x3F800000 + 70000, 4093, dtype=torch.int32).view(
                torch.float32
            )
            x = torch.cat(
                [x, halfway, -halfway * 2.0**-15, halfway * 2.0**-24, halfway * 60000, torch.randn(999) * 1e4]
            )
        if source in FLOATS and target in ("u32", "u64"):
            x = x[(x >= 0) & (x < 4e9)].clone()  # torch's own answers differ between vector and scalar code
        elif source in FLOATS and target not in (*FLOATS, "bool", "bf16", "f16"):
            x = x[~(x.abs() >= 2.0**63)].clone()
        expected = x.to(DTYPES[target])
        for form in "vs":
            try:
                same(run(kernels, form, op, x), expected, f"{form}_{op.name}", (x,))
            except AssertionError as error:
                failures.append(str(error))
    assert not failures, "\n".join(failures)
