"""Dynamo's table of backends, where two threads may look up one of ours for the first time together.

`lookup_backend` asks whether a backend is registered, loads it, and registers it, without a lock. The second
of two threads gets `duplicate name`, or a KeyError between the two tables that the first one writes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def allow_registering_twice(name: str, function: Callable[..., Any]) -> None:
    """Make registering `function` under `name` again no error. To be called while the backend is loaded, that
    is before torch registers it.
    """
    from torch._dynamo.backends import registry

    table = registry._COMPILER_FNS
    if isinstance(table, _Table):
        table.ours[name] = function
    else:
        registry._COMPILER_FNS = _Table(table, {name: function})


class _Table(dict[str, Callable[..., Any]]):
    """Says of our names that they are not registered, and has their functions nevertheless."""

    def __init__(self, others: dict[str, Callable[..., Any]], ours: dict[str, Callable[..., Any]]) -> None:
        super().__init__(others)
        self.ours = ours

    def __contains__(self, name: object) -> bool:
        return name not in self.ours and super().__contains__(name)

    def __missing__(self, name: str) -> Callable[..., Any]:
        return self.ours[name]
