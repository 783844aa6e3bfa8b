"""Results that are views of an input, which may have been written in place, where sizes are symbolic.

AOTAutograd makes such a result again, in the input's memory, with strides and offset that a functional graph
computed: if the input was written, those of a new tensor. (Where all sizes are known it replays the views.)
Dynamo knows the right ones, since it writes to its fake inputs in place; they are compared at each call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch.fx import GraphModule, Node

from polyfuse.torch_compat.tracing import shapes

__all__ = ["OutputView", "views_of_inputs", "with_views"]

Geometry = tuple[tuple[int, ...], tuple[int, ...], int]
"""Size, stride and offset, in elements."""


@dataclass(frozen=True)
class OutputView:
    """The result at position `output` is a view of the input at `base`, of the geometry that `geometry`
    computes from all inputs."""

    output: int
    base: int
    same_dtype: bool
    geometry: Callable[[Sequence[Any]], Geometry]


def views_of_inputs(gm: Any) -> tuple[OutputView, ...]:
    """Results of a captured graph that are views of its inputs, if their geometry has symbols. Whether the
    input is written is not asked: fake tensors do not count the writes of all operators."""
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
        needed = shapes.free_symbols(value)
        if needed and all(symbol in symbols for symbol in needed):
            base = bases[_storage(value)]
            geometry = _geometry(value, {symbol.name: symbols[symbol] for symbol in needed})
            found.append(
                OutputView(position, base, value.dtype == getattr(inputs[base], "dtype", None), geometry)
            )
    return tuple(found)


def with_views(compiled: Callable[..., Any], views: Sequence[OutputView]) -> Callable[..., Any]:
    """A compiled graph whose results named by `views` have the geometry that eager mode gives them."""

    def run(*args: Any) -> Any:
        results = list(compiled(*args))
        for view in views:
            size, stride, offset = view.geometry(args)
            result = results[view.output]
            if (result.stride(), result.storage_offset()) == (stride, offset):
                continue
            # gradients pass through the input itself: the result that is replaced covers other elements
            base = args[view.base] if view.same_dtype else result
            made = base.as_strided(size, stride, offset)
            results[view.output] = made if result.requires_grad else made.detach()
        return tuple(results)

    return run


def _geometry(value: torch.Tensor, positions: dict[str, int]) -> Callable[[Sequence[Any]], Geometry]:
    """Computes the geometry of a fake tensor, whose symbols are the inputs at `positions`."""
    from torch.utils._sympy.printers import PythonPrinter

    def text(number: Any) -> str:
        return PythonPrinter().doprint(shapes.expr_of(number))

    def tuple_of(numbers: Sequence[Any]) -> str:
        return f"({''.join(f'{text(n)}, ' for n in numbers)})"

    parts = f"{tuple_of(value.shape)}, {tuple_of(value.stride())}, {text(value.storage_offset())}"
    bound = "".join(f"{name}=args[{position}], " for name, position in positions.items())
    compute = eval(f"lambda {', '.join(positions)}: ({parts})", {"math": math})
    computed: Callable[[Sequence[Any]], Geometry] = eval(
        f"lambda args: compute({bound})", {"compute": compute}
    )
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
