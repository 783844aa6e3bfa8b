"""Small graphs for tests of the scheduler, and a way to run what it makes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import torch

from polyfuse.base.settings import Settings
from polyfuse.ir.expr import Expr, apply, load
from polyfuse.ir.graph import Graph, GraphInput, GraphOutput
from polyfuse.ir.interpreter.interpret import run_kernel
from polyfuse.ir.nodes import Buffer, Collective, ExternCall, Node, Pointwise, Reduction, Wait
from polyfuse.ir.types import DType
from polyfuse.plugin import Backend, Claim, FusionRules, Source, Yes
from polyfuse.plugin.session.fusion_rules import NO_RULES
from polyfuse.schedule import Launch, Schedule, UnclaimedError, claim_nodes
from polyfuse.schedule.schedule import schedule_graph
from polyfuse.symbolic import Index, IndexLike, axis


class Anything(Backend):
    """Claims everything, generates nothing."""

    name = "anything"

    def claims(self, node: Node) -> Claim:
        return Yes()

    def emit(self, kernel, config=None) -> Source:
        raise AssertionError

    def build(self, sources, folder) -> None:
        raise AssertionError

    def load(self, folder):
        raise AssertionError


@dataclass
class Maker:
    """Builds graphs tersely."""

    buffers: dict[str, Buffer] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    inputs: list[GraphInput] = field(default_factory=list)
    hints: dict[str, int] = field(default_factory=dict)
    backend: type[Backend] = Anything
    kind: str = "inference"
    rules: FusionRules = NO_RULES

    def buffer(
        self, name: str, *size: IndexLike, stride=None, dtype=DType.f32, kind="temp", device="cpu"
    ) -> str:
        if stride is None:
            stride, step = [], 1
            for n in reversed(size):
                stride.insert(0, step)
                step = step * n
        self.buffers[name] = Buffer(name, dtype, device, size, tuple(stride), "float32", kind)
        if kind == "input":
            self.inputs.append(GraphInput(name, "tensor"))
        return name

    def at(self, name: str, *index: IndexLike) -> IndexLike:
        total: IndexLike = 0
        for i, s in zip(index, self.buffers[name].stride, strict=True):
            total = total + i * s
        return total

    def load(self, name: str, *index: IndexLike) -> Expr:
        return load(name, self.at(name, *index), self.buffers[name].dtype)

    def pointwise(self, name: str, axes: tuple[Index, ...], value: Expr, *index: IndexLike) -> None:
        target = self.at(name, *(index or axes))
        self.nodes.append(Pointwise(f"n{len(self.nodes)}", axes, (), name, target, value))

    def reduce(self, names, axes, raxes, kind, *values: Expr) -> None:
        names = (names,) if isinstance(names, str) else names
        self.nodes.append(
            Reduction(f"n{len(self.nodes)}", axes, raxes, names, self.at(names[0], *axes), kind, values)
        )

    def call(self, op: str, outputs: tuple[str, ...], *args: object, **facts) -> None:
        views = tuple(self.buffers[a].view() if a in self.buffers else a for a in args)
        self.nodes.append(ExternCall(f"n{len(self.nodes)}", op, views, (), outputs, **facts))

    def start(self, target: str, group: str = "0", source: str = "") -> None:
        """A sum over processes that overwrites `target`, or `source` gathered into it."""
        name = f"n{len(self.nodes)}"
        view = self.buffers[source or target].view()
        if source:
            op = "_c10d_functional.all_gather_into_tensor.default"
            self.nodes.append(Collective(name, op, (view, 2, group), (), (target,), group=group))
        else:
            op = "_c10d_functional.all_reduce_.default"
            args = (view, "sum", group)
            self.nodes.append(Collective(name, op, args, (), (), "none", (target,), group=group))

    def wait(self, target: str, *held: str) -> None:
        """Wait for what was started on a buffer."""
        op = "_c10d_functional.wait_tensor.default"
        args = (self.buffers[target].view(),)
        self.nodes.append(Wait(f"n{len(self.nodes)}", op, args, (), (), "none", (target,), holds=held))

    def graph(self, *outputs: str) -> Graph:
        return Graph(
            "g",
            self.kind,
            tuple(self.inputs),
            tuple(GraphOutput(self.buffers[o].view()) for o in outputs),
            self.buffers,
            tuple(self.nodes),
            {},
            self.hints,
        )

    def schedule(self, *outputs: str, **options) -> Schedule:
        settings = Settings.resolve(None, options)
        return scheduled(self.graph(*outputs), settings, lambda device: (self.backend(settings),), self.rules)


def scheduled(
    graph: Graph,
    settings: Settings,
    backends: Callable[[str], Iterable[Backend]],
    rules: FusionRules = NO_RULES,
) -> Schedule:
    """The schedule of a graph, each loop by the first backend that claims it."""
    claims = claim_nodes(graph, backends, settings)
    if claims.refused:
        raise UnclaimedError(claims.refused)
    schedule = schedule_graph(
        claims.graph, settings, backends, claims.backends, rules=lambda backend, device_type: rules
    )
    return replace(schedule, decisions=(*claims.decisions, *schedule.decisions))


def axes(*sizes: IndexLike, prefix: str = "i") -> tuple[Index, ...]:
    return tuple(axis(f"{prefix}{k}", s) for k, s in enumerate(sizes))


def vectors(size: IndexLike, inputs: str, others: str = "") -> tuple[Maker, Index]:
    """A graph of vectors of one size, by names with spaces between them, and the axis along them."""
    m = Maker()
    for name in inputs.split():
        m.buffer(name, size, kind="input")
    for name in others.split():
        m.buffer(name, size)
    return m, axes(size)[0]


def gathered() -> Maker:
    """`a` is gathered into `g` while `b` is computed from it."""
    m = Maker()
    (i,) = axes(4)
    m.buffer("x", 4, kind="input")
    for name in ("a", "b"):
        m.buffer(name, 4)
    m.buffer("g", 8)
    m.pointwise("a", (i,), apply("exp", m.load("x", i)))
    m.start("g", source="a")
    m.pointwise("b", (i,), apply("sin", m.load("a", i)))
    return m


def run(
    schedule: Schedule, inputs: dict[str, torch.Tensor], sizes: dict[str, int] | None = None
) -> dict[str, torch.Tensor]:
    """Run all launches with the kernel interpreter."""
    from polyfuse.symbolic.text import evaluate

    values = sizes or {}
    memory = dict(inputs)
    for step in schedule.steps:
        assert isinstance(step, Launch)
        for name in step.writes:
            if name not in memory:
                info = schedule.graph.buffers[name]
                memory[name] = torch.empty_strided(
                    [evaluate(s, values) for s in info.size],
                    [evaluate(s, values) for s in info.stride],
                    dtype=info.dtype.torch,
                )
        run_kernel(
            step.kernel, [memory[o] if isinstance(o, str) else evaluate(o, values) for o in step.operands]
        )
    return memory


def reasons(schedule: Schedule, kind: str = "refuse") -> list[str]:
    """The reasons of all decisions of a kind."""
    return [d.reason for d in schedule.decisions if d.kind == kind]
