"""Functions that operators of a packaged program call, such as the branches of a condition: between what a
description says of them and what a program calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from polyfuse.aot.description import Function, Operand
from polyfuse.runtime.subgraphs import DENSE, Layout, Subgraph


def called(function: Function, run: Callable[[list[Any]], Sequence[Any]]) -> Subgraph:
    """What the program that calls a function is given for it; `run` is its own program, loaded."""
    return Subgraph(run, tuple(map(_layout, function.operands)), function.single, function.key)


def operand(layout: Layout) -> Operand:
    """What a description says of a layout."""
    if layout is None:
        return Operand("any")
    return Operand("dense") if isinstance(layout, str) else Operand("fixed", *layout)


def _layout(operand: Operand) -> Layout:
    if operand.kind == "fixed":
        return operand.size, operand.stride
    return DENSE if operand.kind == "dense" else None
