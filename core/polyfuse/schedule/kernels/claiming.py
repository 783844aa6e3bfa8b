"""Which backend generates a node's code, and what users are told where none that compiles does."""

from __future__ import annotations

from collections.abc import Iterable

from polyfuse.base.errors import UnsupportedError
from polyfuse.base.log import warn_once
from polyfuse.base.settings import Settings
from polyfuse.base.text import join_words, short_source
from polyfuse.ir.expr import walk
from polyfuse.ir.graph import Graph
from polyfuse.ir.nodes import LoopNode, Node
from polyfuse.plugin import Backend, No
from polyfuse.schedule.result import NO_BACKEND, Decision

__all__ = ["claim", "is_unasked", "node_text", "note_interpreted"]


def claim(
    graph: Graph, node: LoopNode, backends: Iterable[Backend], decisions: list[Decision], settings: Settings
) -> Backend | str:
    """The first backend that claims a node, or the reasons of all that refuse it.

    Raises:
        UnsupportedError: with `strict`, only a backend that interprets kernels claims it, unasked.
    """
    reasons: list[str] = []
    for backend in backends:
        try:
            answer = backend.claims(node)
        except Exception as error:
            if settings.strict:
                raise
            answer = No(f"it raised {type(error).__name__}: {error}")
            warn_once(
                "schedule",
                f"backend {backend.name!r} raised {type(error).__name__} over {node.name} ({error}); others "
                "are asked instead; report it to the backend's author",
                key=f"claims {backend.name} {type(error).__name__}",
            )
        if answer:
            # where nobody else was there to refuse, the session has said why
            if reasons and is_unasked(backend, settings):
                note_interpreted(node_text(graph, node), "; ".join(reasons), settings)
            return backend
        reason = getattr(answer, "reason", "no reason given")
        reasons.append(f"{backend.name}: {reason}")
        decisions.append(Decision("backend", backend.name, node.name, reason))
    return "; ".join(reasons) or NO_BACKEND


def is_unasked(backend: Backend, settings: Settings) -> bool:
    """Whether a backend interprets kernels, which is slow, and the user did not name it."""
    return backend.last_resort and backend.name not in settings.backends


def note_interpreted(what: str, reason: str, settings: Settings) -> None:
    """Warn, once for the same cause, that a kernel is interpreted; with `strict`, raise."""
    cause = f"{what} would be interpreted, which is slow: no backend generates code for it ({reason})"
    if settings.strict:
        raise UnsupportedError(cause, "name the interpreter in `backends` to accept that, or unset strict")
    # the same operator on other lines has the same cause
    warn_once(
        "schedule",
        f"{what} is interpreted, which is slow: no backend generates code for it ({reason}); name the "
        "operator in `force_fallback` to run it in eager mode",
        key=f"interpreted {what.partition(' (')[0]} {reason}",
    )


def node_text(graph: Graph, node: Node) -> str:
    """A node's operators, types and line for messages, as `aten.add.Tensor on float32 (model.py:3 in f)`."""
    ops = list(dict.fromkeys(origin.op for origin in node.origins)) or [node.name]
    shown = join_words(ops[-3:]) if len(ops) <= 3 else f"{join_words(ops[-3:])} and others"
    found: dict[str, None] = {}
    if isinstance(node, LoopNode):
        loaded = (e.dtype for e in walk(*node.expressions()) if e.op == "load")
        found.update((str(dtype.torch).removeprefix("torch."), None) for dtype in loaded)
    found.update((graph.buffers[name].torch_dtype, None) for name in node.writes())
    source = next((o.source for o in reversed(node.origins) if o.source), "")
    return f"{shown} on {join_words(list(found))}" + (f" ({short_source(source)})" if source else "")
