"""Who could compute the matrix products of a graph, besides the library that torch calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from polyfuse.base.log import get_logger
from polyfuse.ir.graph import Graph
from polyfuse.ir.nodes import TemplateCall
from polyfuse.plugin import Backend
from polyfuse.schedule import Decision
from polyfuse.select.products import LoopForm, Unavailable, loop_form

__all__ = ["Offer", "offers"]

_log = get_logger("select")

Backends = Callable[[str], Iterable[Backend]]


@dataclass(frozen=True)
class Offer:
    """A call that backends can generate.

    Attributes:
        call: the library call.
        form: what it computes, as loops.
        backends: those that claim the loops, in the order in which they were asked.
    """

    call: TemplateCall
    form: LoopForm
    backends: tuple[Backend, ...]


def offers(graph: Graph, backends: Backends, decisions: list[Decision], *, racing: bool) -> list[Offer]:
    """The calls of `graph` that some backend can generate; every refusal becomes a decision.

    Args:
        racing: ask only backends that may be faster than a library (`Backend.races_products`).
    """
    found: list[Offer] = []
    for node in graph.nodes:
        if not isinstance(node, TemplateCall):
            continue
        try:
            form = loop_form(node, graph.buffers)
        except Unavailable as error:
            decisions.append(Decision("choice", node.name, "", str(error)))
            continue
        device_type = form.accumulator.device.partition(":")[0]
        willing: list[Backend] = []
        for backend in backends(device_type):
            if racing and not backend.races_products:
                continue
            reason = _refusal(backend, form)
            if reason:
                decisions.append(Decision("choice", node.name, backend.name, reason))
            else:
                willing.append(backend)
        if willing:
            found.append(Offer(node, form, tuple(willing)))
    return found


def _refusal(backend: Backend, form: LoopForm) -> str:
    """Why a backend does not generate a product; empty if it does."""
    for node in form.nodes:
        try:
            answer = backend.claims(node)
        except Exception as error:
            _log.info("backend %r raised %r over %s", backend.name, error, node.name)
            return f"it raised {type(error).__name__}: {error}"
        if not answer:
            return getattr(answer, "reason", "no reason given")
    return ""
