"""Stretches of a schedule, run on example inputs: what there is to time when a matrix product has several
implementations, each with other kernels around it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.digest import ir_digest
from polyfuse.ir.graph import Graph
from polyfuse.ir.nodes import Buffer, ExternCall, Opaque, View
from polyfuse.ir.types import DType
from polyfuse.plugin import Launchable
from polyfuse.program.memory import example_value, storage_size
from polyfuse.runtime.native import operator
from polyfuse.schedule import Call, Launch, Schedule
from polyfuse.symbolic import IndexLike

__all__ = ["Samples", "Segment", "node_names", "run_all", "segment"]


@dataclass(frozen=True)
class Segment:
    """Some steps of a schedule, in order, that are timed together."""

    graph: Graph
    steps: tuple[Launch | Call, ...]

    def describe(self) -> str:
        """A text that is equal for stretches that take equal time."""
        names: dict[str, str] = {}
        lines: list[str] = []
        for step in self.steps:
            if isinstance(step, Launch):
                operands = [self._layout(o, names) if isinstance(o, str) else "size" for o in step.operands]
                lines.append(f"{ir_digest(step.kernel)} {' '.join(operands)}")
            else:
                node = step.node
                lines.append(
                    f"{node.op} {self._argument(node.args, names)} {self._argument(node.kwargs, names)} -> "
                    f"{' '.join(self._layout(o, names) for o in node.outputs)}"
                )
        return "\n".join(lines)

    def _layout(self, name: str, names: dict[str, str]) -> str:
        buffer = self.graph.buffers[name]
        number = names.setdefault(name, f"b{len(names)}")
        sizes = [self._number(n) for n in (*buffer.size, *buffer.stride)]
        return f"{number}:{buffer.torch_dtype}:{sizes}"

    def _argument(self, value: Any, names: dict[str, str]) -> str:
        if isinstance(value, View):
            parts = [self._number(n) for n in (*value.size, *value.stride, value.offset)]
            return f"{self._layout(value.buffer, names)}{parts}{value.dtype or ''}"
        if isinstance(value, (tuple, list)):
            return f"({', '.join(self._argument(item, names) for item in value)})"
        return repr(value)

    def _number(self, value: IndexLike) -> int:
        return example_value(value, self.graph.symbol_hints)


def segment(schedule: Schedule, nodes: frozenset[str]) -> Segment:
    """The steps that compute any of these nodes."""
    return Segment(schedule.graph, tuple(s for s in schedule.steps if node_names(s) & nodes))


def node_names(step: Launch | Call) -> frozenset[str]:
    """The nodes that a step computes."""
    return frozenset(n.name for n in (step.nodes if isinstance(step, Launch) else (step.node,)))


@dataclass
class Samples:
    """Example tensors for the buffers of graphs that share names.

    What a call reads is random; other whole numbers are zero, because they may be indices.
    """

    hints: Mapping[str, int]
    made: dict[str, torch.Tensor] = field(default_factory=dict)
    generators: dict[str, torch.Generator] = field(default_factory=dict)

    def storage(self, buffer: Buffer, numbers: bool) -> torch.Tensor:
        """The elements of a buffer, from its start, in one dimension."""
        found = self.made.get(buffer.name)
        if found is None:
            count = max(1, example_value(storage_size(buffer.size, buffer.stride), self.hints))
            dtype = getattr(torch, buffer.torch_dtype)
            found = torch.zeros(count, dtype=dtype, device=buffer.device)
            if dtype.is_floating_point:
                found.copy_(
                    torch.randn(count, generator=self._generator(buffer.device), device=buffer.device)
                )
            elif numbers and buffer.dtype in (DType.i8, DType.u8):
                found.random_(0, 8, generator=self._generator(buffer.device))
            self.made[buffer.name] = found
        return found

    def _generator(self, device: str) -> torch.Generator:
        # one of our own: the user's random numbers stay what they would be
        if device not in self.generators:
            self.generators[device] = torch.Generator(device=device).manual_seed(0)
        return self.generators[device]

    def view(self, graph: Graph, view: View) -> torch.Tensor:
        """A tensor on example elements."""
        held = self.storage(graph.buffers[view.buffer], numbers=True)
        if view.dtype is not None and view.dtype.torch is not held.dtype:
            held = held.view(view.dtype.torch)
        size, stride = ([example_value(n, self.hints) for n in part] for part in (view.size, view.stride))
        return held.as_strided(size, stride, example_value(view.offset, self.hints))

    def launch(self, graph: Graph, step: Launch, kernel: Callable[..., Any]) -> Callable[[], Any]:
        """A launch of a built kernel."""
        operands = [
            self.storage(graph.buffers[o], numbers=False)
            if isinstance(o, str)
            else example_value(o, self.hints)
            for o in step.operands
        ]
        return lambda: kernel(*operands)

    def call(self, graph: Graph, node: ExternCall) -> Callable[[], Any]:
        """A call of a library.

        Raises:
            UnsupportedError: it takes more than tensors, numbers and names.
        """
        function = operator(node.op, out=node.out == "out")
        args = [self._value(graph, a) for a in node.args]
        named = {key: self._value(graph, value) for key, value in node.kwargs}
        if node.out == "out":
            named["out"] = self.view(graph, graph.buffers[node.outputs[0]].view())
        return lambda: function(*args, **named)

    def _value(self, graph: Graph, value: Any) -> Any:
        if isinstance(value, View):
            return self.view(graph, value)
        if isinstance(value, (tuple, list)):
            return [self._value(graph, item) for item in value]
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, Opaque) and value.text.startswith("torch."):
            name = value.text.removeprefix("torch.")
            if name.isidentifier():
                return getattr(torch, name)
        if isinstance(value, Opaque):
            raise UnsupportedError("a call takes an object that only the model has")
        return example_value(value, self.hints)


def run_all(actions: Sequence[Callable[[], Any]]) -> Launchable:
    """One callable for several, which takes no operands."""

    def run(*args: object) -> None:
        for action in actions:
            action()

    return run
