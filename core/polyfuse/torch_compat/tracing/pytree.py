"""Nested arguments and results: taken apart into leaves, put together again, and their shape as text."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch.utils import _pytree


def flatten(value: Any) -> tuple[list[Any], Any]:
    """The leaves of a nested value, and how it is nested."""
    return _pytree.tree_flatten(value)


def unflatten(leaves: list[Any], spec: Any) -> Any:
    """The nested value again."""
    return _pytree.tree_unflatten(leaves, spec)


def map_tensors(function: Callable[[torch.Tensor], Any], value: Any) -> Any:
    """A structure with a function applied to each tensor in it."""
    return _pytree.tree_map_only(torch.Tensor, function, value)


def spec_text(spec: Any) -> str:
    """A nesting as text; raises where a container in it has no name under which it can be found again."""
    _name_results_of_torch()
    return _pytree.treespec_dumps(spec)


def spec_of_text(text: str) -> Any:
    """The nesting that a text describes; the containers in it must be registered by now."""
    _name_results_of_torch()
    return _pytree.treespec_loads(text)


@cache
def _name_results_of_torch() -> None:
    """Give the named tuples that operators such as `topk` return a name in files, which torch leaves out."""
    known = _pytree.SUPPORTED_SERIALIZED_TYPES
    for kind in torch.return_types.all_return_types:
        name = f"torch.return_types.{kind.__name__}"
        if kind in known and name not in _pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE:
            known[kind] = known[kind]._replace(serialized_type_name=name)
            _pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE[name] = kind
