"""The first call of a bucket of DDPOptimizer, which returns fake tensors: how the next bucket's inputs lie.

Torch wraps what a compiler made of a bucket for that. What comes from a cache it does not wrap, and so keeps
buckets out of its own; here the layouts are stored with the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch._guards import TracingContext

Layouts: TypeAlias = tuple[Any, ...]
"""Of each result of a graph: the size, strides, dtype and device of a tensor; or a number, or None."""


def is_awaited() -> bool:
    """Whether torch compiles a bucket, to call it with fake tensors next."""
    context = TracingContext.try_get()
    return context is not None and bool(getattr(context, "fakify_first_call", False))


def layouts_of(results: Sequence[tuple[Any, Sequence[Any] | None]]) -> Layouts | None:
    """Layouts of results; None where one of them has a size that varies.

    Args:
        results: as they were traced, and the strides of tensors among them; None: as they were traced.
    """
    found: list[Any] = []
    for value, chosen in results:
        if isinstance(value, torch.Tensor):
            lies = value.stride() if chosen is None else chosen
            if not all(isinstance(n, int) for n in (*value.shape, *lies)):
                return None
            found.append((tuple(value.shape), tuple(lies), value.dtype, value.device))
        elif value is None or type(value) is int:
            found.append(value)
        else:
            return None
    return tuple(found)


def beginning_fake(run: Callable[[list[Any]], Any], layouts: Layouts | None) -> Callable[[list[Any]], Any]:
    """`run`, but for a first call that is awaited."""
    context = TracingContext.try_get()
    if layouts is None or context is None or not is_awaited():
        return run
    mode: Any = context.fake_mode
    awaited = True

    def called(args: list[Any]) -> Any:
        nonlocal awaited
        if not awaited:
            return run(args)
        awaited = False
        with mode:
            return [_fake(layout) for layout in layouts]

    return called


def _fake(layout: Any) -> Any:
    if not isinstance(layout, tuple):
        return layout
    size, strides, dtype, device = layout
    return torch.empty_strided(size, strides, dtype=dtype, device=device)


@contextmanager
def not_awaited() -> Iterator[None]:
    """Inside, torch does not refuse to store a bucket for its first call."""
    context: Any = TracingContext.try_get()
    if context is None or not is_awaited():
        yield
        return
    context.fakify_first_call = False
    try:
        yield
    finally:
        context.fakify_first_call = True


def note_metadata(metadata: Any) -> None:
    """Tell torch of a graph that was found what it learns where it traces one."""
    context = TracingContext.try_get()
    if context is not None:
        context.fw_metadata = metadata
