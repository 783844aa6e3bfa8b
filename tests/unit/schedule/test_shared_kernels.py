"""Units that compute the same share a kernel, and no others do."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import nn

from polyfuse.ir.expr import Expr, apply, const, index_value, load
from polyfuse.ir.nodes import Buffer, LoopNode, Pointwise, Reduction, Scan, Scatter
from polyfuse.ir.text.print import text
from polyfuse.ir.types import DType
from polyfuse.plugin import TargetInfo
from polyfuse.schedule import Launch
from polyfuse.schedule.fusion.space import Renaming, Space, fresh_axes
from polyfuse.schedule.fusion.units import Unit, UnitSpaces, loop_unit, remap
from polyfuse.schedule.kernels import kernelize
from polyfuse.schedule.kernels.kernelize import KernelContext, SharedKernels
from polyfuse.schedule.kernels.outlines import Outline, members_of, outline_of
from polyfuse.symbolic import IndexLike, axis, axis_name, axis_size, symbol
from schedule_builder import Maker, axes, run

S0 = symbol("s0", 2, 64)


def buffer(name: str, *size: IndexLike, **facts: Any) -> Buffer:
    stride: list[IndexLike] = []
    step: IndexLike = 1
    for n in reversed(size):
        stride.insert(0, step)
        step = step * n
    facts = {"dtype": DType.f32, "device": "cpu", "torch_dtype": "float32", **facts}
    return Buffer(name, size=size, stride=facts.pop("stride", tuple(stride)), **facts)


@dataclass
class Scene:
    """A unit, and what outlines are called with of its graph."""

    node: LoopNode
    buffers: dict[str, Buffer] = field(
        default_factory=lambda: {name: buffer(name, 8, 4) for name in ("x", "y", "z")}
    )
    removed: frozenset[str] = frozenset()
    aligned: frozenset[str] = frozenset()
    backend: str = "one"
    device: str = "cpu"
    change: Callable[[Unit], Unit] = lambda unit: unit

    def outline(self) -> Outline:
        unit = self.change(loop_unit(self.node, 0, self.backend, self.device, UnitSpaces()))
        return outline_of(unit, self.buffers, self.removed, self.aligned)[0]


I, J = axes(8, 4)
AT = 4 * I + J


def pointwise(value: Expr, index: IndexLike = AT, output: str = "z", loops: Any = (I, J)) -> Pointwise:
    return Pointwise("n", tuple(loops), (), output, index, value)


def read(name: str, index: IndexLike = AT, dtype: DType = DType.f32, **masks: Any) -> Expr:
    return load(name, index, dtype, **masks)


SUM = pointwise(apply("add", read("x"), read("y")))
TOTAL = Reduction("n", (I,), (J,), ("z",), I, "sum", (read("x"),))
EXTREME = Reduction("n", (I,), (J,), ("z", "y"), I, "argmax", (read("x"), index_value(J)))
WRITE = Scatter("n", (I, J), (), "z", axis("@0", 8), (read("y", dtype=DType.i64),), read("x"))
YES = apply("lt", read("y"), const(0, DType.f32))


def of(node: LoopNode, **given: Any) -> Scene:
    return Scene(node, **given)


def sized(name: str, *size: IndexLike, **facts: Any) -> dict[str, Buffer]:
    """The buffers of a scene with another one instead of `name`."""
    return {**Scene(SUM).buffers, name: buffer(name, *size, **facts)}


def at_level(level: str) -> Callable[[Unit], Unit]:
    def change(unit: Unit) -> Unit:
        members = tuple(replace(member, level=level) for member in unit.members)
        return Unit(members, unit.space, unit.accesses, unit.backend, unit.device, False)

    return change


def swapped(unit: Unit) -> Unit:
    """The node runs along the unit's axes in the other order."""
    (member,) = unit.members
    first, second = member.mapping.values()
    mapping = dict(zip(member.mapping, (second, first), strict=True))
    return Unit((replace(member, mapping=mapping),), unit.space, unit.accesses, "one", "cpu", False)


SQUARE = axes(4, 4)
ROWS = pointwise(read("x", 4 * SQUARE[0]), 4 * SQUARE[0] + SQUARE[1], loops=SQUARE)

