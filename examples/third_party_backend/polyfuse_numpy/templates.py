"""A template: an operator of the example's own as text with blanks, in configurations that are timed.

The lowering leaves the operator as a call that may be taken over, and the choice offers to.
"""

from __future__ import annotations

from collections.abc import Sequence
from string import Template
from typing import Any

from polyfuse.plugin import (
    CallSite,
    Choice,
    Claim,
    Config,
    DType,
    LoweringContext,
    No,
    Source,
    TemplateSource,
    TensorValue,
    View,
    Yes,
)

DISTANCES = "polyfuse_numpy.distances.default"

TEXT = Template("""def $symbol(left, right, out):
    left = flat(left, np.float32, $rows * $depth).reshape($rows, 1, $depth)
    right = flat(right, np.float32, $columns * $depth).reshape($columns, $depth)
    out = flat(out, np.float32, $rows * $columns).reshape($rows, $columns)
    for first in range(0, $rows, $block):
        out[first : first + $block] = np.square(left[first : first + $block] - right).sum(-1)
""")
"""What is computed, for $block rows at once; a blank without a value is an error when it is filled."""


def distances(ctx: LoweringContext, node: Any, left: TensorValue, right: TensorValue) -> Any:
    """Leave the call as it is, to be timed."""
    return ctx.call(node, DISTANCES, (left, right), offered=True)


def applies(site: CallSite) -> Claim:
    """Whole contiguous matrices of f32, whose sizes are known."""
    for view in (*site.call.args, site.output.view()):
        if not isinstance(view, View) or site.buffers[view.buffer].dtype is not DType.f32:
            return No("only tensors of f32 have a template")
        if view.offset != 0 or not all(isinstance(n, int) for n in view.size):
            return No("its sizes are not known, or it begins elsewhere")
        if view.stride != (view.size[1], 1):
            return No("a matrix is not contiguous")
    return Yes()


def blocks(site: CallSite) -> Sequence[Config]:
    """Rows at once."""
    return [Config.of(block=count) for count in (64, 8)]


def emit(site: CallSite, config: Config | None) -> TemplateSource:
    """The text for one call."""
    left, right = site.call.args
    (rows, depth), columns = left.size, right.size[0]
    block = config.get("block") if config is not None else rows
    sizes = {"rows": rows, "columns": columns, "depth": depth, "block": block}
    text = TEXT.substitute(symbol=Source.SYMBOL, **sizes)
    return TemplateSource(Source("distances", text, "py"), (left.buffer, right.buffer, site.output.name))


LOWERINGS = {DISTANCES: distances}
CHOICES = (Choice("blocks", (DISTANCES,), applies, emit=emit, configs=blocks),)
