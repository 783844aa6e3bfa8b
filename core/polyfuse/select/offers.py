"""Who could compute the matrix products of a graph, and what else plugins have choices for, besides the
library that torch calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from polyfuse.base.log import get_logger
from polyfuse.ir.graph import Graph
from polyfuse.ir.nodes import Buffer, ExternCall, TemplateCall
from polyfuse.plugin import Backend
from polyfuse.schedule import Decision
from polyfuse.schedule.reductions.gemm_reductions import Readers, epilogue_reductions, readers_of
from polyfuse.select.expand import Taken
from polyfuse.select.panels import with_panels
from polyfuse.select.products import LoopForm, Unavailable, loop_form
from polyfuse.select.prologue import with_prologue
from polyfuse.select.sites import Alternative

__all__ = ["FOLDS", "PANELS", "PROLOGUE", "Generated", "Offer", "offers"]

_log = get_logger("select")

PROLOGUE = "+prologue"
"""After a backend's name: its kernel computes operands too."""

PANELS = "+panels"
"""After a backend's name: its kernel reads a parameter that was laid out for it once."""

FOLDS = "+folds"
"""After a backend's name: its kernel begins reductions over its results."""

Backends = Callable[[str], Iterable[Backend]]


@dataclass(frozen=True)
class Generated:
    """A product that a backend generates.

    Attributes:
        name: the backend's; with a mark, where the kernel computes its operands too.
        backend: who it is.
        form: the loops.
        removed: names of nodes whose work they do too.
        before: calls that make what they read, once for each parameter.
        buffers: what these write.
        folds: names of reductions over its results that its kernel begins.
    """

    name: str
    backend: Backend
    form: LoopForm
    removed: tuple[str, ...] = ()
    before: tuple[ExternCall, ...] = ()
    buffers: tuple[Buffer, ...] = ()
    folds: tuple[str, ...] = ()

    @property
    def taken(self) -> Taken:
        """What takes the call's place."""
        form = self.form
        nodes, buffers = (*self.before, *form.nodes), (*self.buffers, form.accumulator)
        return Taken(nodes, buffers, removed=self.removed, backend=self.backend, folds=self.folds)


@dataclass(frozen=True)
class Offer:
    """A call that can be done in other ways.

    Attributes:
        call: the library call.
        device: where its result is.
        generated: what backends generate, in the order in which they were asked.
        alternatives: what plugins' choices offer.
    """

    call: TemplateCall
    device: str
    generated: tuple[Generated, ...]
    alternatives: tuple[Alternative, ...] = ()


def offers(
    graph: Graph,
    backends: Backends,
    decisions: list[Decision],
    choices: Callable[[TemplateCall, str], Sequence[Alternative]] | None = None,
    *,
    racing: bool,
    kept: frozenset[str] = frozenset(),
) -> list[Offer]:
    """The calls of `graph` that can be done in other ways; every refusal becomes a decision.

    Args:
        choices: what plugins offer for a call on a device type.
        kept: names of the parameters whose layout may be kept.
        racing: ask only backends that may be faster than a library (`Backend.races_products`).
    """
    found: list[Offer] = []
    readers: Readers = readers_of(graph)
    for node in graph.nodes:
        if not isinstance(node, TemplateCall):
            continue
        device = next((graph.buffers[name].device for name in node.writes()), "cpu")
        device_type = device.partition(":")[0]
        willing: tuple[Generated, ...] = ()
        try:
            form = loop_form(node, graph.buffers)
            willing = _willing(graph, node, form, backends(device_type), readers, decisions, racing, kept)
        except Unavailable as error:
            decisions.append(Decision("declined", node.name, "", str(error)))
        others = tuple(choices(node, device_type)) if choices is not None else ()
        if willing or others:
            found.append(Offer(node, device, willing, others))
    return found


def _willing(
    graph: Graph,
    call: TemplateCall,
    form: LoopForm,
    backends: Iterable[Backend],
    readers: Readers,
    decisions: list[Decision],
    racing: bool,
    kept: frozenset[str],
) -> tuple[Generated, ...]:
    """What backends generate for a product; in a race, also with what makes its operands, and with a
    parameter laid out once.
    """
    willing: list[Generated] = []
    more = with_prologue(graph, call, form) if racing else None
    for backend in backends:
        if racing and not backend.races_products:
            continue
        reason = _refusal(backend, form)
        if reason:
            decisions.append(Decision("declined", call.name, backend.name, reason))
            continue
        plain = Generated(backend.name, backend, form)
        folding = _with_folds(graph, call, plain, readers, decisions)
        willing += [plain, *folding] if racing else folding or [plain]
        if more is not None:
            name, (larger, removed) = f"{backend.name}{PROLOGUE}", more
            reason = _refusal(backend, larger)
            if reason:
                decisions.append(Decision("declined", call.name, name, reason))
            else:
                willing.append(Generated(name, backend, larger, removed))
        willing += _with_panels(graph, call, form, backend, decisions, kept) if racing and kept else ()
    return tuple(willing)


def _with_folds(
    graph: Graph, call: TemplateCall, plain: Generated, readers: Readers, decisions: list[Decision]
) -> list[Generated]:
    """A product whose kernel begins the reductions over its results, if there are any."""
    name, form = f"{plain.name}{FOLDS}", plain.form
    if type(plain.backend).fold_width is Backend.fold_width:
        return []
    try:
        results = form.finish.output
        folds = epilogue_reductions(graph, readers, form.product, results, plain.backend, decisions)
    except Exception as error:
        _log.info("backend %r raised %r over reductions of %s", plain.name, error, call.name)
        decisions.append(Decision("declined", call.name, name, f"it raised {type(error).__name__}: {error}"))
        return []
    return [replace(plain, name=name, folds=folds)] if folds else []


def _with_panels(
    graph: Graph,
    call: TemplateCall,
    form: LoopForm,
    backend: Backend,
    decisions: list[Decision],
    kept: frozenset[str],
) -> Iterator[Generated]:
    """A product whose right operand is laid out once as the backend wants it, if it wants that."""
    name = f"{backend.name}{PANELS}"
    try:
        width = backend.panel_width(form.product)
        if width:
            found = with_panels(graph, call, form, width, kept)
            yield Generated(name, backend, found.form, (), (found.lays_out,), (found.buffer,))
    except Unavailable as error:
        decisions.append(Decision("declined", call.name, name, str(error)))
    except Exception as error:
        _log.info("backend %r raised %r over panels of %s", backend.name, error, call.name)
        decisions.append(Decision("declined", call.name, name, f"it raised {type(error).__name__}: {error}"))


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
