"""A program is data: whoever prints another language needs nothing but the steps."""

from __future__ import annotations

import dataclasses

import torch

from polyfuse.ir.nodes import View
from polyfuse.program.steps import (
    Allocate,
    AssertLayout,
    BindSymbol,
    Conform,
    ExternStep,
    Free,
    LaunchKernel,
    MakeView,
    Program,
    Ref,
    Return,
    Reuse,
)
from polyfuse.symbolic import symbol
from polyfuse.symbolic.text import python_text as size
from program_builder import Builder, add, add_one


def small() -> Builder:
    s0 = symbol("s0", 2)
    b = Builder(s0=8)
    b.tensor("x", (s0, 4))
    b.constant("k", torch.ones(4))
    for name in ("a", "b", "c"):
        b.buffer(name, (s0, 4))
    b.launch(add, ["a"], ["x", "k"], s0, kernel="add")
    b.call("aten.relu.default", [b.view("a")], ["b"])
    b.launch(add_one, ["c"], ["b"], kernel="inc")
    b.output("c", View("c", (4,), (1,), 4), s0)
    return b


def toy(program: Program, comment: str, end: str) -> list[str]:
    """The program in a language of calls and assignments, with its own comments and ends of lines."""

    def shown(value: object) -> str:
        if isinstance(value, Ref):
            return value.name
        if isinstance(value, View):
            return f"window({value.buffer}, {size(value.offset)})"
        if isinstance(value, tuple):
            return "[" + " ".join(map(shown, value)) + "]"
        return value if isinstance(value, str) else size(value)

    lines = [f"{comment} {program.name}: {' '.join(item.name for item in program.inputs)}"]
    for step in program.steps:
        match step:
            case BindSymbol():
                text = f"{step.symbol} <- {step.read.kind} {step.read.dim} of {step.read.name}"
            case AssertLayout() | Conform():
                text = f"check {step.name} {shown(step.size)} {shown(step.stride)}"
            case Allocate():
                text = f"{step.name} <- new {step.dtype} {shown(step.size)}"
            case Reuse():
                text = f"{step.new} <- storage of {step.old}"
            case Free():
                text = f"forget {shown(step.names)}"
            case MakeView():
                text = f"{step.name} <- {shown(step.view)}"
            case LaunchKernel():
                text = f"run {step.kernel} {shown(step.operands)}"
            case ExternStep():
                text = f"{shown(step.outputs)} <- {step.op} {shown(step.args)}"
            case Return():
                text = f"give {shown(step.values)}"
            case _:
                raise AssertionError(step)
        lines.append(text + end)
    return lines


def test_another_language_is_another_function_over_the_same_steps() -> None:
    lines = toy(small().program(), "--", " .")
    assert lines[0] == "-- g: x"
    assert lines[1:] == [
        "s0 <- size 0 of x .",
        "check x [s0 4] [4 1] .",
        "a <- new float32 [s0 4] .",
        "run add_0 [a x k s0] .",
        "forget [x] .",
        "[b] <- aten.relu.default [a] .",
        "check b [s0 4] [4 1] .",
        "c <- storage of a .",
        "run inc_1 [c b] .",
        "view_1 <- window(c, 4) .",
        "give [c view_1 s0] .",
    ]


def test_equal_schedules_give_equal_programs() -> None:
    one, two = small().program(), small().program()
    assert one == two and hash(one.steps) == hash(two.steps)
    assert all(dataclasses.is_dataclass(step) and step.__dataclass_params__.frozen for step in one.steps)
