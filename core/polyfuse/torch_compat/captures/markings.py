"""Guards on marks of a parameter's dimensions as dynamic or static, which are without effect there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch


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
