"""The frame that Dynamo traces now: which graphs it becomes, and where these are stored."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

from torch.fx import GraphModule

from polyfuse.frontend.addresses import TORCH_NAMESPACES
from polyfuse.torch_compat.ops import OpOverload, OpOverloadPacket
from polyfuse.torch_compat.tracing.dynamo import is_bucket


class Pending:
    """What becomes of one frame.

    Args:
        ready: called once with the keys of its graphs and the names of the entries there, in the order in
            which they were captured, when all are known and the frame is to be stored; perhaps in another
            thread, where a backward is compiled. It has several graphs where DDPOptimizer cut one into
            buckets, and may have none.
        lost: called with the reason where the process ends and that never happened.
    """

    def __init__(
        self, ready: Callable[[Sequence[tuple[str, str]]], None], lost: Callable[[str], None]
    ) -> None:
        self._ready, self._lost = ready, lost
        self._graphs: list[object] = []
        self._keys: list[str] = []
        self._entries: dict[int, str] = {}
        self._storing = False
        self.refused = ""

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """Dynamo traces the frame inside."""
        token = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(token)
        if len(self._keys) != len(self._graphs):
            self.refused = self.refused or "its graph is compiled in regions"
        self._graphs = []

    def keep(self) -> None:
        """Store the frame as soon as its graphs are."""
        self._storing = True
        self._store_if_complete()
        if self._storing:
            atexit.register(self._give_up)

    def _give_up(self) -> None:
        if self._storing:
            self._lost(self.refused or "its graph was not stored: no backward of it has run")

    def note_graph(self, gm: object) -> None:
        """Record a graph that Dynamo captured."""
        self._graphs.append(gm)
        if len(self._graphs) > 1 and not is_bucket():
            self.refused = self.refused or "it has several graphs"

    def note_key(self, gm: object, key: str) -> Callable[[str], None] | None:
        """Record a graph that is looked up; returns what is to be called with its entry."""
        self._keys.append(key)
        if not self._graphs or gm is not self._graphs[-1]:
            self.refused = "its graph is compiled in regions"
        elif isinstance(gm, GraphModule):
            self.refused = self.refused or _refused(gm)
        return partial(self._note_entry, len(self._keys) - 1)

    def _note_entry(self, number: int, name: str) -> None:
        self._entries[number] = name
        self._store_if_complete()

    def _store_if_complete(self) -> None:
        if self._storing and len(self._entries) == len(self._keys) and not self.refused:
            self._storing = False
            atexit.unregister(self._give_up)
            self._ready([(key, self._entries[number]) for number, key in enumerate(self._keys)])


_CURRENT: ContextVar[Pending | None] = ContextVar("polyfuse_pending_frame", default=None)


def note_graph(gm: object) -> None:
    """Record a graph that Dynamo captured, if a frame is being traced that may be stored."""
    current = _CURRENT.get()
    if current is not None:
        current.note_graph(gm)


def note_key(gm: object, key: str) -> Callable[[str], None] | None:
    """Record the key of a graph; return what is to be called with the entry under it, if anything."""
    current = _CURRENT.get()
    return None if current is None else current.note_key(gm, key)


def note_bypass(reason: str) -> None:
    """Record that the graph of the frame that is being traced is not stored."""
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
