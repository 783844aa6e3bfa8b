"""Fused attention: library calls that plugins may take over."""

from __future__ import annotations

from typing import Any

from polyfuse.lowering.calls.extern import call
from polyfuse.lowering.context import LoweringContext
from polyfuse.lowering.registry import lowers
from polyfuse.torch_compat import ops

_STEM = "aten._scaled_dot_product_"


@lowers(
    *(
        f"{_STEM}{name}.default"
        for name in (
            "flash_attention_for_cpu",
            "flash_attention_for_cpu_backward",
            "flash_attention",
            "flash_attention_backward",
            "efficient_attention",
            "efficient_attention_backward",
            "cudnn_attention",
            "cudnn_attention_backward",
            "attention_math_for_mps",
        )
    ),
    library=True,
)
def attention(ctx: LoweringContext, node: Any, *args: Any, **named: Any) -> Any:
    facts = ops.facts(node.target)
    drops = facts.is_random and _drops(node.target, args, named)
    return call(ctx, node.meta["val"], ops.op_name(node.target), args, named, template=True, ordered=drops)


def _drops(target: Any, args: tuple[Any, ...], named: dict[str, Any]) -> bool:
    """Whether a random operator really draws: attention without dropout does not."""
    names = ops.argument_names(target)
    if "dropout_p" not in names:
        return True
    position = names.index("dropout_p")
    return bool(named.get("dropout_p", args[position] if position < len(args) else 0.0) != 0.0)
