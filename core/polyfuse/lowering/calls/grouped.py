"""Products of groups: library calls that plugins may take over."""

from __future__ import annotations

from typing import Any

from polyfuse.lowering.calls.extern import call
from polyfuse.lowering.context import LoweringContext
from polyfuse.lowering.registry import lowers
from polyfuse.torch_compat import ops


@lowers("aten._grouped_mm.default", library=True)
def grouped_product(ctx: LoweringContext, node: Any, *args: Any, **named: Any) -> Any:
    return call(ctx, node.meta["val"], ops.op_name(node.target), args, named, template=True)
