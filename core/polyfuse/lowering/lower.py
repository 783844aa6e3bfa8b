"""`lower_graph`: every node of a traced graph, in order, to IR nodes."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
from torch.fx import Node

from polyfuse.base.errors import UnsupportedError
from polyfuse.base.log import get_logger
from polyfuse.base.names import plain_word
from polyfuse.base.settings import Settings
from polyfuse.frontend.decompositions.forced import is_named
from polyfuse.frontend.describe import output_args
from polyfuse.frontend.graph import AtenGraph
from polyfuse.frontend.rewrites.tools import is_refused
from polyfuse.ir.expr import const
from polyfuse.ir.graph import MAY_WAIT, Graph, GraphInput, GraphOutput
from polyfuse.ir.nodes import Opaque, Origin, Pointwise
from polyfuse.ir.types import from_torch
from polyfuse.lowering import families
from polyfuse.lowering.broadcasts import broadcast_run, reads_across, recomputed_points
from polyfuse.lowering.calls.eager_kernels import preferred
from polyfuse.lowering.calls.extern import host_object
from polyfuse.lowering.calls.fallback import ACCEPT, is_eager_by_design, run_eagerly
from polyfuse.lowering.calls.host import is_token
from polyfuse.lowering.context import Readers, origins_of, tensors_in
from polyfuse.lowering.indexing.scatter import stores_nowhere
from polyfuse.lowering.meeting import readers_meet
from polyfuse.lowering.offered import OpenContext, combined
from polyfuse.lowering.registry import Registry
from polyfuse.lowering.report import Fallback, LoweringReport
from polyfuse.lowering.shortened import Shortening
from polyfuse.lowering.value import TensorValue
from polyfuse.plugin import Extensions, Lowering, TargetInfo
from polyfuse.runtime.devices.registry import device_of
from polyfuse.symbolic import Index
from polyfuse.torch_compat import ops
from polyfuse.torch_compat.tracing import fx, shapes

_log = get_logger("lowering")
_NUMBERED = re.compile(r"arg\d+_1|primals_\d+|tangents_\d+", re.ASCII)
_NUMBERS = (int, float, torch.SymInt, torch.SymFloat, torch.SymBool)


def lower_graph(
    aten: AtenGraph,
    settings: Settings,
    report: LoweringReport | None = None,
    extensions: Extensions | None = None,
    target_info: Callable[[str], TargetInfo] | None = None,
    eager: Mapping[str, str] | None = None,
    subgraphs: Mapping[str, Callable[..., Any]] | None = None,
    short: Shortening | None = None,
) -> Graph:
    """Lower a functional ATen graph. `report`, where given, is filled with what became of each operator;
    `extensions` are what plugins offer, `target_info` those of a device, `eager` names traced nodes that fall
    back to eager, with the reasons, and `subgraphs` are compiled forms of the modules that
    higher-order operators call, by the modules' names.

    Raises:
        UnsupportedError: with the option `strict`, an operator could not be lowered as it should be.
    """
    found = LoweringReport() if report is None else report
    lowerer = _Lowerer(aten, settings, found, families.registry(), extensions)
    lowerer.eager, lowerer.subgraphs, lowerer.short = eager or {}, subgraphs or {}, short
    if target_info is not None:
        lowerer.ctx.target_info = cache(target_info)  # values are asked for it one by one
    return lowerer.run()


def input_names(aten: AtenGraph) -> dict[Node, str]:
    """The names that the inputs of a graph get, by their placeholders."""
    placeholders = [node for node in aten.module.graph.nodes if node.op == "placeholder"]
    return {node: _input_name(position, node.name) for position, node in enumerate(placeholders)}


class _Lowerer:
    """One run over one graph."""

    def __init__(
        self,
        aten: AtenGraph,
        settings: Settings,
        report: LoweringReport,
        registry: Registry,
        extensions: Extensions | None,
    ) -> None:
        self.aten = aten
        self.registry = registry
        self.extensions = extensions
        self.ctx = OpenContext(settings, aten.shape_env, report)
        self.ctx.inliner = self._inline
        # what a backward selects by, its forward checked
        self.ctx.checks.enabled &= aten.kind != "backward"
        self.inputs: list[GraphInput] = []
        self.outputs: tuple[GraphOutput, ...] = ()
        self.rows: dict[Node, Lowering | None] = {}
        self.eager: Mapping[str, str] = {}
        self.subgraphs: Mapping[str, Callable[..., Any]] = {}
        self.short: Shortening | None = None

    def run(self) -> Graph:
        nodes = list(self.aten.module.graph.nodes)
        self._survey(nodes)
        ctx, short = self.ctx, self.short
        for position, node in enumerate(nodes):
            ctx.position = position
            if short is not None and short.passes(node, ctx):
                continue
            if node.op == "placeholder":
                ctx.env[node] = self._input(node)
            elif node.op == "get_attr":
                ctx.env[node] = self._constant(node)
            elif node.op == "output":
                self.outputs = self._results()
            else:
                ctx.env[node] = self._lower(node)
        return Graph(
            self.aten.name,
            self.aten.kind,
            tuple(self.inputs),
            self.outputs,
            ctx.buffers,
            ctx.checks.finish(ctx.nodes, ctx.buffers, ctx.fresh),
            ctx.objects,
            dict(ctx.sizes.hints),
        )

    # Who reads what.

    def _survey(self, nodes: list[Node]) -> None:
        last_use = self.ctx.last_use
        for position, node in enumerate(nodes):
            for source in node.all_input_nodes:
                last_use[source] = position
        alike = {} if self.short is None else self.short.surveyed
        for node in reversed(nodes):
            if node in alike:
                like = alike[node]
                self.rows[node], self.ctx.readers[node] = self.rows[like], self.ctx.readers[like]
                continue
            self.rows[node] = self._preferred(node, self._row(node))
            found = Readers()
            for user in node.users:
                self._add_reader(found, node, user)
            self.ctx.readers[node] = found

    def _row(self, node: Node) -> Lowering | None:
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
        elif _is_getitem(user) or (row is not None and row.view and user.args and user.args[0] is node):
            through = self.ctx.readers[user]
            found.passes += through.passes
            found.recomputed += through.recomputed
            found.across = found.across or through.across
            found.add_run(through.run or 1)
            found.stored = found.stored or through.stored
        elif row is None:
            if not _is_size_arithmetic(user):
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

    def _inline(self, module: torch.fx.GraphModule, arguments: Sequence[Any]) -> Any:
        """What a function of numbers gives for these arguments, as expressions."""
        ctx = self.ctx
        first, origins = len(ctx.nodes), ctx.origins
        given = iter(arguments)
        enabled, ctx.checks.enabled = ctx.checks.enabled, False  # a check has loops of its own
        try:
            return self._inlined(module, given, first, origins)
        finally:
            ctx.checks.enabled = enabled

    def _inlined(self, module: torch.fx.GraphModule, given: Iterator[Any], first: int, origins: Any) -> Any:
        ctx = self.ctx
        for node in module.graph.nodes:
            if node.op == "placeholder":
                ctx.env[node] = next(given)
            elif node.op == "get_attr":
                ctx.env[node] = self._constant(node, module)
            elif node.op == "output":
                ctx.origins = origins
                return self._value(node.args[0])
            else:
                self.rows[node] = self._row(node)
                ctx.readers[node] = Readers()
                ctx.env[node] = self._lower(node)
                for made in ctx.nodes[first:]:
                    # captured tensors may have to be stored, but nothing of what the kernel computes
                    if not isinstance(made, Pointwise):
                        name = ops.op_name(node.target)
                        raise UnsupportedError(
                            f"{name} has no form that a kernel can compute for each element"
                        )
        raise UnsupportedError("a function without results cannot be computed in a kernel")

    # Ends of the graph.

    def _input(self, node: Node) -> Any:
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
            result = ctx.template(value)
            self._stored_elsewhere(result, "input", name)
            address = _address(described, result, ctx.target_info(result.device).alignment)
            static = described.static
            self.inputs.append(GraphInput(name, "tensor", static=static, address=address, label=label))
            return result
        if isinstance(value, _NUMBERS) and not isinstance(value, (bool, float)):
            index = ctx.sizes.index(value)
            for symbol in shapes.free_symbols(value):
                ctx.bound_symbols.add(str(symbol))
            self.inputs.append(GraphInput(name, "symint", index, label=label))
            return index
        self.inputs.append(GraphInput(name, "none" if value is None else "object", label=label))
        return None if value is None else Opaque(key=name)

    def _constant(self, node: Node, module: torch.fx.GraphModule | None = None) -> Any:
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

    def _results(self) -> tuple[GraphOutput, ...]:
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

    # One node.

    def _lower(self, node: Node) -> Any:
        ctx = self.ctx
        name = ops.op_name(node.target)
        fake = node.meta.get("val")
        if _is_getitem(node):
            return self._finish(node, self._getitem(node))
        if _is_size_arithmetic(node):
            return self._number(fake)
        args = tuple(self._value(a) for a in node.args)
        kwargs = {k: self._value(v) for k, v in node.kwargs.items()}
        inlined = tensors_in((args, tuple(kwargs.values())))
        ctx.origins = origins_of(inlined, Origin(name, node.name, fx.source_text(node)))
        row = self.rows[node]
        if row is None:
            forced = is_named(name, ctx.settings.force_fallback)
            refused = is_refused(node)
            reason = "asked for by the option force_fallback" if forced else "it has no lowering"
            if refused:
                reason = "eager mode refuses these arguments"
            reason = self.eager.get(node.name, reason)
            accepted = forced or refused or is_eager_by_design(node.target)
            return run_eagerly(ctx, node, args, kwargs, reason, accepted)
        if stores_nowhere(name, args):
            reason = "eager mode refuses indices into an empty tensor"
            return run_eagerly(ctx, node, args, kwargs, reason, accepted=True)
        try:
            result = self._native(row, node, fake, args, kwargs)
        except (UnsupportedError, TypeError) as error:
            if isinstance(error, UnsupportedError) and error.fix == ACCEPT:
                raise  # a lowering called the operator itself
            cause = error.cause if isinstance(error, UnsupportedError) else str(error)
            # a view of what no kernel can compute costs nothing, and those who offer a lowering may decline
            accepted = ops.facts(node.target).is_view and _is_beyond_kernels(args, fake)
            if name not in self.registry:
                accepted = accepted or is_eager_by_design(node.target)
            _log.info("%s (%s) falls back to eager: %s", name, node.name, error)
            return run_eagerly(ctx, node, args, kwargs, cause, accepted)
        ctx.report.count(ctx.report.library if row.library else ctx.report.native, name)
        return self._finish(node, result)

    def _native(self, row: Lowering, node: Node, fake: Any, args: Any, kwargs: Any) -> Any:
        ctx = self.ctx
        # a size from the data may be zero too, but nobody can say so now
        if isinstance(fake, torch.Tensor) and _is_empty(fake) and not ops.facts(node.target).effects:
            empty = ctx.template(fake)
            if empty.dtype is not None:
                return ctx.lazy(empty, const(0, empty.dtype.compute))
        for value in tensors_in(args):
            if value.dtype is not None and value.body is not None and row.passes > 1:
                ctx.store_if_better(value, row.passes)
        return row.function(ctx, node, *args, **kwargs)

    def _finish(self, node: Node, result: Any) -> Any:
        """Store what is better stored, now that it is known who reads it."""
        if isinstance(result, TensorValue) and result.body is not None:
            readers = self.ctx.readers[node]
            if ops.facts(node.target).uninitialised:
                # who needs memory for it takes some, and who overwrites it need not fill it first
                return result
            if readers.stored:
                self.ctx.realize(result, readers.stored)
            elif self._waits(node, result):
                self.ctx.realize(result, "results of several calls would wait for later ones")
            else:
                elementwise = partial(self._is_elementwise, like=node)
                meet = partial(readers_meet, node, elementwise)
                self.ctx.store_if_better(result, readers.passes, readers.recomputed, readers.across, meet)
        return result

    def _is_elementwise(self, node: Node, like: Node) -> bool:
        """Whether a node computes a result as large as `like`'s element by element."""
        row = self.rows.get(node)
        if row is None or row.view or row.library or row.stores or row.passes != 1:
            return False
        mine, other = node.meta.get("val"), like.meta.get("val")
        if not isinstance(mine, torch.Tensor) or not isinstance(other, torch.Tensor):
            return False
        return shapes.exprs_of(mine.shape) == shapes.exprs_of(other.shape)

    def _waits(self, node: Node, value: TensorValue) -> bool:
        """Whether several results of calls, as the gradients of a weight that each step of a loop uses, would
        be held until another one is there, to be added up by one kernel.
        """
        if self.ctx.results_of_calls(value) <= MAY_WAIT:
            return False
        others = (other for user in node.users for other in user.all_input_nodes if other is not node)
        return any(other not in self.ctx.env for other in others)

    def _value(self, argument: Any) -> Any:
        if isinstance(argument, Node):
            return self.ctx.env[argument]
        if isinstance(argument, (tuple, list)):
            values = [self._value(a) for a in argument]
            return tuple(values) if isinstance(argument, tuple) else values
        if isinstance(argument, dict):
            return {k: self._value(v) for k, v in argument.items()}
        if shapes.is_symbolic(argument):
            return self.ctx.sizes.number(argument)
        return argument

    def _getitem(self, node: Node) -> Any:
        source = self.ctx.env[node.args[0]]
        picked = source[node.args[1]]
        self.ctx.origins = picked.origins if isinstance(picked, TensorValue) else ()
        return picked

    def _number(self, fake: Any) -> Any:
        if fake is None:
            return None
        if isinstance(fake, (bool, float)):
            return fake
        return self.ctx.sizes.number(fake)


