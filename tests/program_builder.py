"""Hand-built graphs and schedules whose kernels are Python functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from polyfuse.base.settings import Settings
from polyfuse.ir.expr import load
from polyfuse.ir.graph import Graph, GraphInput, GraphOutput, reads
from polyfuse.ir.kernel import Kernel, KernelArg
from polyfuse.ir.nodes import Buffer, ExternCall, Origin, Pointwise, View
from polyfuse.ir.types import DType
from polyfuse.program import Program, plan, python_text
from polyfuse.runtime import CompiledModule
from polyfuse.runtime import load as load_text
from polyfuse.schedule.result import Call, Launch, Schedule
from polyfuse.symbolic import Index, IndexLike, axis

Sizes = Sequence[IndexLike]


def strides(size: Sizes) -> tuple[IndexLike, ...]:
    found: list[IndexLike] = []
    step: IndexLike = 1
    for n in reversed(size):
        found.append(step)
        step = step * n
    return tuple(reversed(found))


class Builder:
    """Collects buffers, inputs, steps and outputs, then makes the schedule."""

    def __init__(self, **hints: int) -> None:
        self.buffers: dict[str, Buffer] = {}
        self.inputs: list[GraphInput] = []
        self.outputs: list[GraphOutput] = []
        self.steps: list[Launch | Call] = []
        self.functions: dict[str, Callable[..., Any]] = {}
        self.objects: dict[str, Any] = {}
        self.removed: list[str] = []
        self.hints = hints

    def buffer(
        self,
        name: str,
        size: Sizes,
        stride: Sizes | None = None,
        dtype: DType = DType.f32,
        kind: str = "temp",
    ) -> str:
        layout = tuple(size), tuple(strides(size) if stride is None else stride)
        self.buffers[name] = Buffer(
            name, dtype, "cpu", *layout, str(dtype.torch).removeprefix("torch."), kind
        )
        return name

    def tensor(
        self,
        name: str,
        size: Sizes,
        stride: Sizes | None = None,
        static: bool = False,
        dtype: DType = DType.f32,
    ) -> str:
        self.inputs.append(GraphInput(name, "tensor", static=static))
        return self.buffer(name, size, stride, dtype, kind="input")

    def symint(self, name: str, value: Index) -> None:
        self.inputs.append(GraphInput(name, "symint", value))

    def constant(self, name: str, value: torch.Tensor) -> str:
        self.objects[name] = value
        return self.buffer(name, value.shape, value.stride(), kind="constant")

    def launch(
        self,
        function: Callable[..., Any],
        outs: Sequence[str],
        ins: Sequence[str],
        *sizes: IndexLike,
        inplace: Sequence[tuple[str, str]] = (),
        kernel: str = "",
        source: str = "",
    ) -> None:
        """`function(*outs, *ins, *sizes)` as a kernel; launches with the same `kernel` share it."""
        name = f"step{len(self.steps)}"
        args = [KernelArg(f"out{i}", "out", DType.f32) for i in range(len(outs))]
        args += [KernelArg(f"in{i}", "in", DType.f32) for i in range(len(ins))]
        args += [KernelArg(f"n{i}", "size", DType.i64) for i in range(len(sizes))]
        made = Kernel(kernel or f"k{len(self.steps)}", "cpu", (), (), tuple(args), (), ())
        at = axis("i", 4)
        origin = (Origin("aten.relu.default", "relu", source),) if source else ()
        node = Pointwise(
            name,
            (at,),
            (),
            outs[0],
            at,
            load(ins[0], at, DType.f32) if ins else load(outs[0], at, DType.f32),
            origins=origin,
        )
        self.functions[name] = function
        operands = (*outs, *ins, *sizes)
        self.steps.append(
            Launch(name, made, operands, (node,), "python", tuple(ins), tuple(outs), tuple(inplace))
        )

    def call(
        self,
        op: str,
        args: Sequence[Any],
        outputs: Sequence[str] = (),
        *,
        out: str = "single",
        kwargs: Sequence[tuple[str, Any]] = (),
        source: str = "",
        **more: Any,
    ) -> None:
        origins = (Origin(op, op.split(".")[1], source),) if source else ()
        node = ExternCall(
            f"step{len(self.steps)}",
            op,
            tuple(args),
            tuple(kwargs),
            tuple(outputs),
            out,
            origins=origins,
            **more,
        )
        self.steps.append(Call(node, reads(node), node.writes()))

    def view(self, name: str, size: Sizes | None = None, stride: Sizes = (), offset: IndexLike = 0) -> View:
        return self.buffers[name].view() if size is None else View(name, tuple(size), tuple(stride), offset)

    def output(self, *values: Any) -> None:
        self.outputs += [GraphOutput(self.buffers[v].view() if isinstance(v, str) else v) for v in values]

    def schedule(self) -> Schedule:
        graph = Graph(
            "g",
            "inference",
            tuple(self.inputs),
            tuple(self.outputs),
            self.buffers,
            tuple(n for s in self.steps for n in (s.nodes if isinstance(s, Launch) else (s.node,))),
            self.objects,
            self.hints,
        )
        returned = {o.value.buffer for o in self.outputs if isinstance(o.value, View)}
        for step in self.steps:
            if isinstance(step, Call):
                if returned & set(step.node.outputs):
                    returned |= set(step.node.aliases)
        last: dict[str, int] = {}
        alias_of = {o: s.node.aliases for s in self.steps if isinstance(s, Call) for o in s.node.outputs}
        for i, step in enumerate(self.steps):
            for name in (*step.reads, *step.writes):
                for used in (name, *alias_of.get(name, ())):
                    last[used] = i
        dead: list[list[str]] = [[] for _ in self.steps]
        for name, i in last.items():
            if name not in returned and name not in self.removed and self.buffers[name].kind != "constant":
                dead[i].append(name)
        return Schedule(graph, tuple(self.steps), tuple(self.removed), tuple(map(tuple, dead)))

    def program(self, **options: Any) -> Program:
        return plan(self.schedule(), Settings(**options))

    def text(self, **options: Any) -> str:
        return python_text(self.program(**options))

    def module(self, **options: Any) -> CompiledModule:
        program = self.program(**options)
        kernels = {k.name: self.functions[k.launches[0]] for k in program.kernels}
        return load_text(python_text(program), kernels, self.objects)


def add_one(out: torch.Tensor, x: torch.Tensor) -> None:
    torch.add(x.reshape(out.shape), 1, out=out)


def add(out: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> None:
    torch.add(x, y, out=out)
