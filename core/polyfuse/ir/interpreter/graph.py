"""Interpretation of a graph: node by node, in program order."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from polyfuse.base.errors import IRError
from polyfuse.ir.graph import Graph, GraphInput, reads
from polyfuse.ir.interpreter import semantics
from polyfuse.ir.interpreter.evaluator import Evaluator, type_of
from polyfuse.ir.interpreter.kernel import POINTS, flat
from polyfuse.ir.interpreter.space import spaces
from polyfuse.ir.nodes import (
    RAISE,
    Buffer,
    ExternCall,
    LoopNode,
    Node,
    Opaque,
    Pointwise,
    Reduction,
    Scan,
    Scatter,
    View,
)
from polyfuse.ir.statements import Store
from polyfuse.runtime.checks import raise_failed
from polyfuse.runtime.frozen import CHECKED, FROZEN
from polyfuse.symbolic import Index, IndexLike, as_atom, evaluate


def run_graph(graph: Graph, inputs: Sequence[Any]) -> list[Any]:
    """Execute a graph on its inputs, which are mutated where the graph says so, and return its results.

    Results that are views of a buffer share its storage.

    Raises:
        IRError: the graph breaks a rule, or the inputs do not fit it.
    """
    if len(inputs) != len(graph.inputs):
        raise IRError(f"graph {graph.name} takes {len(graph.inputs)} inputs, not {len(inputs)}")
    run = _Run(graph)
    for declared, value in zip(graph.inputs, inputs, strict=True):
        run.bind(declared, value)
    for node in graph.nodes:
        run.node(node)
    return [run.argument(output.value) for output in graph.outputs]


def view_tensor(base: Tensor, view: View, sizes: Mapping[str, int]) -> Tensor:
    """The window on a tensor that a `View` describes."""
    offset = base.storage_offset() + evaluate(view.offset, sizes)
    size = [evaluate(n, sizes) for n in view.size]
    stride = [evaluate(n, sizes) for n in view.stride]
    found = base.as_strided(size, stride, offset)
    return found if view.dtype is None or found.dtype is view.dtype.torch else found.view(view.dtype.torch)


def find_operator(name: str) -> Any:
    """The eager operator of an ``"aten.mm.default"``-style name."""
    found: Any = torch.ops
    for part in name.split("."):
        found = getattr(found, part)
    return found


class _Run:
    """One execution: what is known by name so far."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.sizes: dict[str, int] = {}
        self.values: dict[str, Any] = {
            b.name: graph.objects[b.name] for b in graph.buffers.values() if b.kind == "constant"
        }

    def bind(self, declared: GraphInput, value: Any) -> None:
        """Make an input known, and the symbols that it defines."""
        if declared.kind == "symint":
            self.sizes[declared.name] = int(value)
            self._bind_symbol(declared.value, int(value))
        elif declared.kind == "tensor":
            buffer = self.graph.buffers[declared.name]
            self._bind_layout(buffer, value)
            self.values[declared.name] = value
        else:
            self.values[declared.name] = value

    def _bind_layout(self, buffer: Buffer, value: Tensor) -> None:
        layout = (*buffer.size, *buffer.stride)
        for known, actual in zip(layout, (*value.shape, *value.stride()), strict=True):
            self._bind_symbol(known, actual)

    def _bind_symbol(self, index: IndexLike | None, value: int) -> None:
        atom = None if index is None else as_atom(index)
        if atom is not None and atom.kind == "sym":
            self.sizes.setdefault(atom.name, value)

    def node(self, node: Node) -> None:
        """Execute one node."""
        for name in node.writes():
            self._allocate(self.graph.buffers[name], node)
        if isinstance(node, ExternCall):
            self._call(node)
        elif isinstance(node, LoopNode):
            self._loop(node)
        else:
            raise IRError(f"node {node.name} is a {type(node).__name__}, which cannot be interpreted")

    def argument(self, value: Any) -> Any:
        """An argument of a call, or a result, as the host has it."""
        if isinstance(value, View):
            base = self.values[value.buffer]
            strided = isinstance(base, Tensor) and base.layout is torch.strided
            return view_tensor(base, value, self.sizes) if strided else base
        if isinstance(value, Index):
            return evaluate(value, self.sizes)
        if isinstance(value, Opaque):
            if value.key:
                objects = self.graph.objects
                return objects[value.key] if value.key in objects else self.values[value.key]
            return eval(value.text, {"torch": torch, "math": math, "inf": math.inf, "nan": math.nan})
        if isinstance(value, (tuple, list)):
            return [self.argument(item) for item in value]
        return value

    def _allocate(self, buffer: Buffer, node: Node) -> None:
        if buffer.name in self.values or buffer.kind == "object":
            return
        if isinstance(node, ExternCall) and node.out not in ("out", "into"):
            return
        size = [evaluate(n, self.sizes) for n in buffer.size]
        stride = [evaluate(n, self.sizes) for n in buffer.stride]
        dtype = getattr(torch, buffer.torch_dtype)
        made = torch.empty_strided(size, stride, dtype=dtype, device=buffer.device)
        self.values[buffer.name] = made.zero_() if buffer.kind == "status" else made

    # Calls.

    def _call(self, node: ExternCall) -> None:
        arguments = self.argument(node.args)
        if node.op == RAISE:
            raise_failed(arguments[0], arguments[1])
            return
        keywords = {name: self.argument(value) for name, value in node.kwargs}
        if node.out == "out":
            keywords["out"] = self.values[node.outputs[0]]
        held = node.op.removeprefix("object.") if node.op.startswith("object.") else ""
        name = node.op.removeprefix(FROZEN).removeprefix(CHECKED)
        operator = self.graph.objects[held] if held else find_operator(name)
        result = operator(*arguments, **keywords)
        if node.out in ("out", "into", "none"):
            results: Sequence[Any] = [result]
        else:
            results = [result] if node.out == "single" else list(result)
            for name, value in zip(node.outputs, results, strict=False):
                if name:
                    self._keep(name, value)
        for symbol, path in node.symbols:
            found = results[path.result]
            if path.kind == "item":
                self.sizes[symbol] = +found  # of a boolean, the integer; a fraction stays one
            else:
                self.sizes[symbol] = (found.shape if path.kind == "size" else found.stride())[path.dim]

    def _keep(self, name: str, value: Any) -> None:
        buffer = self.graph.buffers[name]
        if isinstance(value, Tensor) and buffer.kind != "object":
            for known, actual in zip(buffer.size, value.shape, strict=True):
                self._bind_symbol(known, actual)
            stride = [evaluate(n, self.sizes) for n in buffer.stride]
            if any(s != t and n > 1 for s, t, n in zip(stride, value.stride(), value.shape, strict=True)):
                copy = torch.empty_strided(value.shape, stride, dtype=value.dtype, device=value.device)
                value = copy.copy_(value)
        self.values[name] = value

    # Loops.

    def _loop(self, node: LoopNode) -> None:
        storages = {name: self._flat(name) for name in dict.fromkeys((*reads(node), *node.writes()))}
        if isinstance(node, Scatter):
            semantics.begin_group(storages[node.target], node.mode)
        device = next((s.device for s in storages.values()), torch.device("cpu"))
        for space in spaces(node.axes, node.raxes, self.sizes, device, POINTS):
            _run_loop(node, Evaluator(space, self.sizes, storages))

    def _flat(self, name: str) -> Tensor:
        value = self.values.get(name)
        buffer = self.graph.buffers[name]
        if not isinstance(value, Tensor) or buffer.dtype is None:
            raise IRError(f"buffer {name!r} is read before anything is written to it, or is no tensor")
        extent = 1
        for n, stride in zip(value.shape, value.stride(), strict=True):
            if n == 0:
                extent = 0
                break
            extent += (n - 1) * stride
        return flat(value, extent, buffer.dtype)


def _run_loop(node: LoopNode, evaluator: Evaluator) -> None:
    values = evaluator.expressions(*node.expressions())
    if isinstance(node, Pointwise):
        _store(evaluator, node.output, node.index, values[0], False)
    elif isinstance(node, Scatter):
        known = {f"v{number}": value for number, value in enumerate(values)}
        value, *indirect = list(known)[: 1 + len(node.indirect)]
        mask = None if node.mask is None else f"v{len(values) - 1}"
        evaluator.store(
            Store(node.target, node.index, value, node.value.dtype, node.mode, tuple(indirect), mask), known
        )
    elif isinstance(node, (Reduction, Scan)):
        looped = isinstance(node, Scan)
        found = evaluator.scan(node.kind, values) if looped else evaluator.reduce(node.kind, values)
        for name, value in zip(node.outputs, found, strict=True):
            if name:
                _store(evaluator, name, node.index, value, looped)
    else:
        raise IRError(f"node {node.name} is a {type(node).__name__}, which cannot be interpreted")


def _store(evaluator: Evaluator, name: str, index: IndexLike, value: Tensor, looped: bool) -> None:
    evaluator.store(Store(name, index, "value", type_of(value)), {"value": value}, looped)