DIFFERENT = {
    "operation": (of(SUM), of(pointwise(apply("mul", read("x"), read("y"))))),
    "the order of operands": (
        of(pointwise(apply("sub", read("x"), apply("exp", read("y"))))),
        of(pointwise(apply("sub", apply("exp", read("y")), read("x")))),
    ),
    "one buffer read twice": (of(SUM), of(pointwise(apply("add", read("x"), read("x"))))),
    "reading what is written": (of(SUM), of(pointwise(apply("add", read("x"), read("z"))))),
    "index of a load": (of(SUM), of(pointwise(apply("add", read("x"), read("y", 8 * J + I))))),
    "offset of a load": (of(SUM), of(pointwise(apply("add", read("x"), read("y", AT + 1))))),
    "index of the store": (of(SUM), of(replace(SUM, index=8 * J + I))),
    "mask": (
        of(pointwise(read("x", mask=YES, other=const(0, DType.f32)))),
        of(pointwise(read("x", mask=YES, other=const(1, DType.f32)))),
    ),
    "signs of zeros": (
        of(pointwise(const(0.0, DType.f32))),
        of(pointwise(const(-0.0, DType.f32))),
    ),
    "infinity and NaN": (
        of(pointwise(const(math.inf, DType.f32))),
        of(pointwise(const(math.nan, DType.f32))),
    ),
    "type of a constant": (of(pointwise(const(1, DType.i64))), of(pointwise(const(True, DType.bool)))),
    "kind of random numbers": tuple(
        of(pointwise(Expr("rand", (const(1, DType.i64), index_value(AT)), DType.f32, kind)))
        for kind in ("rand", "randn")
    ),
    "type of a load": (
        of(SUM),
        of(pointwise(apply("add", read("x", dtype=DType.f64), read("y", dtype=DType.f64)))),
    ),
    "type of a buffer": (of(SUM), of(SUM, buffers=sized("x", 8, 4, dtype=DType.f16))),
    "type of what is written": (of(SUM), of(SUM, buffers=sized("z", 8, 4, dtype=DType.bf16))),
    "extent of a buffer": (of(SUM), of(SUM, buffers=sized("x", 9, 4))),
    "strides of a buffer": (of(SUM), of(SUM, buffers=sized("x", 8, 4, stride=(8, 1)))),
    "alignment": (of(SUM), of(SUM, aligned=frozenset({"x"}))),
    "which one is aligned": (of(SUM, aligned=frozenset({"y"})), of(SUM, aligned=frozenset({"x"}))),
    "whether it is stored": (of(SUM), of(SUM, removed=frozenset({"z"}))),
    "sizes": (of(SUM), of(pointwise(SUM.value, 4 * I + axis("i1", 3), loops=(I, axis("i1", 3))))),
    "names of sizes": (
        of(pointwise(read("x", I), I, loops=axes(S0))),
        of(pointwise(read("x", I), I, loops=axes(symbol("s1", 2, 64)))),
    ),
    "bounds of sizes": (
        of(pointwise(read("x", I), I, loops=axes(S0))),
        of(pointwise(read("x", I), I, loops=axes(symbol("s0", 2, 65)))),
    ),
    "the order of loops": (of(ROWS), of(ROWS, change=swapped)),
    "level": (of(SUM), of(SUM, change=at_level("R"))),
    "backend": (of(SUM), of(SUM, backend="other")),
    "device": (of(SUM), of(SUM, device="cuda:0")),
    "kind of a reduction": (of(TOTAL), of(replace(TOTAL, kind="max"))),
    "loops that reduce": (of(TOTAL), of(replace(TOTAL, axes=(J,), raxes=(I,)))),
    "reduction or scan": (
        of(replace(TOTAL, index=AT)),
        of(Scan("n", (I,), (J,), ("z",), AT, "sum", (read("x"),))),
    ),
    "results that are used": (of(EXTREME), of(replace(EXTREME, outputs=("z", "")))),
    "which result is used": (
        of(replace(EXTREME, outputs=("", "z"))),
        of(replace(EXTREME, outputs=("z", ""))),
    ),
    "store or scatter": (of(pointwise(read("x"))), of(Scatter("n", (I, J), (), "z", AT, (), read("x")))),
    "mode of a scatter": (of(WRITE), of(replace(WRITE, mode="add"))),
    "mask of a scatter": (of(WRITE), of(replace(WRITE, mask=YES))),
    "mask or index of a scatter": (
        of(replace(WRITE, mask=YES, indirect=())),
        of(replace(WRITE, mask=None, indirect=(YES,))),
    ),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_units_that_differ_in_one_property_have_other_outlines(name: str) -> None:
    first, second = (scene.outline() for scene in DIFFERENT[name])
    assert first != second


NAMED = {"pointwise": SUM, "reduction": TOTAL, "two results": EXTREME, "scatter": replace(WRITE, mask=YES)}


@pytest.mark.parametrize("name", NAMED)
def test_names_and_origins_make_no_difference(name: str) -> None:
    node = NAMED[name]
    renamed = _with_buffers(node, {"x": "other", "y": "b0", "z": "x"})
    first, second = Scene(node), Scene(replace(renamed, name="m"))
    second.buffers = {new: buffer(new, 8, 4) for new in ("other", "b0", "x")}
    second.buffers["unrelated"] = buffer("unrelated", 3)
    unit = _by_other_axes(loop_unit(replace(node, name="k"), 7, "one", "cpu", UnitSpaces()))
    third = outline_of(unit, first.buffers, frozenset(), frozenset())[0]
    assert first.outline() == second.outline() == third
    assert hash(first.outline()) == hash(second.outline()) == hash(third)


def _by_other_axes(unit: Unit) -> Unit:
    fresh, axes = fresh_axes([unit.space]), (unit.space.axes, unit.space.raxes)
    new = {axis_name(var): fresh(axis_size(var)) for part in axes for var in part}
    members, accesses = remap(unit, Renaming(new), None)
    space = Space(*(tuple(new[axis_name(var)] for var in part) for part in axes))
    return replace(unit, members=members, accesses=accesses, space=space)


@pytest.mark.parametrize("name", NAMED)
def test_an_outline_holds_the_whole_node(name: str) -> None:
    """Read back under its own names, a node is what it was, in every field there is."""
    node = NAMED[name]
    unit = loop_unit(node, 0, "one", "cpu", UnitSpaces())
    outline, names = outline_of(unit, Scene(node).buffers, frozenset(), frozenset())
    (member,) = members_of(outline)
    assert isinstance(member.node, LoopNode)
    assert replace(_with_buffers(member.node, names), name="n") == node


def _with_buffers(node: Any, names: dict[str, str]) -> Any:
    """A node with its buffers renamed."""
    if isinstance(node, (str, Expr)):
        if isinstance(node, str):
            return names.get(node, node)
        args = tuple(_with_buffers(arg, names) for arg in node.args)
        payload = node.payload
        if node.op == "load":
            payload = payload._replace(buffer=names.get(node.buffer, node.buffer))
        return Expr(node.op, args, node.dtype, payload)
    if isinstance(node, tuple):
        return tuple(_with_buffers(item, names) for item in node)
    if not isinstance(node, LoopNode):
        return node
    fields = {"output", "outputs", "target", "value", "values", "indirect", "mask"}
    return replace(node, **{f: _with_buffers(v, names) for f, v in vars(node).items() if f in fields})


def context(**given: Any) -> KernelContext:
    facts = {"reorder": True, "numerics": "fast", "symbol_hints": {}, **given}
    return KernelContext(lambda index: int(index), target_info=lambda *_: TargetInfo(), **facts)


def test_a_kernel_is_made_once_and_launched_with_the_buffers_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Outline] = []
    build = kernelize._build_kernel
    monkeypatch.setattr(kernelize, "_build_kernel", lambda o, c: (made.append(o), build(o, c))[1])
    m = Maker()
    m.buffer("h0", 8, 4, kind="input")
    for k in range(5):
        i, j = axes(8, 4)
        m.buffer(f"t{k}", 8)
        m.buffer(f"h{k + 1}", 8, 4)
        m.reduce(f"t{k}", (i,), (j,), "sum", m.load(f"h{k}", i, j))
        m.pointwise(f"h{k + 1}", (i, j), apply("mul", m.load(f"h{k}", i, j), m.load(f"t{k}", i)))
    launches = [
        step for step in m.schedule("h5", fusion=False, inplace=False).steps if isinstance(step, Launch)
    ]
    assert len(launches) == 10 and len(made) == len(set(made)) == 2
    assert {launch.kernel for launch in launches} == {launches[0].kernel, launches[1].kernel}
    assert [launch.operands for launch in launches[::2]] == [(f"h{k}", f"t{k}") for k in range(5)]


