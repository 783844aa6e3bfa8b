"""Matrix products whose right operand is a parameter: with freezing, a backend that lays such an operand out
in panels at each call may have it so from the start.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from polyfuse.ir.expr import load
from polyfuse.ir.graph import Graph
from polyfuse.ir.nodes import Buffer, ExternCall, TemplateCall
from polyfuse.select.products import LoopForm, Unavailable
from polyfuse.select.sites import site_of
from polyfuse.symbolic import IndexLike, axis_name, axis_size, coefficient, free_axes

__all__ = ["Panels", "with_panels"]

_LAYS_OUT = "aten.as_strided_copy.default"


@dataclass(frozen=True)
class Panels:
    """A product that reads its right operand panel after panel.

    Attributes:
        form: the loops.
        lays_out: the call that makes the panels, once for each parameter.
        buffer: where they are.
    """

    form: LoopForm
    lays_out: ExternCall
    buffer: Buffer


def with_panels(graph: Graph, call: TemplateCall, form: LoopForm, width: int, kept: frozenset[str]) -> Panels:
    """`form` with its right operand in panels of so many columns: in each of them, those of one step of the
    depth stand side by side.

    Args:
        kept: names of the parameters whose layout may be kept.

    Raises:
        Unavailable: the operand cannot be laid out once, or not so.
    """
    left, right = form.product.values
    if right.op != "load" or right.args:
        raise Unavailable("its right operand is computed")
    name, place = right.buffer, right.index
    if name not in kept:
        raise Unavailable("its right operand is no parameter")
    own = set(free_axes(place))
    columns = [a for a in form.product.axes if axis_name(a) in own]
    if len(columns) != 1 or len(form.product.raxes) != 1:
        raise Unavailable("its right operand is no matrix")
    column, depth = columns[0], form.product.raxes[0]
    count, steps = axis_size(column), axis_size(depth)
    across, down = (coefficient(place, axis_name(a)) for a in (column, depth))
    if not all(isinstance(n, int) for n in (count, steps, across, down)):
        raise Unavailable("the size of its right operand is known only at run time")
    assert isinstance(count, int) and isinstance(steps, int)
    assert isinstance(across, int) and isinstance(down, int)
    if place != column * across + depth * down:
        raise Unavailable("its right operand is a part of a parameter")
    if count % width:
        raise Unavailable(f"its {count} columns are no panels of {width}")
    size = (count // width, steps, width)
    stride = (steps * width, width, 1)
    source = graph.buffers[name]
    panels = replace(source, name=f"{call.name}_panels", size=size, stride=stride, kind="temp")
    arguments = (size, (width * across, down, across))
    site = site_of(graph, call, True, kept)
    lays_out = site.once(f"{call.name}_lay_out", _LAYS_OUT, source.view(), arguments, panels)
    where: IndexLike = column // width * stride[0] + depth * width + column % width
    product = replace(form.product, values=(left, load(panels.name, where, right.dtype)))
    return Panels(replace(form, product=product), lays_out, panels)
