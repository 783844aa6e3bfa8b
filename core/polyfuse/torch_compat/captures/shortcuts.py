"""Work that Dynamo skips while it traces a frame for Polyfuse, since nothing reads its result, and guards on
which no result depends.

Dynamo holds a lock while it compiles a frame, so that what is replaced here is seen by no other compile.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from typing import Any

import torch

from polyfuse.base.lazy import rare_collections
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


_COMPARED = (str, int, bool, bytes, type(None))
"""Types of arguments that mean the same when they are equal; others must be one object."""

_INDEX = "_polyfuse_meanings"
"""Attribute of a set: its guards by what they say, and some that were taken out."""


def added_once(add: Callable[..., None]) -> Callable[..., None]:
    """`GuardsSet.add`, leaving out what a guard of the set says already.

    torch means to leave these out too. But it compares guards with the line of the program they came from,
    which a guard that is about to be added does not have yet, and by identity functions with arguments, which
    are made anew for each guard. So scans in Mamba leave 4340 guards that say 530 things.

    Args:
        add: torch's own method of a set and a guard.
    """

    def added(self: Any, guard: Any, **named: Any) -> None:
        known: dict[Hashable, Any] | None = vars(self).get(_INDEX)
        if known is None:
            known = {_meaning(other): other for other in self.inner}
            setattr(self, _INDEX, known)
        said = _meaning(guard)
        # torch takes guards out again, for each constant that it was slow to look at
        earlier = known.get(said)
        if earlier is not None and earlier in self.inner:
            return
        add(self, guard, **named)
        known[said] = guard

    return added


def _meaning(guard: Any) -> Hashable:
    """What a guard compares with what: its source, and what makes the check, with its arguments."""
    makes = guard.create_fn
    said = guard.originating_source, makes
    if type(makes) is partial:
        named = tuple((name, _argument(value)) for name, value in sorted(makes.keywords.items()))
        said = guard.originating_source, (makes.func, tuple(map(_argument, makes.args)), named)
    try:
        hash(said)
    except TypeError:  # a source holds the key of a container, which may be anything
        return id(guard)
    return said


def _argument(value: Any) -> Hashable:
    from torch._guards import Source

    # 1 and True are equal and are not the same argument
    return (type(value), value) if type(value) in _COMPARED or isinstance(value, Source) else id(value)


class Markings:
    """Leaves out guards on marks of tensors whose sizes Dynamo takes as fixed, whatever is marked.

    Since torch 2.13, each tensor has a guard that looks for five attributes which `mark_dynamic` and its like
    set. For a parameter or buffer of a module Dynamo does not read them: with a mark that is set later, it
    would compile the same graph again. In a network these guards are a sixth to a quarter of all.
    """

    def __init__(self) -> None:
        self._fixed = False

    def matched(self, match: Callable[..., None]) -> Callable[..., None]:
        """`GuardBuilder.TENSOR_MATCH`, noting meanwhile whether the tensor's sizes are fixed."""

        @wraps(match)
        def matched(builder: Any, guard: Any, value: Any = None) -> None:
            with self._of(builder, guard, value):
                match(builder, guard, value)

        return matched

    def marked(self, add: Callable[..., None]) -> Callable[..., None]:
        """`GuardManager.add_dimension_marking_guard`, without effect where a tensor's sizes are fixed and
        nothing is marked.

        Args:
            add: torch's own method, of a node, what is marked, names of marks that are not there, and more.
        """

        @wraps(add)
        def marked(node: Any, present: Any, absent: Any, *others: Any) -> None:
            if present or not self._fixed:
                add(node, present, absent, *others)

        return marked

    @contextmanager
    def _of(self, builder: Any, guard: Any, value: Any) -> Iterator[None]:
        before, self._fixed = self._fixed, _has_fixed_sizes(builder, guard, value)
        try:
            yield
        finally:
            self._fixed = before


def _has_fixed_sizes(builder: Any, guard: Any, value: Any) -> bool:
    """Whether Dynamo gives a tensor fixed sizes without looking at what is marked (`_automatic_dynamic`)."""
    from torch._dynamo import config, utils
    from torch._dynamo.guards import TensorWeakRef
    from torch._dynamo.variables.builder import is_dynamic_source
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    tensor = value() if isinstance(value, TensorWeakRef) else value
    if tensor is None:
        tensor = builder.get(guard)
    source = guard.originating_source
    if not isinstance(tensor, torch.Tensor) or is_traceable_wrapper_subclass(tensor):
        return False
    if getattr(config, "_shapes_spec", None) is not None or is_dynamic_source(guard.name):
        return False
    return bool(utils.tensor_always_has_static_shape(tensor, is_tensor=True, tensor_source=source)[0])