def test_the_first_of_equal_units_decides_nothing_for_the_others() -> None:
    """One of two equal sums is read elsewhere too, and has to be written."""
    m = Maker()
    for name in ("x0", "x1"):
        m.buffer(name, 8, 4, kind="input")
    for k in range(2):
        i, j = axes(8, 4)
        m.buffer(f"t{k}", 8)
        m.buffer(f"y{k}", 8, 4)
        m.reduce(f"t{k}", (i,), (j,), "sum", m.load(f"x{k}", i, j))
        m.pointwise(f"y{k}", (i, j), apply("sub", m.load(f"x{k}", i, j), m.load(f"t{k}", i)))
    schedule = m.schedule("y0", "y1", "t1")
    inputs = {f"x{k}": torch.randn(8, 4) for k in range(2)}
    found = run(schedule, inputs)
    for k in range(2):
        torch.testing.assert_close(found[f"y{k}"], inputs[f"x{k}"] - inputs[f"x{k}"].sum(1, keepdim=True))
    torch.testing.assert_close(found["t1"], inputs["x1"].sum(1))


class Layer(nn.Module):
    """Layers of one of several kinds, by a number."""

    def __init__(self, kind: int) -> None:
        super().__init__()
        self.kind, self.linear, self.norm = kind, nn.Linear(12, 12), nn.LayerNorm(12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        if self.kind == 0:
            return x + nn.functional.gelu(self.linear(y))
        if self.kind == 1:
            return x + self.linear(y.softmax(-1)) * (x > 0)
        if self.kind == 2:
            return x.cumsum(-1) + self.linear(y.transpose(0, 1).reshape(-1, 12))
        picked = y[:, torch.arange(11, -1, -1)] + y.amax(0)
        return x.index_add(0, torch.tensor([0, 2]), self.linear(picked)[:2])


@pytest.mark.quick(1)
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("dynamic", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels_are_the_same_with_and_without_sharing(
    training: bool, dynamic: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, counts = SharedKernels.kernel, [0, 0]

    def compared(kernels: SharedKernels, unit: Unit) -> Any:
        before = len(kernels.made)
        kernel, operands = whole(kernels, unit)
        counts[0] += 1
        counts[1] += len(kernels.made) == before
        alone, found = whole(replace(kernels, made={}), unit)
        assert text(kernel) == text(alone) and operands == found
        return kernel, operands

    monkeypatch.setattr(SharedKernels, "kernel", compared)
    torch._dynamo.reset()
    seed = int(torch.randint(1 << 30, ()))
    kinds = torch.randint(4, (3,), generator=torch.Generator().manual_seed(seed)).tolist()
    network = nn.Sequential(*(Layer(kind) for kind in kinds * 3)).to(dtype)
    options = {"backends": ["interpreter"], "repeated_layers": "off", "graph_cache": False, "strict": True}
    compiled = torch.compile(network, backend="polyfuse", dynamic=dynamic, options=options)
    x = torch.randn(5, 12, dtype=dtype)
    with torch.set_grad_enabled(training):
        found, wanted = compiled(x), network(x)
        bound = {"rtol": 1e-4, "atol": 1e-4} if dtype is torch.float32 else {"rtol": 0.1, "atol": 0.2}
        torch.testing.assert_close(found, wanted, **bound, msg=lambda m: f"kinds {kinds}: {m}")
        if training:
            found.float().square().sum().backward()
    assert counts[1] > counts[0] // 4, f"of {counts[0]} kernels {counts[1]} were shared"
