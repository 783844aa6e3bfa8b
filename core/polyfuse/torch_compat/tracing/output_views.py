"""Results that are views of an input, which may have been written in place, where sizes are symbolic.

AOTAutograd makes such a result again, in the input's memory, with strides and offset that a functional graph
computed: if the input was written, those of a new tensor. (Where all sizes are known it replays the views,
unless inputs overlap.)
Dynamo knows the right ones, since it writes to its fake inputs in place; they are compared at each call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeGuard

import torch
from torch.fx import GraphModule, Node

from polyfuse.torch_compat.tracing import shapes

Geometry = tuple[tuple[int, ...], tuple[int, ...], int]
"""Size, stride and offset, in elements."""


@dataclass(frozen=True)
class OutputView:
    """The result at position `output` is a view of the input at `base`, which may have another dtype.

    `geometry` is the text of its size, stride and offset in Python, of symbols that are the inputs at
    `symbols`, and of `start`, the offset of the input, which no guard keeps as it was when Dynamo traced.
    That is data, so that torch can store it beside a compiled graph.
    """

    output: int
    base: int
    same_dtype: bool
    geometry: str
    symbols: tuple[tuple[str, int], ...]


def views_of_inputs(gm: Any, *, of_numbers: bool = False) -> tuple[OutputView, ...]:
    """Results of a captured graph that are views of its inputs, if their geometry has symbols, or all of them
    with `of_numbers`. Whether the input is written is not asked: fake tensors do not count the writes of all
    operators."""
    if not isinstance(gm, GraphModule):
        return ()
    inputs = [node.meta.get("example_value") for node in gm.graph.nodes if node.op == "placeholder"]
    bases = {_storage(v): i for i, v in enumerate(inputs) if _is_plain(v)}
    if not bases:
        return ()
    symbols = {shapes.expr_of(v): i for i, v in enumerate(inputs) if shapes.is_symbolic(v)}
    given = [v for v in inputs if isinstance(v, torch.Tensor)]
    results = next(node for node in reversed(gm.graph.nodes) if node.op == "output").args[0]
    found = []
    for position, node in enumerate(results):
        value = node.meta.get("example_value") if isinstance(node, Node) else None
        if not _is_plain(value) or any(value is each for each in given) or _storage(value) not in bases:
            continue
        own = shapes.free_symbols(value)
        if not own and not of_numbers:
            continue
        needed = {*own, *shapes.free_symbols(inputs[bases[_storage(value)]].storage_offset())}
        if all(symbol in symbols for symbol in needed):
            base = bases[_storage(value)]
            named = tuple((symbol.name, symbols[symbol]) for symbol in needed)
            geometry = _geometry(value, inputs[base])
            found.append(OutputView(position, base, value.dtype == inputs[base].dtype, geometry, named))
    return tuple(found)


def with_views(compiled: Callable[..., Any], views: Sequence[OutputView]) -> Callable[..., Any]:
    """A compiled graph, called with its inputs one by one, whose results named by `views` have the geometry
    that eager mode gives them. What torch attaches to a compiled graph, such as how it is stored, it has too.
    """
    if not views:
        return compiled
    geometries = [(view, _computed(view)) for view in views]

    @wraps(compiled)
    def run(*args: Any) -> Any:
        results = compiled(*args)
        for view, geometry in geometries:
            size, stride, offset = geometry(args)
            result = results[view.output]
            if result.stride() == stride and result.storage_offset() == offset:
                continue
            # gradients pass through the input itself: the result that is replaced covers other elements
            base = args[view.base] if view.same_dtype else result
            made = base.as_strided(size, stride, offset)
            made = made if result.requires_grad else made.detach()
            results = (*results[: view.output], made, *results[view.output + 1 :])
        return results

    return run


def _geometry(value: torch.Tensor, base: torch.Tensor) -> str:
    """The text of the size, stride and offset of a fake tensor that lies in the memory of another."""
    from torch.utils._sympy.printers import PythonPrinter

    def text(number: Any) -> str:
        return PythonPrinter().doprint(shapes.expr_of(number))

    def tuple_of(numbers: Sequence[Any]) -> str:
        return f"({''.join(f'{text(n)}, ' for n in numbers)})"

    moved = f"start - ({text(base.storage_offset())})"
    if base.element_size() != value.element_size():
        moved = f"({moved}) * {base.element_size()} // {value.element_size()}"
    offset = f"{text(value.storage_offset())} + {moved}"
    return f"{tuple_of(value.shape)}, {tuple_of(value.stride())}, {offset}"


def _computed(view: OutputView) -> Callable[[Sequence[Any]], Geometry]:
    """Computes the geometry of a view from all inputs."""
    names = ", ".join(("start", *(name for name, _ in view.symbols)))
    symbols = (f"args[{position}]" for _, position in view.symbols)
    given = ", ".join((f"args[{view.base}].storage_offset()", *symbols))
    text = f"lambda args: (lambda {names}: ({view.geometry}))({given})"
    computed: Callable[[Sequence[Any]], Geometry] = eval(text, {"math": math})
    return computed


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _is_plain(value: Any) -> TypeGuard[torch.Tensor]:
    """Whether a value is a fake tensor with strides, and no subclass with tensors of its own."""
    return (
        isinstance(value, torch.Tensor)
        and value.layout is torch.strided
        and not hasattr(value, "__tensor_flatten__")
    )