def _input_name(position: int, name: str) -> str:
    """The name of an input in all that is generated: AOTAutograd's, or one that starts as no other does.
    Exported programs name inputs as their authors did, and backwards after operators, which users name too.
    """
    return name if _NUMBERED.fullmatch(name) else plain_word(f"i{position}_{name}")


def _is_getitem(node: Node) -> bool:
    return node.target is operator.getitem


def _device_type(node: Node) -> str:
    """The type of device that a call computes on: that of the first tensor among its results or arguments."""
    for value in (node.meta.get("val"), *(n.meta.get("val") for n in node.all_input_nodes)):
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(item, torch.Tensor):
                return item.device.type
    return ""


def _address(described: Any, value: TensorValue, alignment: int) -> str:
    """What is known of an input's address, where devices ask for multiples of `alignment` bytes."""
    start = value.offset * value.torch_dtype.itemsize
    if alignment and (start % alignment) != 0:
        return "any"
    # what a forward keeps for its backward alone is memory of its own
    return "aligned" if described.donated and alignment else "traced"


def _is_size_arithmetic(node: Node) -> bool:
    """Whether a node computes with numbers that are known from the sizes of the graph's inputs."""
    if node.op != "call_function":
        return False
    fake = node.meta.get("val")
    if not isinstance(fake, _NUMBERS):
        return ops.op_name(node.target).startswith("aten.sym_constrain_range")
    facts = ops.facts(node.target)
    if facts.effects or facts.data_dependent or facts.is_random or facts.is_higher_order:
        return False
    # torch's own operators say when they read data, those of users do not
    foreign = facts.is_operator and not facts.name.startswith(("aten.", "prims."))
    return not (foreign and any(isinstance(n.meta.get("val"), torch.Tensor) for n in node.all_input_nodes))


def _is_empty(fake: torch.Tensor) -> bool:
    return any(type(n) is int and n == 0 for n in fake.shape)


def _is_beyond_kernels(args: Any, fake: Any) -> bool:
    """Whether a tensor is of a type that eager operators alone compute in, such as a complex one."""
    results = fake if isinstance(fake, (tuple, list)) else (fake,)
    if any(isinstance(f, torch.Tensor) and from_torch(f.dtype) is None for f in results):
        return True
    return any(value.dtype is None for value in tensors_in(args))


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
