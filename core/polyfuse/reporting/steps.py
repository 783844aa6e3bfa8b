"""The launches and calls of a graph, and the pairs of them that were not fused, as plain data, and where the
page draws each node: layers by dependency, wrapped into columns."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from polyfuse.compiler.built import BuiltGraph
from polyfuse.compiler.reports.report import GraphReport
from polyfuse.ir.graph import Graph
from polyfuse.program.memory import storage_bytes
from polyfuse.program.traffic import step_bytes
from polyfuse.reporting.links import code_links, kernel_text, source_links
from polyfuse.reporting.sources import SourceTable
from polyfuse.reporting.timing import ProgramTimer, event_names
from polyfuse.reporting.work import operations_of
from polyfuse.schedule import Call, Launch, TuningDecision

_NAME = re.compile(r"\b[A-Za-z_]\w*\b")


class KernelTable:
    """Distinct kernels of all graphs, with their texts."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self._at: dict[tuple[str, str], int] = {}

    def add(self, launch: Launch, built: BuiltGraph, sources: SourceTable) -> int:
        """The number of the kernel of a launch."""
        wanted = launch.backend, launch.kernel
        kernels = built.kernels.values()
        pending = next(k for k in kernels if (k.launch.backend, k.launch.kernel) == wanted)
        source, code = pending.emitted.source, pending.emitted.source.rendered()
        key = pending.emitted.backend.name, source.key
        if key not in self._at:
            lines = list(dict.fromkeys(o.source for n in launch.nodes for o in n.origins if o.source))
            numbers = [sources.add(line) for line in lines]
            config = pending.emitted.config
            self._at[key] = len(self.rows)
            self.rows.append(
                {
                    "name": source.name,
                    "symbol": source.symbol,
                    "backend": key[0],
                    "language": source.language,
                    "config": "" if config is None else str(config),
                    "ir": kernel_text(launch.kernel).rstrip("\n"),
                    "code": code.rstrip("\n"),
                    "code_links": code_links(launch.kernel, code),
                    "source_links": [[numbers[i] for i in row] for row in source_links(launch, lines)],
                }
            )
        return self._at[key]


def inputs_of(steps: Sequence[Launch | Call]) -> list[list[int]]:
    """For each step, the steps whose results it reads."""
    writer: dict[str, int] = {}
    found: list[list[int]] = []
    for number, step in enumerate(steps):
        before = {writer[name]: None for name in step.reads if name in writer}
        # what changes a buffer in place comes after what wrote it
        before.update({writer[name]: None for name in step.writes if name in writer})
        found.append(sorted(before))
        writer.update(dict.fromkeys(step.writes, number))
    return found


def steps_of(
    built: BuiltGraph, timer: ProgramTimer | None, kernels: KernelTable, sources: SourceTable
) -> list[dict[str, Any]]:
    """Every launch and call, in order."""
    schedule = built.schedule
    reports = iter(built.report.launches)
    before = inputs_of(schedule.steps)
    corners = node_corners(before)
    times = _times(built, timer)
    rows: list[dict[str, Any]] = []
    for number, step in enumerate(schedule.steps):
        nodes = step.nodes if isinstance(step, Launch) else (step.node,)
        origins = {o: None for node in nodes for o in node.origins}
        row: dict[str, Any] = {
            "nodes": [node.name for node in nodes],
            "ops": list(dict.fromkeys(o.op for o in origins)),
            "sources": [sources.add(s) for s in dict.fromkeys(o.source for o in origins if o.source)],
            "bytes": step_bytes(step, schedule),
            "flops": operations_of(step, schedule.graph),
            "ms": times.get(number),
            "inputs": before[number],
            "writes": list(step.writes),
            "x": corners[number][0],
            "y": corners[number][1],
        }
        if isinstance(step, Launch):
            report = next(reports)
            kernel = kernels.add(step, built, sources)
            row |= {
                "type": "kernel",
                "name": kernels.rows[kernel]["name"],
                "kernel": kernel,
                "backend": report.backend,
                "note": report.note,
                "instead": report.provider.reason,
            }
        else:
            row |= {
                "type": "fallback" if step.node.fallback else "call",
                "name": step.node.op,
                "kernel": None,
                "backend": "eager" if step.node.fallback else "library",
                "note": "",
                "instead": "",
            }
        rows.append(row)
    return rows


def _times(built: BuiltGraph, timer: ProgramTimer | None) -> dict[int, float]:
    """Milliseconds of each step that was measured."""
    known = event_names(built) if timer is not None else None
    if timer is None or known is None:
        return {}
    names, numbers = known
    found = timer.milliseconds(names)
    if found is None:
        return {}
    total: dict[int, float] = {}
    for number, taken in zip(numbers, found, strict=True):
        if taken is not None:
            total[number] = total.get(number, 0.0) + taken
    return total


