"""Lowerings that plugins offer: the context they get, and what happens where one does not work.

An offered lowering comes before the core's own of the same operator. Where it refuses, raises, or returns
what does not fit the call, the next one is tried and what it left in the graph is taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from polyfuse.base.errors import PolyfuseError, UnsupportedError
from polyfuse.base.log import get_logger
from polyfuse.ir.expr import Expr
from polyfuse.ir.graph import Graph, reads
from polyfuse.ir.nodes import OBJECT_CALL, ExternCall, Node
from polyfuse.ir.types import DType
from polyfuse.ir.verifier.verify import verify_expr, verify_graph
from polyfuse.lowering.calls import extern
from polyfuse.lowering.context import LoweringContext
from polyfuse.lowering.elements import pointwise
from polyfuse.lowering.reductions import reduction
from polyfuse.lowering.value import TensorValue, axes_of
from polyfuse.plugin import Extensions, Lowering, Offered
from polyfuse.plugin.hooks.faults import is_fault
from polyfuse.rewrite import simplify
from polyfuse.runtime.frozen import once
from polyfuse.symbolic import Index, IndexLike

_log = get_logger("lowering")


class OpenContext(LoweringContext):
    """The context with all that `polyfuse.plugin.LoweringContext` promises.

    Attributes:
        inliner: lowers the subgraph of a traced function into this graph.
    """

    inliner: Callable[[torch.fx.GraphModule, Sequence[Any]], Any]

    def emit(self, node: Node) -> None:
        """Append a node, which comes from the operator that is lowered."""
        super().emit(node if node.origins else replace(node, origins=self.origins))

    def inline(self, module: Any, arguments: Sequence[Any]) -> Any:
        """What a traced function of numbers gives for some arguments."""
        if not isinstance(module, torch.fx.GraphModule):
            raise UnsupportedError(f"a {type(module).__name__} is no traced function")
        return self.inliner(module, arguments)

    def add_object(self, prefix: str, value: object) -> str:
        """Put an object into the graph's table."""
        key = self.fresh(prefix)
        self.objects[key] = value
        return f"{OBJECT_CALL}{key}"

    def pack(self, op: str, parameter: TensorValue, args: tuple[Any, ...] = ()) -> TensorValue:
        """What an operator makes of a parameter, computed once."""
        source = parameter.view
        if source is None or source != self.buffers[source.buffer].view():
            raise UnsupportedError("only a whole parameter is packed")
        like = parameter.torch_dtype, parameter.device, parameter.size, parameter.stride
        buffer = self.add_buffer(None, *like, "object", self.fresh("packed"))
        name, call = self.fresh("pack"), once(op, self.settings.freezing)
        # nothing may be written over the result, which lives as long as the parameter does
        node = ExternCall(
            name, call, (source, *args), (), (buffer.name,), aliases=(source.buffer,), origins=self.origins
        )
        self.emit(node)
        return TensorValue(None, *like, view=buffer.view())

    def axes(self, value: TensorValue) -> tuple[IndexLike, ...]:
        """The index variables of a lazy body of `value`."""
        return axes_of(value.size)

    def elementwise(
        self, node: Any, operands: Sequence[Any], body: Callable[..., Expr], compute: DType | None = None
    ) -> TensorValue:
        """The result of `node`: `body` of its broadcast operands."""
        return pointwise.elementwise(self, node, operands, body, compute)

    def reduce(
        self,
        kind: str,
        size: Sequence[IndexLike],
        dims: Sequence[int],
        values: Callable[[Sequence[IndexLike]], tuple[Expr, ...]],
        results: Sequence[TensorValue | None],
    ) -> tuple[Expr, ...]:
        """Reduce `dims` of an iteration space."""
        return reduction.reduce(self, kind, size, dims, values, results)

    def call(
        self,
        node: Any,
        op: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None = None,
        *,
        offered: bool = False,
        results: Any = None,
    ) -> Any:
        """A library call whose results are those of `node`, or like `results`."""
        fakes = node.meta["val"] if results is None else results
        return extern.call(self, fakes, op, args, kwargs, template=offered)


def combined(
    name: str, offers: Sequence[Offered[Lowering]], own: Lowering | None, extensions: Extensions
) -> Lowering:
    """One row for all lowerings of an operator. What it says of its arguments holds for each of them."""
    rows = [offer.item for offer in offers] + ([own] if own is not None else [])
    return Lowering(
        _Chain(name, tuple(offers), own, extensions),
        view=all(row.view for row in rows),
        library=any(row.library for row in rows),
        passes=max(row.passes for row in rows),
        stores=tuple(sorted({position for row in rows for position in row.stores})),
    )


