"""Which lowering each node of a graph gets, who reads its result, and how often loops compute it again where
they broadcast it: known before anything is lowered.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Final

import torch
from torch.fx import Node

from polyfuse.frontend.decompositions.forced import is_named
from polyfuse.frontend.graph import AtenGraph
from polyfuse.frontend.rewrites.tools import is_refused
from polyfuse.frontend.saved_values import compared_with_selected
from polyfuse.lowering.calls.eager_kernels import preferred
from polyfuse.lowering.context import LoweringContext, Readers
from polyfuse.lowering.offered import combined
from polyfuse.lowering.registry import Registry
from polyfuse.lowering.report import Fallback
from polyfuse.lowering.shortened import Shortening
from polyfuse.plugin import Extensions, Lowering
from polyfuse.torch_compat import ops
from polyfuse.torch_compat.tracing import shapes

NUMBERS: Final = (int, float, torch.SymInt, torch.SymFloat, torch.SymBool)
"""What stands for a number in a traced graph."""


class Survey:
    """The lowering of each node, and its readers.

    Attributes:
        rows: what lowers each node; None for what falls back to eager, and for what needs no lowering.
    """

    def __init__(
        self,
        aten: AtenGraph,
        ctx: LoweringContext,
        registry: Registry,
        extensions: Extensions | None,
        eager: Mapping[str, str],
        short: Shortening | None,
    ) -> None:
        self.aten = aten
        self.ctx = ctx
        self.registry = registry
        self.extensions = extensions
        self.eager = eager
        self.short = short
        self.rows: dict[Node, Lowering | None] = {}

    def run(self, nodes: Sequence[Node]) -> None:
        """Note of each node which lowering it gets and who reads it, in `rows` and in the context."""
        last_use = self.ctx.last_use
        for position, node in enumerate(nodes):
            for source in node.all_input_nodes:
                last_use[source] = position
        compared = compared_with_selected(nodes)
        alike = {} if self.short is None else self.short.surveyed
        inputs: Mapping[Node, int] = {} if self.short is None else self.short.given
        given: dict[int, Node] = {}
        for node in reversed(nodes):
            like = alike.get(node)
            if like is None and node in inputs:
                first = given.setdefault(inputs[node], node)
                like = None if first is node else first
            if like is not None:
                self.rows[node], self.ctx.readers[node] = self.rows[like], self.ctx.readers[like]
                continue
            self.rows[node] = self._preferred(node, self.row(node))
            found = Readers()
            for user in node.users:
                self._add_reader(found, node, user)
            if node in compared:
                found.stored, found.compared = found.stored or "compared with a number of its own", True
            self.ctx.readers[node] = found

    def row(self, node: Node) -> Lowering | None:
        """What lowers a node; None for what falls back to eager, and for what needs no lowering."""
        if node.op != "call_function" or node.name in self.eager:
            return None
        name = ops.op_name(node.target)
        if is_named(name, self.ctx.settings.force_fallback):
            return None
        if is_refused(node):
            return None
        own = self.registry.get(name)
        device = _device_type(node) if self.extensions is not None else ""
        if self.extensions is not None and device:
            offers = self.extensions.lowerings(device).get(name)
            if offers:
                return combined(name, offers, own, self.extensions)
        return own

    def _preferred(self, node: Node, row: Lowering | None) -> Lowering | None:
        """A row that calls the operator, where that is faster. Lowerings of plugins come first."""
        if row is None or row.library or row is not self.registry.get(ops.op_name(node.target)):
            return row
        found = preferred(node, row, self.rows, self.aten.shape_env, self.ctx.settings)
        if found is None:
            return row
        self.ctx.report.preferred.append(Fallback(node.name, ops.op_name(node.target), found[1]))
        return found[0]

    def _add_reader(self, found: Readers, node: Node, user: Node) -> None:
        row = self.rows.get(user)
        if user.op == "output":
            found.passes += 1
            found.stored = found.stored or "a result of the graph"
        elif is_getitem(user) or (row is not None and row.view and user.args and user.args[0] is node):
            through = self.ctx.readers[user]
            found.passes += through.passes
            found.recomputed += through.recomputed
            found.across = found.across or through.across
            found.add_run(through.run or 1)
            found.stored = found.stored or through.stored
        elif row is None:
            if not is_size_arithmetic(user):
                found.passes += 1
                found.stored = found.stored or f"read by {ops.op_name(user.target)}"
        else:
            found.passes += row.passes
            value = node.meta.get("val")
            if node.op == "call_function" and isinstance(value, torch.Tensor) and not row.library:
                results, shape_env = user.meta.get("val"), self.aten.shape_env
                found.recomputed += recomputed_points(value, results, shape_env)
                found.across = found.across or reads_across(value, results, shape_env)
                found.add_run(broadcast_run(value, results, shape_env))
            else:
                found.add_run(1)
            many = any(p < len(user.args) and user.args[p] is node for p in row.stores)
            if row.library or many:
                found.stored = found.stored or f"read by {ops.op_name(user.target)}"


def is_getitem(node: Node) -> bool:
    """Whether a node takes one of the results of another."""
    return node.target is operator.getitem


def _device_type(node: Node) -> str:
    """The type of device that a call computes on: that of the first tensor among its results or arguments."""
    for value in (node.meta.get("val"), *(n.meta.get("val") for n in node.all_input_nodes)):
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(item, torch.Tensor):
                return item.device.type
    return ""


def is_size_arithmetic(node: Node) -> bool:
    """Whether a node computes with numbers that are known from the sizes of the graph's inputs."""
    if node.op != "call_function":
        return False
    fake = node.meta.get("val")
    if not isinstance(fake, NUMBERS):
        return ops.op_name(node.target).startswith("aten.sym_constrain_range")
    facts = ops.facts(node.target)
    if facts.effects or facts.data_dependent or facts.is_random or facts.is_higher_order:
        return False
    # torch's own operators say when they read data, those of users do not
    foreign = facts.is_operator and not facts.name.startswith(("aten.", "prims."))
    return not (foreign and any(isinstance(n.meta.get("val"), torch.Tensor) for n in node.all_input_nodes))


