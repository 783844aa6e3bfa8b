"""What the processes of a distributed program compare: the collectives of a graph, and what it was compiled
with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import torch

from polyfuse.base.code import version
from polyfuse.base.settings import Settings, option_infos
from polyfuse.ir.nodes import Collective, Opaque, View
from polyfuse.runtime.ranks.agreement import Agreement
from polyfuse.runtime.ranks.collectives import CollectiveRow, row_of
from polyfuse.schedule import Call, Schedule
from polyfuse.symbolic import product
from polyfuse.torch_compat import ops
from polyfuse.torch_compat.groups import this_rank
from polyfuse.torch_compat.tracing.fx import source_text

if TYPE_CHECKING:
    from polyfuse.compiler.layers import Layers
    from polyfuse.compiler.session import CompileSession
    from polyfuse.frontend.graph import AtenGraph
    from polyfuse.ir.graph import Graph

_PAIRWISE = frozenset({"isend", "irecv", "batch_p2p_ops"})
"""They concern two processes, which do different things."""

_WATCHING = frozenset({"profile", "debug_sync", "nan_asserts"})
"""Options that may be set on one rank, to watch that one."""

_NAMESPACES = ("_c10d_functional.", "_dtensor.shard_dim_alltoall", "polyfuse_symmetric.")


def agreement_of(session: CompileSession, partial: bool) -> Agreement | None:
    """The check with other processes before graphs of a session run for the first time; None: nothing.

    Args:
        partial: whether the function goes on behind the graph.
    """
    settings = session.settings
    if not settings.agreement_seconds or this_rank() < 0:
        return None
    backends = [s.name for s in session.plugins.states() if s.usable and session.plugins.generates(s.name)]
    facts = {
        "versions": f"Polyfuse {version()} with torch {torch.__version__}",
        "options": _options(settings),
        "backends": ", ".join(backends),
    }
    return Agreement(facts, settings.agreement_seconds, partial)


def scheduled_rows(layers: Layers) -> tuple[CollectiveRow, ...]:
    """The collectives of a compiled graph, in the order in which they start."""
    if not any(_collectives(layers.few)):
        return ()
    schedule = layers.whole
    return tuple(
        _scheduled_row(node, schedule.graph)
        for node in _collectives(schedule)
        if node.op.split(".")[1] not in _PAIRWISE
    )


def _collectives(schedule: Schedule) -> Iterator[Collective]:
    for step in schedule.steps:
        if isinstance(step, Call) and isinstance(step.node, Collective):
            yield step.node


def traced_rows(aten: AtenGraph) -> tuple[CollectiveRow, ...]:
    """The collectives of a traced graph, in the order in which eager mode starts them."""
    found: list[CollectiveRow] = []
    for node in aten.module.graph.nodes:
        name = ops.op_name(node.target) if node.op == "call_function" else ""
        short = name.split(".")[1] if name.startswith(_NAMESPACES) else ""
        if not short or short == "wait_tensor" or short in _PAIRWISE:
            continue
        given: tuple[Any, ...] = (*node.args, *node.kwargs.values())
        sent, rest = given[0], given[1:]
        values = [n.meta["val"] for n in (sent if isinstance(sent, (tuple, list)) else (sent,))]
        dtypes = [str(v.dtype).removeprefix("torch.") for v in values]
        sizes = [n for v in values for n in v.shape]
        static = all(isinstance(n, int) for n in sizes)
        numel = sum(v.numel() for v in values) if static else None
        group = getattr(rest[-1], "group_name", rest[-1])
        dtype = ", ".join(dict.fromkeys(dtypes))
        found.append(row_of(name, str(group), rest, dtype, numel, source_text(node)))
    return tuple(found)


def agreed(
    run: Callable[[list[Any]], Any], aten: AtenGraph, agreement: Agreement | None
) -> Callable[[list[Any]], Any]:
    """A graph that runs in eager mode, whose first call is checked with other processes."""
    rows = traced_rows(aten) if agreement is not None else ()
    if agreement is None or not rows:
        return run
    asked = False

    def ask(args: list[Any]) -> Any:
        nonlocal asked
        if asked:
            return run(args)
        asked = True
        return agreement.around(rows, aten.name, lambda: run(args))

    return ask


def _scheduled_row(node: Collective, graph: Graph) -> CollectiveRow:
    sent, *rest = node.args
    views = list(_views(sent))
    types = [graph.buffers[v.buffer].dtype if v.dtype is None else v.dtype for v in views]
    dtypes = dict.fromkeys(str(t.torch).removeprefix("torch.") for t in types if t is not None)
    sizes = [product(v.size) for v in views]
    static = [int(n) for n in sizes if isinstance(n, int)]
    numel = sum(static) if len(static) == len(sizes) else None
    group = node.group
    if isinstance(rest[-1], Opaque):
        group = str(getattr(graph.objects.get(group), "group_name", group))
    source = next((origin.source for origin in node.origins if origin.source), "")
    return row_of(node.op, group, rest, ", ".join(dtypes), numel, source)


def _views(value: Any) -> Iterator[View]:
    if isinstance(value, View):
        yield value
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for item in value:
            yield from _views(item)


def _options(settings: Settings) -> str:
    """The options that change what is compiled and are not as usual."""
    infos: Mapping[str, Any] = option_infos()
    given = [
        f"{item.name}={getattr(settings, item.name)!r}"
        for item in fields(settings)
        if infos[item.name].affects_code
        and item.name not in _WATCHING
        and getattr(settings, item.name) != infos[item.name].default
    ]
    return ", ".join(given) or "those by default"
