"""What the decisions about a graph's units and launches depend on besides these."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from polyfuse.base.settings import Settings
from polyfuse.ir.graph import Graph
from polyfuse.plugin import Backend, TargetInfo
from polyfuse.symbolic import IndexLike


@dataclass(frozen=True)
class ScheduleContext:
    """A graph, the options, and who generates its loops.

    Attributes:
        backends: by name.
        target_info: of a backend, by its name, on a device.
        roots: the buffer whose storage each buffer has.
        hint: a likely value of a size.
    """

    graph: Graph
    settings: Settings
    backends: Mapping[str, Backend]
    target_info: Callable[[str, str], TargetInfo]
    roots: Mapping[str, str]
    hint: Callable[[IndexLike], int]
