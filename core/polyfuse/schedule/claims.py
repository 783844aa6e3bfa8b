"""Which backend generates each node's code, and what users read where none that compiles does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from polyfuse.base.errors import UnsupportedError
from polyfuse.base.log import warn_once
from polyfuse.base.text import join_words, short_source
from polyfuse.ir.expr import walk
from polyfuse.ir.graph import Graph, reads
from polyfuse.ir.nodes import LoopNode, Node
from polyfuse.runtime.devices.registry import device_of
from polyfuse.schedule.deps import live_graph
from polyfuse.schedule.result import Decision

if TYPE_CHECKING:
    from polyfuse.base.settings import Settings
    from polyfuse.plugin import Backend
    from polyfuse.runtime.devices.device import Limits


@dataclass(frozen=True)
class Refusal:
    """A node that no backend claims: why, and what users know it by; `asked` is off where nobody is installed
    for its device.
    """

    node: Node
    reason: str
    text: str
    asked: bool


@dataclass(frozen=True)
class Claims:
    """Who generates the loops of a graph.

    Attributes:
        graph: without the nodes that have no effect.
        backends: by the names of nodes.
        refused: the loops that no backend claims; a graph with some cannot be scheduled.
        decisions: removed nodes, and each refusal of each backend.
    """

    graph: Graph
    backends: Mapping[str, Backend]
    refused: tuple[Refusal, ...]
    decisions: tuple[Decision, ...]


class UnclaimedError(UnsupportedError):
    """No backend generates code for some nodes."""

    def __init__(self, refused: tuple[Refusal, ...]) -> None:
        first, *others = refused
        more = f" and {len(others)} other {'node' if len(others) == 1 else 'nodes'}" if others else ""
        super().__init__(
            f"no backend generates code for {first.text}{more} ({first.reason})",
            "enable another backend, the interpreter for instance (`polyfuse backends` lists them)",
        )


def claim_nodes(graph: Graph, backends: Callable[[str], Iterable[Backend]], settings: Settings) -> Claims:
    """Ask for every loop of `graph` that has an effect which backend claims it.

    Args:
        backends: backends for a device type, in the order in which they are asked.

    Raises:
        UnsupportedError: with `strict`, only a backend that interprets kernels claims a node, unasked.
    """
    decisions: list[Decision] = []
    graph = live_graph(graph, decisions)
    claimed: dict[str, Backend] = {}
    refused: list[Refusal] = []
    for node in graph.nodes:
        if isinstance(node, LoopNode):
            device_type = graph.buffers[node.writes()[0]].device.partition(":")[0]
            beyond = _beyond(graph, node, device_of(device_type).limits())
            if beyond:
                backend, reasons = None, [f"the device {device_type} {beyond}"]
            else:
                backend, reasons = _claim(graph, node, backends(device_type), decisions, settings)
            if backend is not None:
                claimed[node.name] = backend
            else:
                why = "; ".join(reasons) or _nobody(device_type, settings)
                refused.append(Refusal(node, why, _node_text(graph, node), bool(reasons)))
    return Claims(graph, claimed, tuple(refused), tuple(decisions))


def _nobody(device_type: str, settings: Settings) -> str:
    """Why no backend was asked."""
    if settings.backends:
        return f"the option `backends` names none that serves {device_type}"
    if settings.disable:
        return f"none is left for {device_type} that the option `disable` (POLYFUSE_DISABLE) does not name"
    return f"none is installed for {device_type}"


def _beyond(graph: Graph, node: LoopNode, limits: Limits) -> str:
    """Which limit of a device a node exceeds; empty if it is within all."""
    touched = {buffer.name: buffer for buffer in (graph.buffers[n] for n in (*reads(node), *node.writes()))}
    types = {buffer.dtype.torch for buffer in touched.values() if buffer.dtype is not None}
    types |= {expr.dtype.torch for expr in walk(*node.expressions())}
    for dtype in sorted(types & limits.missing, key=str):
        return f"has no {str(dtype).removeprefix('torch.')}"
    for buffer in touched.values() if limits.most_elements else ():
        if isinstance(buffer.numel, int) and buffer.numel > limits.most_elements:
            return f"reaches {limits.most_elements} elements of a buffer, and one has {buffer.numel}"
    return ""


def _claim(
    graph: Graph, node: LoopNode, backends: Iterable[Backend], decisions: list[Decision], settings: Settings
) -> tuple[Backend | None, list[str]]:
    """The first backend that claims a node, and the reasons of those that refuse it."""
    reasons: list[str] = []
    for backend in backends:
        answer = backend.claims(node)
        if answer:
            # where no other backend refused, the session has warned already
            if reasons and is_unasked(backend, settings):
                note_interpreted(_node_text(graph, node), "; ".join(reasons), settings)
            return backend, reasons
        reason = getattr(answer, "reason", "no reason given")
        reasons.append(f"{backend.name}: {reason}")
        decisions.append(Decision("backend", backend.name, node.name, reason))
    return None, reasons


def is_unasked(backend: Backend, settings: Settings) -> bool:
    """Whether a backend interprets kernels, which is slow, and the user did not name it."""
    return backend.last_resort and backend.name not in settings.backends


def note_interpreted(what: str, reason: str, settings: Settings) -> None:
    """Warn once for each cause that a kernel is interpreted; with `strict`, raise `UnsupportedError`."""
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


def _node_text(graph: Graph, node: Node) -> str:
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
