"""What plugins offer in place of a call, and a graph in which calls are replaced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from polyfuse.base.log import get_logger
from polyfuse.ir.expr import Access, loads
from polyfuse.ir.graph import Graph, reads
from polyfuse.ir.nodes import Buffer, ExternCall, LoopNode, Node, Pointwise, TemplateCall
from polyfuse.plugin import (
    Backend,
    CallSite,
    Choice,
    Config,
    No,
    Offered,
    PluginManager,
    Source,
)
from polyfuse.plugin.hooks.faults import is_fault
from polyfuse.runtime.frozen import ONCE
from polyfuse.schedule import Decision
from polyfuse.symbolic import IndexLike, axis_size

_log = get_logger("autotune")


@dataclass(frozen=True)
class Replacement:
    """What is done instead of a call.

    Attributes:
        nodes: in order.
        buffers: new ones.
        reader: the name of a node whose work is done too; empty if none.
        removed: names of nodes before the call whose work is done too.
        objects: new host values, by key.
        backend: who generates the loops among the nodes.
        reductions: names of reductions over its results that are begun in its epilogue.
    """

    nodes: tuple[Node, ...]
    buffers: tuple[Buffer, ...]
    reader: str = ""
    removed: tuple[str, ...] = ()
    objects: Mapping[str, Any] = field(default_factory=dict, compare=False)
    backend: Backend | None = field(default=None, compare=False)
    reductions: tuple[str, ...] = ()


def replace_calls(graph: Graph, replacements: Mapping[str, Replacement]) -> Graph:
    """`graph` with each call that is named replaced."""
    if not replacements:
        return graph
    # with its reader, a call is done where that stands: what else it reads may not be there before
    by_node = {item.reader or name: item for name, item in replacements.items()}
    came = {node.name: node.origins for node in graph.nodes}
    origins = {item.reader or name: came.get(name, ()) for name, item in replacements.items()}
    gone = {name for item in replacements.values() for name in item.removed}
    nodes: list[Node] = []
    buffers, objects = dict(graph.buffers), dict(graph.objects)
    for node in graph.nodes:
        item = by_node.get(node.name)
        if item is not None:
            nodes.extend(n if n.origins else replace(n, origins=origins[node.name]) for n in item.nodes)
            buffers |= {buffer.name: buffer for buffer in item.buffers}
            objects |= item.objects
        elif node.name not in replacements and node.name not in gone:
            nodes.append(node)
    return replace(graph, buffers=buffers, nodes=tuple(nodes), objects=objects)


OBJECT = "object."
"""Before the key of what a call calls, in the object table of a graph."""


@dataclass(frozen=True)
class Alternative:
    """What a plugin's choice offers for one call.

    Attributes:
        name: of the plugin and its choice.
        replacement: what is done instead; with `sources`, a call of the object `key`.
        sources: what the backend builds, by configuration.
        operands: what the built kernel is launched with.
        backend: who builds and loads it.
        key: of the object.
    """

    name: str
    replacement: Replacement
    sources: Mapping[Config | None, Source] = field(default_factory=dict)
    operands: tuple[str | IndexLike, ...] = ()
    backend: Backend | None = None
    key: str = ""


def alternatives(
    graph: Graph,
    call: TemplateCall,
    choices: Sequence[Offered[Choice]],
    plugins: PluginManager,
    most: int,
    decisions: list[Decision],
    known: bool = False,
    freezing: bool = False,
    static: frozenset[str] = frozenset(),
) -> list[Alternative]:
    """What choices offer for a call; every refusal becomes a decision.

    Args:
        known: ask only those that know that they are faster here, also with parameters that are packed once;
            which of these, `packing` decides.
        freezing: whether constants are folded from parameters.
        static: `fixed_inputs` of the graph.
    """
    site: CallSite | None = None
    found: list[Alternative] = []
    for offered in choices:
        choice, name = offered.item, f"{offered.plugin}:{offered.item.name}"
        if call.op not in choice.ops or (known and choice.preferred is None):
            continue
        site = site if site is not None else site_of(graph, call, freezing, static, packing=known)
        try:
            answer = choice.applies(site)
            if isinstance(answer, No):
                decisions.append(Decision("declined", call.name, name, answer.reason))
            elif known and choice.preferred is not None and not choice.preferred(site):
                decisions.append(Decision("declined", call.name, name, "not known to be faster here"))
            elif choice.instead is not None:
                found.append(_instead(name, choice, site))
            else:
                backend = plugins.backend(choice.backend or offered.plugin)
                found.append(_made(name, choice, site, backend, most))
        except BaseException as error:
            if not is_fault(error):
                raise
            decisions.append(
                Decision("declined", call.name, name, f"it raised {type(error).__name__}: {error}")
            )
            _log.info("choice %s raised %r over %s", name, error, call.name)
    return found


def fixed_inputs(graph: Graph) -> frozenset[str]:
    """The parameters that a graph reads and does not write to."""
    written = {name for node in graph.nodes for name in node.writes()}
    return frozenset(item.name for item in graph.inputs if item.static) - written


def site_of(
    graph: Graph, call: TemplateCall, freezing: bool, static: frozenset[str], packing: bool = False
) -> CallSite:
    """A call with what is around it."""
    inference, hints = graph.kind == "inference", graph.symbol_hints
    return CallSite(call, graph.buffers, _reader(graph, call), static, inference, hints, freezing, packing)


def _instead(name: str, choice: Choice, site: CallSite) -> Alternative:
    assert choice.instead is not None
    instead = choice.instead(site)
    return Alternative(name, _substitution(site, instead.nodes, instead.buffers, instead.takes_reader))


def _made(name: str, choice: Choice, site: CallSite, backend: Backend, most: int) -> Alternative:
    assert choice.emit is not None
    configs: Sequence[Config | None] = list(choice.configs(site)) if choice.configs is not None else [None]
    made = {config: choice.emit(site, config) for config in configs[:most]}
    first = next(iter(made.values()))
    if any((m.operands, m.takes_reader) != (first.operands, first.takes_reader) for m in made.values()):
        raise ValueError("its configurations take different operands")
    key = f"{site.call.name}_{choice.name}"
    args = tuple(site.buffers[o].view() if isinstance(o, str) else o for o in first.operands)
    output = site.reader.output if first.takes_reader and site.reader is not None else site.output.name
    node = ExternCall(
        f"{site.call.name}_call", f"{OBJECT}{key}", args, (), (output,), "into", origins=site.call.origins
    )
    replacement = _substitution(site, (node,), (), first.takes_reader)
    sources = {config: item.source for config, item in made.items()}
    return Alternative(name, replacement, sources, first.operands, backend, key)


def _substitution(
    site: CallSite, nodes: tuple[ExternCall, ...], buffers: tuple[Buffer, ...], takes_reader: bool
) -> Replacement:
    reader = site.reader if takes_reader else None
    if takes_reader and reader is None:
        raise ValueError("it takes a reader where there is none")
    wanted = reader.output if reader is not None else site.output.name
    if not nodes or wanted not in nodes[-1].writes():
        raise ValueError(f"its last call does not write {wanted}")
    for node in nodes:
        if node.op.startswith(ONCE) and not site.can_precompute(node.args[0] if node.args else None):
            raise ValueError(f"{node.name} is done once, but does not follow from a parameter")
    return Replacement(nodes, buffers, reader.name if reader is not None else "")


def _reader(graph: Graph, call: TemplateCall) -> Pointwise | None:
    """The loop that alone reads the result of a call, and whose result lies as that does."""
    name = call.outputs[0]
    if not name or graph.is_output(name):
        return None
    uses = graph.uses
    at = uses.position[call.name]
    readers = [i for i in uses.touching(name) if i != at]
    if len(readers) != 1:
        return None
    position, node = readers[0], graph.nodes[readers[0]]
    if not isinstance(node, Pointwise) or uses.written_between(reads(call), at, position):
        return None
    held, written = graph.buffers[name], graph.buffers[node.output]
    extents = [buffer.storage for buffer in (held, written)]
    if node.output == name or extents[0] != extents[1] or extents[0] != held.numel:
        return None
    found = {e.access for e in loads(node.value) if e.buffer == name}
    return node if found == {Access(name, node.index)} and _covers(node, held) else None


def _covers(node: LoopNode, buffer: Buffer) -> bool:
    """Whether a loop has a point for each element of a dense buffer: as many as there are."""
    points: IndexLike = 1
    for axis in node.axes:
        points = points * axis_size(axis)
    return points == buffer.numel
