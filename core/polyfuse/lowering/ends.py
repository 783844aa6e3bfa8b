"""Both ends of a graph: its inputs and constants as values, and its results."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import torch
from torch.fx import Node

from polyfuse.base.names import plain_word
from polyfuse.frontend.describe import output_args
from polyfuse.frontend.graph import AtenGraph
from polyfuse.ir.expr import const
from polyfuse.ir.graph import GraphInput, GraphOutput
from polyfuse.ir.nodes import Opaque
from polyfuse.ir.records import changed
from polyfuse.ir.types import from_torch
from polyfuse.lowering.calls.extern import host_object
from polyfuse.lowering.calls.host import is_token
from polyfuse.lowering.context import LoweringContext
from polyfuse.lowering.readers import NUMBERS
from polyfuse.lowering.shortened import Shortening
from polyfuse.lowering.value import TensorValue
from polyfuse.runtime.devices.registry import device_of
from polyfuse.symbolic import Index
from polyfuse.torch_compat import ops
from polyfuse.torch_compat.tracing import fx, shapes

_NUMBERED: Final = re.compile(r"arg\d+_1|primals_\d+|tangents_\d+", re.ASCII)


def input_names(aten: AtenGraph) -> dict[Node, str]:
    """The names that the inputs of a graph get, by their placeholders."""
    placeholders = [node for node in aten.module.graph.nodes if node.op == "placeholder"]
    return {node: _input_name(position, node.name) for position, node in enumerate(placeholders)}


class GraphEnds:
    """The inputs, constants and results of one graph.

    Attributes:
        inputs: those that were met so far, in order.
    """

    def __init__(
        self,
        aten: AtenGraph,
        ctx: LoweringContext,
        subgraphs: Mapping[str, Callable[..., Any]],
        short: Shortening | None,
    ) -> None:
        self.aten = aten
        self.ctx = ctx
        self.subgraphs = subgraphs
        self.short = short
        self.inputs: list[GraphInput] = []
        # of lists of inputs that look the same, each read by another layer, the first that was met
        rows = () if short is None else short.periods.inputs
        self._rows = {node: number for number, row in enumerate(rows) for node in row}
        self._alike: dict[int, tuple[TensorValue, GraphInput]] = {}

    def input(self, node: Node) -> Any:
        """The value of the next input, which is added to `inputs`."""
        described = self.aten.inputs[len(self.inputs)]
        value = node.meta.get("val")
        ctx = self.ctx
        name = _input_name(len(self.inputs), node.name)
        label = "" if name == node.name else node.name
        ctx.input_nodes[name] = node
        if is_token(node):
            self.inputs.append(GraphInput(name, "none", label=label))
            return None
        if isinstance(value, torch.Tensor):
            row = self._rows.get(node, -1)
            known = self._alike.get(row)
            if known is not None:
                result, item = known[0].blank(), changed(known[1], name=name, label=label)
            else:
                result = ctx.template(value)
                address = _address(described, result, ctx.target_info(result.device).alignment)
                item = GraphInput(name, "tensor", static=described.static, address=address, label=label)
                if row >= 0:
                    self._alike[row] = result.blank(), item
            self._stored_elsewhere(result, "input", name)
            self.inputs.append(item)
            return result
        if isinstance(value, NUMBERS) and not isinstance(value, (bool, float)):
            index = ctx.sizes.index(value)
            for symbol in shapes.free_symbols(value):
                ctx.bound_symbols.add(str(symbol))
            self.inputs.append(GraphInput(name, "symint", index, label=label))
            return index
        self.inputs.append(GraphInput(name, "none" if value is None else "object", label=label))
        return None if value is None else Opaque(key=name)

    def constant(self, node: Node, module: torch.fx.GraphModule | None = None) -> Any:
        """The value of an attribute of the graph's module, or of another one: a tensor, the compiled form of
        a subgraph, or whatever else the attribute is.
        """
        ctx = self.ctx
        if module is None and str(node.target) in self.subgraphs:
            return self.subgraphs[str(node.target)]
        value = fx.get_constant(module or self.aten.module, str(node.target))
        if not isinstance(value, torch.Tensor):
            return value
        result = ctx.template(value)
        if (
            result.rank == 0
            and result.dtype is not None
            and device_of(result.device).is_host
            and not _is_written(node)
        ):
            known = _number(value)
            if known is not None:
                return ctx.lazy(result, const(known, result.dtype.compute))
        name = ctx.fresh("constant")
        ctx.objects[name] = value.detach()
        self._stored_elsewhere(result, "constant", name)
        return result

    def _stored_elsewhere(self, value: TensorValue, kind: str, name: str) -> None:
        """`value` lies in a buffer of that kind and name, as traced."""
        buffer = self.ctx.add_buffer(
            value.dtype, value.torch_dtype, value.device, value.size, value.strides, kind, name
        )
        value.set_view(buffer.view())

    def results(self) -> tuple[GraphOutput, ...]:
        """What the graph returns, all of which is in memory then."""
        described = self.aten.outputs
        results: list[GraphOutput] = []
        returned: dict[Node, int] = {}
        for position, argument in enumerate(output_args(self.aten.module)):
            if self.short is not None and not self.short.result(argument, position):
                continue
            value = self.ctx.env[argument] if isinstance(argument, Node) else argument
            saved = position < len(described) and described[position].saved
            again = None
            if isinstance(argument, Node) and not saved and self.short is None:
                again = returned.get(argument)
                returned.setdefault(argument, len(results))
            results.append(replace(self._result(value), saved=saved, again=again))
        return tuple(results)

    def _result(self, value: Any) -> GraphOutput:
        ctx = self.ctx
        if isinstance(value, TensorValue):
            # what is saved for a backward too, which was traced with these strides
            return GraphOutput(ctx.realize_exact(value, "a result of the graph"))
        if value is None:
            return GraphOutput(None, "none")
        if isinstance(value, (int, float, Index)):
            return GraphOutput(value, "size")
        if shapes.is_symbolic(value):
            return GraphOutput(ctx.sizes.number(value), "size")
        return GraphOutput(value if isinstance(value, Opaque) else host_object(ctx, value), "object")


def _input_name(position: int, name: str) -> str:
    """The name of an input in all that is generated: AOTAutograd's, or one that starts as no other does.
    Exported programs name inputs as their authors did, and backwards after operators, which users name too.
    """
    return name if _NUMBERED.fullmatch(name) else plain_word(f"i{position}_{name}")


def _address(described: Any, value: TensorValue, alignment: int) -> str:
    """What is known of an input's address, where devices ask for multiples of `alignment` bytes."""
    start = value.offset * value.torch_dtype.itemsize
    if alignment and (start % alignment) != 0:
        return "any"
    # what a forward keeps for its backward alone is memory of its own
    return "aligned" if described.donated and alignment else "traced"


def _is_written(node: Node) -> bool:
    return any(ops.facts(user.target).mutates for user in node.users if user.op == "call_function")


def _number(value: torch.Tensor) -> bool | int | float | None:
    """The number in a constant of no dimensions, where it is at hand."""
    from polyfuse.torch_compat.tracing import fake

    if fake.is_fake(value) or from_torch(value.dtype) is None:
        return None
    with fake.real_tensors():
        known = value.detach().item()
    return known if isinstance(known, (bool, int, float)) else None
