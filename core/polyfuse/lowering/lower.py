"""`lower_graph`: every node of a traced graph, in order, to IR nodes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import islice
from types import MappingProxyType
from typing import Any

import torch
from torch.fx import Node

from polyfuse.base.errors import UnsupportedError
from polyfuse.base.log import get_logger
from polyfuse.base.settings import Settings
from polyfuse.frontend.decompositions.forced import is_named
from polyfuse.frontend.graph import AtenGraph
from polyfuse.frontend.rewrites.tools import is_refused
from polyfuse.ir.expr import const
from polyfuse.ir.graph import MAY_WAIT, Graph, GraphOutput
from polyfuse.ir.nodes import Origin, Pointwise
from polyfuse.ir.types import from_torch
from polyfuse.lowering import families
from polyfuse.lowering.calls.fallback import ACCEPT, is_eager_by_design, run_eagerly
from polyfuse.lowering.context import Readers, origins_of, tensors_in
from polyfuse.lowering.ends import GraphEnds
from polyfuse.lowering.indexing.scatter import stores_nowhere
from polyfuse.lowering.offered import OpenContext
from polyfuse.lowering.readers import Survey, is_getitem, is_size_arithmetic
from polyfuse.lowering.report import LoweringReport
from polyfuse.lowering.shortened import Shortening
from polyfuse.lowering.value import TensorValue
from polyfuse.plugin import Extensions, Lowering, TargetInfo
from polyfuse.rewrite import cast
from polyfuse.torch_compat import ops
from polyfuse.torch_compat.tracing import fx, shapes

_log = get_logger("lowering")
_NUMBERED = re.compile(r"arg\d+_1|primals_\d+|tangents_\d+", re.ASCII)
_NUMBERS = (int, float, torch.SymInt, torch.SymFloat, torch.SymBool)

_FAR = 32
"""Nodes after a value's among which its readers must meet."""


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
    lowerer = _Lowerer(aten, settings, found, extensions, eager or {}, subgraphs or {}, short)
    if target_info is not None:
        lowerer.ctx.target_info = cache(target_info)  # values are asked for it one by one
    return lowerer.run()


class _Lowerer:
    """One run over one graph."""

    def __init__(
        self,
        aten: AtenGraph,
        settings: Settings,
        report: LoweringReport,
        extensions: Extensions | None = None,
        eager: Mapping[str, str] = MappingProxyType({}),
        subgraphs: Mapping[str, Callable[..., Any]] = MappingProxyType({}),
        short: Shortening | None = None,
    ) -> None:
        self.aten = aten
        self.eager = eager
        self.short = short
        self.ctx = OpenContext(settings, aten.shape_env, report)
        self.ctx.inliner = self._inline
        self.ctx.packaged = aten.packaged
        # what a backward selects by, its forward checked
        self.ctx.checks.enabled &= aten.kind != "backward"
        self.registry = families.registry()
        self.survey = Survey(aten, self.ctx, self.registry, extensions, eager, short)
        self.ends = GraphEnds(aten, self.ctx, subgraphs, short)

    def run(self) -> Graph:
        nodes = list(self.aten.module.graph.nodes)
        outputs: tuple[GraphOutput, ...] = ()
        self.survey.run(nodes)
        ctx, short = self.ctx, self.short
        for position, node in enumerate(nodes):
            ctx.position = position
            if short is not None and short.passes(node, ctx):
                continue
            if node.op == "placeholder":
                ctx.env[node] = self.ends.input(node)
            elif node.op == "get_attr":
                ctx.env[node] = self.ends.constant(node)
            elif node.op == "output":
                outputs = self.ends.results()
            else:
                ctx.env[node] = self._lower(node)
        return Graph(
            self.aten.name,
            self.aten.kind,
            tuple(self.ends.inputs),
            outputs,
            ctx.buffers,
            ctx.checks.finish(ctx.nodes, ctx.buffers, ctx.fresh),
            ctx.objects,
            dict(ctx.sizes.hints),
        )

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
                ctx.env[node] = self.ends.constant(node, module)
            elif node.op == "output":
                ctx.origins = origins
                return self._value(node.args[0])
            else:
                self.survey.rows[node] = self.survey.row(node)
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

    # One node.

    def _lower(self, node: Node) -> Any:
        ctx = self.ctx
        name = ops.op_name(node.target)
        fake = node.meta.get("val")
        if is_getitem(node):
            return self._finish(node, self._getitem(node))
        if is_size_arithmetic(node):
            return self._number(fake)
        args = tuple(self._value(a) for a in node.args)
        kwargs = {k: self._value(v) for k, v in node.kwargs.items()}
        inlined = tensors_in((args, tuple(kwargs.values())))
        ctx.origins = origins_of(inlined, Origin(name, node.name, fx.source_text(node)))
        row = self.survey.rows[node]
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
            if readers.compared:
                kind = result.kernel_type
                result.body = cast(cast(result.body, kind), kind.compute)
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
        row = self.survey.rows.get(node)
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


def _is_empty(fake: torch.Tensor) -> bool:
    return any(type(n) is int and n == 0 for n in fake.shape)


def _is_beyond_kernels(args: Any, fake: Any) -> bool:
    """Whether a tensor is of a type that eager operators alone compute in, such as a complex one."""
    results = fake if isinstance(fake, (tuple, list)) else (fake,)
    if any(isinstance(f, torch.Tensor) and from_torch(f.dtype) is None for f in results):
        return True
    return any(value.dtype is None for value in tensors_in(args))


def readers_meet(node: Node, elementwise: Callable[[Node], bool]) -> bool:
    """Whether every path from a node leads through one node, and up to there through nodes for which
    `elementwise` holds: such as read each element of their arguments once.

    The derivative of `x * sigmoid(x)` reads the sigmoid twice, for two factors of one product. Read by it
    alone, the value need not be stored.
    """
    awaited = set(node.users)
    for later in islice(_after(node), _FAR):
        if later not in awaited:
            continue
        if not elementwise(later):
            return False
        awaited.remove(later)
        if not awaited:
            return True
        awaited.update(later.users)
    return False


def _after(node: Node) -> Iterator[Node]:
    later = node.next
    while later.op != "root":
        yield later
        later = later.next
