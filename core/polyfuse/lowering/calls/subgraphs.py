"""Operators that call functions: conditions, loops, scans. What they do is torch's, but the functions are
compiled.
"""

from __future__ import annotations

from typing import Any

from torch.fx import GraphModule, Node

from polyfuse.lowering.calls.fallback import call_operator, run_eagerly
from polyfuse.lowering.context import LoweringContext
from polyfuse.lowering.registry import lowers

__all__ = ["CALLERS"]

CALLERS = (
    "higher_order.cond",
    "higher_order.invoke_subgraph",
    "higher_order.map_impl",
    "higher_order.scan",
    "higher_order.while_loop",
    "higher_order.while_loop_stack_output",
)
"""Operators that call their functions with plain tensors and numbers, one call after another."""


@lowers(*CALLERS, library=True)
def calls_functions(ctx: LoweringContext, node: Node, *args: Any, **kwargs: Any) -> Any:
    if any(isinstance(argument, GraphModule) for argument in args):
        return run_eagerly(ctx, node, args, kwargs, "a function that it calls was not compiled")
    return call_operator(ctx, node.target, node.meta.get("val"), args, kwargs, fallback=False)
