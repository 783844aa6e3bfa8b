"""Operators that run on the host by nature: they read data, stop the program, call functions, or have effects
that a token puts in order (the token goes, the order stays)."""

from __future__ import annotations

from typing import Any

from torch.fx import GraphModule, Node

from polyfuse.lowering.calls.fallback import call_operator, run_eagerly
from polyfuse.lowering.context import LoweringContext
from polyfuse.lowering.registry import lowers
from polyfuse.torch_compat import ops

CALLERS = tuple(
    f"higher_order.{name}"
    for name in ("cond", "invoke_subgraph", "map_impl", "scan", "while_loop", "while_loop_stack_output")
)
"""Operators that call their subgraphs with plain tensors and numbers, one call after another. What they do is
torch's, but the subgraphs are compiled."""

WITH_EFFECTS = "higher_order.with_effects"


@lowers(
    "aten._local_scalar_dense.default",
    "aten.item.default",
    "aten.nonzero.default",
    "aten.masked_select.default",
    "aten._assert_async.default",
    "aten._assert_async.msg",
    "aten._assert_scalar.default",
    library=True,
)
def on_host(ctx: LoweringContext, node: Any, *args: Any, **kwargs: Any) -> Any:
    return call_operator(ctx, node.target, node.meta.get("val"), args, kwargs, fallback=False)


@lowers(*CALLERS, library=True)
def calls_subgraphs(ctx: LoweringContext, node: Node, *args: Any, **kwargs: Any) -> Any:
    if any(isinstance(argument, GraphModule) for argument in args):
        return run_eagerly(ctx, node, args, kwargs, "a subgraph that it calls was not compiled")
    return on_host(ctx, node, *args, **kwargs)


@lowers("aten._assert_tensor_metadata.default")
def known_at_trace(ctx: LoweringContext, node: Any, *args: Any, **kwargs: Any) -> None:
    """Shapes, strides and types were checked when the graph was traced."""
    return


@lowers(
    "prims._make_token.default", "aten._make_dep_token.default", "prims._sink_tokens.default", library=True
)
def token(ctx: LoweringContext, node: Any, *args: Any, **kwargs: Any) -> None:
    return


def is_token(node: Node) -> bool:
    """Whether a graph input is a token: the caller passes None for it."""
    return bool(node.users) and all(
        user.op == "call_function" and ops.op_name(user.target) == WITH_EFFECTS and user.args[0] is node
        for user in node.users
    )


@lowers(WITH_EFFECTS, library=True)
def with_effects(ctx: LoweringContext, node: Any, token: None, target: Any, *args: Any, **kwargs: Any) -> Any:
    """The operator itself; the first result is the token for the next one, which is nothing here."""
    fakes = tuple(node.meta["val"])[1:]
    many = len(ops.result_names(target)) > 1
    fake = fakes if many else (fakes[0] if fakes else None)
    found = call_operator(ctx, target, fake, args, kwargs, fallback=False)
    return (None, *found) if many else (None, found)
