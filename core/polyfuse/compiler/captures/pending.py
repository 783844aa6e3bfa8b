"""The frame that Dynamo traces now: which graph it becomes, and where that is stored."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch.fx import GraphModule

from polyfuse.frontend.addresses import TORCH_NAMESPACES
from polyfuse.torch_compat.ops import OpOverload, OpOverloadPacket
from polyfuse.torch_compat.tracing.dynamo import is_bucket

__all__ = ["Pending", "note_bypass", "note_graph", "note_key"]


class Pending:
    """What becomes of one frame.

    Args:
        ready: called once with the key of its graph and the name of the entry there, when both are known and
            the frame was kept; perhaps in another thread, where the backward is compiled. Both are empty for
            a frame without a graph.
        lost: called with the reason where the process ends and that never happened.
    """

    def __init__(self, ready: Callable[[str, str], None], lost: Callable[[str], None]) -> None:
        self._ready, self._lost = ready, lost
        self._graph: object = None
        self._graphs = 0
        self._keys: list[str] = []
        self._entry = ""
        self._kept = False
        self.refused = ""

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """Dynamo traces the frame inside."""
        token = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(token)
        if self._graphs > 1 or len(self._keys) != self._graphs:
            self.refused = self.refused or "it has several graphs, or one that is compiled in regions"

    def keep(self) -> None:
        """Store the frame as soon as its graph is."""
        self._kept = True
        self._settle()
        if self._kept:
            atexit.register(self._give_up)

    def _give_up(self) -> None:
        if self._kept:
            self._lost(self.refused or "its graph was not stored: no backward of it has run")

    def note_graph(self, gm: object) -> None:
        """Take note of a graph that Dynamo captured."""
        self._graphs, self._graph = self._graphs + 1, gm

    def note_key(self, gm: object, key: str) -> Callable[[str], None] | None:
        """Take note of a graph that is looked up, and be told of its entry."""
        self._keys.append(key)
        if gm is not self._graph or is_bucket():
            self.refused = "its graph is compiled in regions"
        elif isinstance(gm, GraphModule):
            self.refused = self.refused or _refused(gm)
        return self._note_entry

    def _note_entry(self, name: str) -> None:
        self._entry = name
        self._settle()

    def _settle(self) -> None:
        if self._kept and (self._entry or not self._graphs) and not self.refused:
            self._kept = False
            atexit.unregister(self._give_up)
            self._ready(self._keys[0] if self._keys else "", self._entry)


_CURRENT: ContextVar[Pending | None] = ContextVar("polyfuse_pending_frame", default=None)


def note_graph(gm: object) -> None:
    """Take note of a graph that Dynamo captured, if a frame is being traced that may be stored."""
    current = _CURRENT.get()
    if current is not None:
        current.note_graph(gm)


def note_key(gm: object, key: str) -> Callable[[str], None] | None:
    """Take note of the key of a graph; return what is to be told of the entry under it, if anything."""
    current = _CURRENT.get()
    return None if current is None else current.note_key(gm, key)


def note_bypass(reason: str) -> None:
    """Take note that the graph of the frame that is being traced is not stored."""
    current = _CURRENT.get()
    if current is not None:
        current.refused = current.refused or f"its graph bypasses the graph cache: {reason}"


def _refused(gm: GraphModule) -> str:
    """Why a graph's entry cannot be used where the graph was not captured."""
    if next(gm.parameters(), None) is not None or next(gm.buffers(), None) is not None:
        return "its graph holds tensors"
    for part in gm.modules():
        if part.meta.get("_checkpoint_context_fn") if isinstance(part, GraphModule) else False:
            return "a function says what its backward recomputes"
        for node in part.graph.nodes if isinstance(part, GraphModule) else ():
            if not _is_of_torch(node.target):
                return f"it calls {node.target}, which is no operator of torch"
    return ""


def _is_of_torch(target: Any) -> bool:
    """Whether an operator is traced as torch's version says; a function is, for its text is in the key."""
    if isinstance(target, OpOverload):
        return target.namespace in TORCH_NAMESPACES
    return not isinstance(target, OpOverloadPacket) or str(target).partition(".")[0] in TORCH_NAMESPACES