def refused_pairs(
    report: GraphReport, built: BuiltGraph, steps: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The pairs of launches and calls that were not fused, each with the reason that was given last, those
    that would have saved most memory traffic first.

    Args:
        report, built: of one graph.
        steps: what `steps_of` said of it.
    """
    schedule = built.schedule
    owner = {node: number for number, step in enumerate(steps) for node in step["nodes"]}
    found: dict[tuple[int, int], dict[str, Any]] = {}
    for decision in report.decisions:
        if decision.kind != "refuse":
            continue
        ends = [owner.get(names.split("+")[0]) for names in (decision.first, decision.second)]
        first, second = ends
        if first is None or second is None or first == second:
            continue
        pair = (min(first, second), max(first, second))
        shared = _shared_bytes(schedule.steps[pair[0]], schedule.steps[pair[1]], schedule.graph)
        found[pair] = {
            "first": pair[0],
            "second": pair[1],
            "nodes": [decision.first, decision.second],
            "reason": _explained(decision.reason, steps),
            "bytes": shared,
        }
    return sorted(found.values(), key=lambda row: (-row["bytes"], row["first"], row["second"]))


def _explained(reason: str, steps: Sequence[Mapping[str, Any]]) -> str:
    """A reason in which nodes and buffers are followed by the launch or call that computes them."""
    makers: dict[str, str] = {}
    for number, step in enumerate(steps, 1):
        for name in (*step["nodes"], *step["writes"]):
            makers[name] = f"{number}. {step['name']}"
    return _NAME.sub(lambda m: f"{m[0]} ({makers[m[0]]})" if m[0] in makers else m[0], reason)


def _shared_bytes(first: Launch | Call, second: Launch | Call, graph: Graph) -> int:
    """Bytes of the buffers that both touch: what one kernel would not read again, at most."""
    ours = {*first.reads, *first.writes}
    shared = [name for name in dict.fromkeys((*second.reads, *second.writes)) if name in ours]
    return sum(storage_bytes(graph.buffers[n], graph.symbol_hints) for n in shared if n in graph.buffers)


def tuning_rows(built: BuiltGraph) -> list[dict[str, Any]]:
    """What autotuning decided, each with all of its trials; equal decisions once, with their steps."""
    found: dict[TuningDecision, list[int]] = {}
    for number, step in enumerate(built.schedule.steps):
        if step.choice is not None:
            found.setdefault(step.choice, []).append(number)
    return [
        {
            "subject": choice.subject,
            "chosen": str(choice.candidate),
            "reason": choice.reason,
            "steps": numbers,
            "trials": [
                {
                    "candidate": str(trial.candidate),
                    "ms": None if math.isinf(trial.milliseconds) else trial.milliseconds,
                    "fault": trial.fault,
                    "chosen": trial.candidate == choice.candidate,
                }
                for trial in sorted(choice.trials, key=lambda t: t.milliseconds)
            ],
        }
        for choice, numbers in found.items()
    ]


WIDTH, HEIGHT = 220, 44
"""Of a node, in the units of the coordinates."""
_GAP_X, _GAP_Y, COLUMN_GAP = 28, 34, 120
_SWEEPS = 4
_ASPECT = 2.0
"""Width of a drawing against its height."""
_UNWRAPPED = 24
"""Layers that stay in one column."""


def node_corners(inputs: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """The upper left corner of each node.

    Args:
        inputs: for each node, the nodes before it whose results it reads.
    """
    layer = _layers(inputs)
    rows: list[list[int]] = [[] for _ in range(max(layer, default=-1) + 1)]
    for node, at in enumerate(layer):
        rows[at].append(node)
    outputs: list[list[int]] = [[] for _ in inputs]
    for node, before in enumerate(inputs):
        for other in before:
            outputs[other].append(node)
    x = [0.0] * len(inputs)
    for sweep in range(_SWEEPS):
        near = inputs if sweep % 2 == 0 else outputs
        for row in rows if sweep % 2 == 0 else reversed(rows):
            wanted = {n: (sum(x[o] for o in near[n]) / len(near[n]) if near[n] else x[n]) for n in row}
            row.sort(key=lambda n: (wanted[n], n))
            _spread(row, x, wanted, [n for n in row if outputs[n]])
    return _wrapped(rows, x, layer)


def _layers(inputs: Sequence[Sequence[int]]) -> list[int]:
    layer: list[int] = []
    for before in inputs:
        layer.append(1 + max((layer[o] for o in before), default=-1))
    return layer


def _spread(row: Sequence[int], x: list[float], wanted: Mapping[int, float], inner: Sequence[int]) -> None:
    """Put the nodes of a row beside each other, so that those that others read are where they would like to
    be: a result that nobody reads must not push the chain beside it away, layer by layer.
    """
    step = WIDTH + _GAP_X
    position = {node: i * step for i, node in enumerate(row)}
    fixed = inner or row
    shift = sum(wanted[n] - position[n] for n in fixed) / len(fixed)
    for node in row:
        x[node] = position[node] + shift


def _wrapped(
    rows: Sequence[Sequence[int]], x: Sequence[float], layer: Sequence[int]
) -> list[tuple[int, int]]:
    """Cut a long drawing into columns, so that it is wider than high."""
    step = HEIGHT + _GAP_Y
    width = max((len(row) for row in rows), default=1) * (WIDTH + _GAP_X) + COLUMN_GAP
    high = max(_UNWRAPPED, math.ceil(math.sqrt(len(rows) * width / step / _ASPECT)))
    found = [(0, 0)] * len(layer)
    shift = 0.0
    for start in range(0, len(rows), high):
        part = rows[start : start + high]
        nodes = [n for row in part for n in row]
        left = min((x[n] for n in nodes), default=0.0)
        for n in nodes:
            found[n] = round(x[n] - left + shift), (layer[n] - start) * step
        right = max((found[n][0] for n in nodes), default=0)
        shift = right + WIDTH + COLUMN_GAP
    return found
