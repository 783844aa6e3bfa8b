"""Which storages a compiled program holds, and from which of its steps to which."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from polyfuse.ir.graph import Graph
from polyfuse.program import Program
from polyfuse.program.memory import storage_bytes
from polyfuse.program.steps import Allocate, ExternStep, Free, LaunchKernel, Reuse, Step
from polyfuse.schedule import Call, Schedule
from polyfuse.symbolic import example_value, storage_size


@dataclass
class Storage:
    """One storage.

    Attributes:
        buffers: the buffers that lie in it, one after the other.
        nbytes: its size, for the example inputs.
        first: the launch or call, counted from 0, before which it is allocated.
        last: the one after which it is released; None: it outlives the program.
    """

    buffers: list[str]
    nbytes: int
    first: int
    last: int | None = None


@dataclass
class _Walk:
    """The state of walking one program's steps."""

    graph: Graph
    aliased: frozenset[str]
    found: list[Storage] = field(default_factory=list)
    live: dict[str, Storage] = field(default_factory=dict)
    position: int = 0

    def add(self, name: str, nbytes: int) -> None:
        if nbytes and name not in self.live:
            self.live[name] = storage = Storage([name], nbytes, self.position)
            self.found.append(storage)

    def step(self, step: Step) -> None:
        if isinstance(step, Allocate):
            size = example_value(storage_size(step.size, step.stride), self.graph.symbol_hints)
            self.add(step.name, size * getattr(torch, step.dtype).itemsize)
        elif isinstance(step, Reuse):
            storage = self.live.pop(step.old, None)
            if storage is not None:
                storage.buffers.append(step.new)
                self.live[step.new] = storage
        elif isinstance(step, Free):
            for name in step.names:
                storage = self.live.pop(name, None)
                if storage is not None:
                    storage.last = max(self.position - 1, storage.first)
        elif isinstance(step, ExternStep):
            for name in step.outputs:
                buffer = self.graph.buffers.get(name)
                if buffer is not None and buffer.kind == "temp" and name not in self.aliased:
                    self.add(name, storage_bytes(buffer, self.graph.symbol_hints))
        if isinstance(step, (ExternStep, LaunchKernel)):
            self.position += 1


def storages_of(program: Program, schedule: Schedule, given: Iterable[str] = ()) -> list[Storage]:
    """The storages of a program, in the order in which they come into being; parameters and inputs that the
    caller keeps do not count.

    Args:
        program, schedule: of one graph.
        given: inputs that nobody else holds, such as what a forward saved; they count until released.
    """
    graph = schedule.graph
    calls = (step for step in schedule.steps if isinstance(step, Call) and step.node.aliases)
    walk = _Walk(graph, frozenset(name for call in calls for name in call.node.outputs))
    for name in given:
        buffer = graph.buffers.get(name)
        if buffer is not None:
            # several may be parts of one storage, which their strides span: each counts its own elements
            elements = example_value(buffer.numel, graph.symbol_hints) * buffer.itemsize
            walk.add(name, min(elements, storage_bytes(buffer, graph.symbol_hints)))
    for step in program.steps:
        walk.step(step)
    return walk.found


def peak_of(storages: Iterable[tuple[int, int, int | None]], steps: int) -> tuple[int, int]:
    """The most bytes that are live in one step, and the first step where that is so.

    Args:
        storages: (bytes, first step, last step or None) of each.
        steps: how many steps there are.
    """
    change = [0] * (steps + 2)
    for nbytes, first, last in storages:
        end = steps if last is None else last + 1
        change[min(first, steps)] += nbytes
        change[min(end, steps + 1)] -= nbytes
    live = peak = at = 0
    for step, delta in enumerate(change[: max(steps, 1)]):
        live += delta
        if live > peak:
            peak, at = live, step
    return peak, at


def as_rows(storages: Iterable[Storage]) -> list[dict[str, Any]]:
    """The same for JSON."""
    return [{"buffers": s.buffers, "bytes": s.nbytes, "first": s.first, "last": s.last} for s in storages]
