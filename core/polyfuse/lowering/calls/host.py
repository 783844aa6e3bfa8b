"""What belongs on the host: numbers read from tensors, sizes that depend on data, checks.

These are calls of eager operators by nature rather than for want of a lowering.
"""

from __future__ import annotations

from typing import Any

from polyfuse.lowering.calls.fallback import call_operator
from polyfuse.lowering.context import LoweringContext
from polyfuse.lowering.registry import lowers

READ_DATA = (
    "aten._local_scalar_dense.default",
    "aten.item.default",
    "aten.nonzero.default",
    "aten.masked_select.default",
    "aten._assert_async.default",
    "aten._assert_async.msg",
    "aten._assert_scalar.default",
)
"""They read data on the host, or stop the program for it."""


@lowers(*READ_DATA, library=True)
def on_host(ctx: LoweringContext, node: Any, *args: Any, **kwargs: Any) -> Any:
    return call_operator(ctx, node.target, node.meta.get("val"), args, kwargs, fallback=False)


@lowers("aten._assert_tensor_metadata.default")
def known_at_trace(ctx: LoweringContext, node: Any, *args: Any, **kwargs: Any) -> None:
    """Shapes, strides and types were checked when the graph was traced."""
    return
