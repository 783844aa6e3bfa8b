"""What Dynamo is spared while it traces a frame for us: work whose result nobody sees.

Dynamo holds a lock while it compiles a frame, so that what is replaced here is seen by no other compile.
"""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

__all__ = ["shortcuts"]

_YOUNG = 50_000
"""New objects after which the young ones are collected; Python's own 700. A hundred such collections may be
followed by a look at all that torch and its imports made, which takes some 0.2 s: after 70000 objects, of
which tracing a small network makes three times as many."""

_FUNC_MAP = "torch.distributed.tensor.experimental._func_map"


@contextmanager
def shortcuts() -> Iterator[None]:
    """Inside, a frame is traced as ever, in less time.

    Collections of garbage are rarer, unless somebody made them rarer still. The name of the function around
    a line, for which Dynamo splits whole files into tokens, is looked for only where calls are logged. A
    function is compared with one of `torch.distributed` only where its module is imported already: else it
    cannot be that one. Whatever of it a version of torch does not have is left as it is.
    """
    from torch._dynamo import symbolic_convert
    from torch._dynamo.variables import higher_order_ops

    with ExitStack() as stack:
        stack.enter_context(_rare_collections())
        logs = [getattr(symbolic_convert, name, None) for name in ("trace_call_log", "trace_source_log")]
        if all(isinstance(log, logging.Logger) and not log.isEnabledFor(logging.DEBUG) for log in logs):
            stack.enter_context(_replaced(symbolic_convert, "get_funcname", _unnamed))
        mapped = getattr(higher_order_ops, "LocalMapWrappedHigherOrderVariable", None)
        if _FUNC_MAP not in sys.modules:
            stack.enter_context(_replaced(mapped, "should_wrap_in_hop", staticmethod(_compared(mapped))))
        yield


@contextmanager
def _rare_collections() -> Iterator[None]:
    before = gc.get_threshold()
    if not 0 < before[0] < _YOUNG:  # 0: never
        yield
        return
    rarer = (_YOUNG, *before[1:])
    gc.set_threshold(*rarer)
    try:
        yield
    finally:
        if gc.get_threshold() == rarer:
            gc.set_threshold(*before)


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Have another value under a name of a module or a class, if it has one there."""
    kept = vars(owner).get(name) if owner is not None else None
    if kept is None:
        yield
        return
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, kept)


def _unnamed(filename: str, lineno: int) -> None:
    """In the place of the name of the function around a line."""


def _compared(mapped: Any) -> Callable[[Any], bool]:
    its_own = getattr(mapped, "should_wrap_in_hop", None)

    def is_mapped(value: Any) -> bool:
        return its_own is not None and _FUNC_MAP in sys.modules and bool(its_own(value))

    return is_mapped
