"""Operators with effects that a token puts in order: the token goes, the order stays."""

from __future__ import annotations

from typing import Any

from torch.fx import Node

from polyfuse.lowering.calls.fallback import call_operator
from polyfuse.lowering.context import LoweringContext
from polyfuse.lowering.registry import lowers
from polyfuse.torch_compat import ops

WITH_EFFECTS = "higher_order.with_effects"


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


@lowers("prims._make_token.default", "aten._make_dep_token.default", library=True)
def make_token(ctx: LoweringContext, node: Any, *args: Any, **kwargs: Any) -> None:
    return None


@lowers("prims._sink_tokens.default", library=True)
def sink_tokens(ctx: LoweringContext, node: Any, *args: Any, **kwargs: Any) -> None:
    return None
