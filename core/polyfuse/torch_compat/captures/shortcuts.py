"""Work that Dynamo skips while it traces a frame for Polyfuse, since nothing reads its result, and guards on
which no result depends.

Dynamo holds a lock while it compiles a frame, so that what is replaced here is seen by no other compile.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from polyfuse.base.lazy import rare_collections
from polyfuse.torch_compat.captures.guard_repeats import added_once
from polyfuse.torch_compat.captures.markings import Markings
from polyfuse.torch_compat.captures.vmap_calls import recorded
from polyfuse.torch_compat.tracing.dynamo import disable_again
from polyfuse.torch_compat.tracing.shapes import hint, is_symbolic

_FUNC_MAP = "torch.distributed.tensor.experimental._func_map"

_MOST_DIMS = 4
"""Of one and two dimensions the candidates give the same memory format; of three they do not."""
_OPERANDS = ("input", "weight")

_MARKS = "add_dimension_marking_guard"
"""Since torch 2.13, the method of a guard's node that looks for marks."""


@contextmanager
def shortcuts() -> Iterator[None]:
    """Inside, frames are traced with the same result in less time.

    Collections of garbage are rarer, unless somebody made them rarer still. The name of the function around
    a line, for which Dynamo splits whole files into tokens, is looked for only where calls are logged. A
    function is compared with one of `torch.distributed` only where its module is imported already: else it
    cannot be that one. How long guards take, which goes into Dynamo's metrics, is measured without emptying
    the caches of the CPU before. Convolutions make no guards on sizes. No guard repeats another, none looks
    for marks on the dimensions of a parameter, and plain calls of `vmap` are not inlined. Calls of the frame
    do not look whether a profiler wants to know how long their inputs took to be found, and keep Dynamo away
    from what is compiled once. Whatever of it a version of torch does not have is left as it is.
    """
    from torch._dynamo import config, guards, output_graph, symbolic_convert
    from torch._dynamo.variables import higher_order_ops
    from torch._guards import GuardsSet

    with ExitStack() as stack:
        stack.enter_context(rare_collections())
        logs = [getattr(symbolic_convert, name, None) for name in ("trace_call_log", "trace_source_log")]
        if all(isinstance(log, logging.Logger) and not log.isEnabledFor(logging.DEBUG) for log in logs):
            stack.enter_context(_replaced(symbolic_convert, "get_funcname", _unnamed))
        if hasattr(config, "record_runtime_overhead"):
            stack.enter_context(config.patch(record_runtime_overhead=False))
        if disable := getattr(output_graph, "disable", None):
            stack.enter_context(_replaced(output_graph, "disable", disable_again(disable)))
        stack.enter_context(_replaced(guards, "profile_guard_manager", _microseconds_of_guards))
        if choose := getattr(torch._C, "_select_conv_backend", None):
            stack.enter_context(_replaced(torch._C, "_select_conv_backend", chosen_by_hints(choose)))
        stack.enter_context(_replaced(GuardsSet, "add", added_once(GuardsSet.add)))
        node = getattr(guards, "GuardManager", None)
        if mark := getattr(node, _MARKS, None):
            markings, match = Markings(), guards.GuardBuilder.TENSOR_MATCH
            stack.enter_context(_replaced(node, _MARKS, markings.marked(mark)))
            stack.enter_context(_replaced(guards.GuardBuilder, "TENSOR_MATCH", markings.matched(match)))
        if functorch := getattr(higher_order_ops, "FunctorchHigherOrderVariable", None):
            inline = functorch.call_function
            stack.enter_context(_replaced(functorch, "call_function", recorded(inline)))
        mapped = getattr(higher_order_ops, "LocalMapWrappedHigherOrderVariable", None)
        if _FUNC_MAP not in sys.modules:
            stack.enter_context(_replaced(mapped, "should_wrap_in_hop", staticmethod(_compared(mapped))))
        yield


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Have another value under a name of a module or a class, if it has one there."""
    original = vars(owner).get(name) if owner is not None else None
    if original is None:
        yield
        return
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


def _unnamed(filename: str, lineno: int) -> None:
    """Instead of the name of the function around a line."""


def _microseconds_of_guards(root: Any, f_locals: Any, rounds: int) -> float:
    """How long one of several checks of guards takes; torch's own empties caches first, 20 ms a frame."""
    start = time.perf_counter_ns()
    for _ in range(rounds):
        root.check(f_locals)
    return (time.perf_counter_ns() - start) / (1000 * max(1, rounds))


def _compared(mapped: Any) -> Callable[[Any], bool]:
    its_own = getattr(mapped, "should_wrap_in_hop", None)

    def is_mapped(value: Any) -> bool:
        return its_own is not None and _FUNC_MAP in sys.modules and bool(its_own(value))

    return is_mapped


def chosen_by_hints(choose: Callable[..., Any]) -> Callable[..., Any]:
    """`torch._C._select_conv_backend`, answering on CPUs for the sizes of the examples alone.

    Fake tensors ask it for the memory format of a result. It chooses by sizes, each comparison of which
    becomes a guard: with torch's own answer, batches below and from 16 on are two graphs, and so are images
    of one batch below and above 20480 numbers.

    Args:
        choose: torch's own function, of an input, a weight and the options of a convolution.
    """

    # the first two arguments are positional, or with torch 2.11 named as torch names them
    def chosen(*args: Any, **named: Any) -> Any:
        given = dict(zip(_OPERANDS, args, strict=False)) | named
        data, weight = (given.pop(name) for name in _OPERANDS)
        if data.device.type == "cpu" and data.ndim <= _MOST_DIMS:
            data, weight = _of_hints(data), _of_hints(weight)
        return choose(data, weight, *args[len(_OPERANDS) :], **given)

    return chosen


def _of_hints(value: torch.Tensor) -> torch.Tensor:
    """A tensor of the same layout without symbols."""
    if not any(is_symbolic(n) for n in (*value.shape, *value.stride())):
        return value
    size, stride = ([_number(n) for n in numbers] for numbers in (value.shape, value.stride()))
    return torch.empty_strided(size, stride, dtype=value.dtype, device=value.device)


def _number(value: Any) -> int:
    return int(hint(value.node.shape_env, value)) if is_symbolic(value) else value