@dataclass(frozen=True)
class _Chain:
    """Tries the offered lowerings of one operator, then the core's own."""

    name: str
    offers: tuple[Offered[Lowering], ...]
    own: Lowering | None
    extensions: Extensions

    def __call__(self, ctx: LoweringContext, node: Any, *args: Any, **kwargs: Any) -> Any:
        declined = ""
        for offer in self.offers:
            nodes, buffers = len(ctx.nodes), len(ctx.buffers)
            try:
                result = offer.item.function(ctx, node, *args, **kwargs)
                return _accepted(ctx, node.meta.get("val"), result, nodes)
            except UnsupportedError as error:
                _log.info("plugin %r does not lower %s: %s", offer.plugin, self.name, error)
                declined = f"plugin {offer.plugin!r} declined: {error.cause}"
            except BaseException as error:
                if not is_fault(error):
                    raise
                if ctx.settings.strict:
                    raise PolyfuseError(
                        f"plugin {offer.plugin!r} failed to lower {self.name}: {error!r}", "unset strict"
                    ) from error
                self.extensions.plugins.note_trouble(offer.plugin, error, f"lowering {self.name}")
                declined = f"plugin {offer.plugin!r} failed to lower it"
            _undo(ctx, nodes, buffers)
        if self.own is None:
            raise UnsupportedError(declined)
        return self.own.function(ctx, node, *args, **kwargs)


def _accepted(ctx: LoweringContext, fake: Any, result: Any, first: int) -> Any:
    """What a plugin's lowering returned, simplified, if it fits the call and the nodes it made are right."""
    if isinstance(fake, (tuple, list)):
        if not isinstance(result, (tuple, list)) or len(result) != len(fake):
            raise PolyfuseError(f"the call has {len(fake)} results, and the lowering returned something else")
        pairs = [(f, r) for f, r in zip(fake, result, strict=True) if r is not None]
    else:
        pairs = [(fake, result)]
    for traced, value in pairs:
        if isinstance(traced, torch.Tensor):
            _check(ctx, traced, value)
    for node in ctx.nodes[first:]:
        _verify(ctx, node)
    return result


def _check(ctx: LoweringContext, fake: torch.Tensor, value: Any) -> None:
    if not isinstance(value, TensorValue):
        raise PolyfuseError(f"the lowering returned a {type(value).__name__} and no value")
    wanted = ctx.template(fake)
    for what in ("torch_dtype", "device", "size", "stride"):
        if getattr(value, what) != getattr(wanted, what):
            raise PolyfuseError(
                f"the lowering's {what} is {getattr(value, what)}, the call's {getattr(wanted, what)}"
            )
    if value.body is not None:
        axes = [a for a in axes_of(value.size) if isinstance(a, Index)]
        verify_expr(value.body, axes, ctx.buffers)
        value.body = simplify(value.body)
    elif value.view is None:
        raise PolyfuseError("the lowering returned a value without content")


def _verify(ctx: LoweringContext, node: Node) -> None:
    """Check one node by itself; what it reads counts as written. Raises if it breaks a rule."""
    names = dict.fromkeys((*reads(node), *node.writes()))
    known = {n: replace(ctx.buffers[n], kind="constant") for n in names if n in ctx.buffers}
    hints = dict.fromkeys(ctx.bound_symbols, 0) | ctx.sizes.hints
    verify_graph(Graph("of a plugin", "inference", (), (), known, (node,), ctx.objects, hints))


def _undo(ctx: LoweringContext, nodes: int, buffers: int) -> None:
    """Drop what a lowering left that did not work: nodes that are wrong, or that write to what has a content.
    The others may hold arguments that were stored on the way, and go away if nobody reads them.
    """
    written = set(list(ctx.buffers)[:buffers])
    right: list[Node] = []
    for node in ctx.nodes[nodes:]:
        if _is_right(ctx, node) and not written.intersection(node.writes()):
            right.append(node)
            written.update(node.writes())
    ctx.nodes[nodes:] = right


def _is_right(ctx: LoweringContext, node: Node) -> bool:
    try:
        _verify(ctx, node)
    except Exception:  # what is no node at all, or no kind that is known, breaks the check itself
        return False
    return True