_MANY = 8
"""Times that a value is read across its memory from which storing it pays: such reads take as long as those
at positions from data, which are what is spared.
"""


def recomputed_points(value: torch.Tensor, results: object, shape_env: Any) -> int:
    """Points at which loops over `results`, traced tensors, compute `value` again, a traced tensor that they
    broadcast. Innermost axes along which it is one number do not count: generated code computes it before the
    loop over them.
    """
    every = results if isinstance(results, (tuple, list)) else (results,)
    return max((_recomputed(value, r, shape_env) for r in every if isinstance(r, torch.Tensor)), default=0)


def broadcast_run(value: torch.Tensor, results: object, shape_env: Any) -> int:
    """How many neighbouring points of loops over `results`, at least, read one number of `value`; 1 where
    each reads another, or where that is not known.
    """
    every = results if isinstance(results, (tuple, list)) else (results,)
    return min((_run(value, r, shape_env) for r in every if isinstance(r, torch.Tensor)), default=1)


def reads_across(value: torch.Tensor, results: object, shape_env: Any) -> bool:
    """Whether neighbouring points of loops over `results` read `value`, which they broadcast many times, at
    elements that are not neighbours in its memory.
    """
    every = results if isinstance(results, (tuple, list)) else (results,)
    return any(_across(value, r, shape_env) for r in every if isinstance(r, torch.Tensor))


def _across(value: torch.Tensor, result: torch.Tensor, shape_env: Any) -> bool:
    sizes, varies, loops = _loops(value, result, shape_env)
    along = next((d for d in reversed(loops) if varies[d]), None)
    if along is None or value.stride(along - result.dim()) == 1:
        return False
    own = prod(sizes[d] for d in loops if varies[d])
    return _recomputed(value, result, shape_env) >= (_MANY - 1) * own


def _recomputed(value: torch.Tensor, result: torch.Tensor, shape_env: Any) -> int:
    sizes, varies, loops = _loops(value, result, shape_env)
    while loops and not varies[loops[-1]]:
        loops.pop()
    return prod(sizes[d] for d in loops) - prod(sizes[d] for d in loops if varies[d])


def _run(value: torch.Tensor, result: torch.Tensor, shape_env: Any) -> int:
    sizes, varies, loops = _loops(value, result, shape_env)
    run = 1
    while loops and not varies[loops[-1]]:
        run *= sizes[loops.pop()]
    return run


def _loops(
    value: torch.Tensor, result: torch.Tensor, shape_env: Any
) -> tuple[list[int], list[bool], list[int]]:
    """The sizes of a result, along which dimensions a value that it broadcasts varies, and the dimensions of
    the loops over it, outermost first: none where it is not broadcast.
    """
    lead = result.dim() - value.dim()
    if lead < 0 or value.layout is not torch.strided or result.layout is not torch.strided:
        return [], [], []
    sizes, strides = _hints(result.shape, shape_env), _hints(result.stride(), shape_env)
    own, steps = _hints(value.shape, shape_env), _hints(value.stride(), shape_env)
    if any(n not in (1, whole) for n, whole in zip(own, sizes[lead:], strict=True)):
        return [], [], []
    # what `expand` repeats has a stride of zero
    varies = [False] * lead + [n != 1 and step != 0 for n, step in zip(own, steps, strict=True)]
    loops = sorted((d for d, n in enumerate(sizes) if n != 1), key=lambda d: -strides[d])
    return sizes, varies, loops


def _hints(numbers: Sequence[Any], shape_env: Any) -> list[int]:
    return [n if type(n) is int else int(shapes.hint(shape_env, n)) for n in numbers]
