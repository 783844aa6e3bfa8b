"""What matters first of what was compiled: five lines, then the costliest kernels, what fell back, fusions
that would have saved most, and hints. `polyfuse explain` prints it above the report of each graph.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from polyfuse.base.text import counted, join_words, short_source, shorten
from polyfuse.reporting.collect import Collector, Compiled
from polyfuse.reporting.describe import compile_times
from polyfuse.reporting.sources import SourceTable
from polyfuse.reporting.steps import KernelTable, refused_pairs, steps_of

_COSTLIEST = 5
_WORTH = 0.01
"""Of the memory traffic of all graphs: a refused fusion that would have saved less is left out."""
_MANY_LAUNCHES, _SMALL = 20, 1 << 16
"""More launches of fewer bytes than this, on average, spend their time on launching."""
_SHOWN = 8


def overview(collector: Collector) -> dict[str, Any]:
    """What was seen, as plain data.

    Fields: `graphs`, `breaks` (reason, source, count), `kernels` (launches and distinct ones),
    `library_calls`, `eager` (graphs, functions and operators, each with the reason), `backends` (launches by
    backend), `seconds` (by stage, with `total`), `costliest`, `refused_fusions`, `recompilations`, `hints`.
    """
    reports = [item.report for item in collector.graphs]
    backends = Counter(launch.backend for report in reports for launch in report.launches)
    fallbacks = Counter((op, why) for report in reports for op, why in report.fallbacks)
    times = compile_times(collector)
    recompiled = _recompilations(collector)
    data: dict[str, Any] = {
        "graphs": dict(Counter(report.kind for report in reports)),
        "breaks": _breaks(collector),
        "kernels": {
            "launches": sum(report.kernels for report in reports),
            "distinct": sum(report.distinct_kernels for report in reports),
        },
        "library_calls": sum(r.extern_calls - len(r.fallbacks) for r in reports),
        "eager": {
            "graphs": [{"graph": r.name, "reason": r.eager} for r in reports if r.eager],
            "operators": [
                {"operator": op, "reason": why, "count": count} for (op, why), count in fallbacks.items()
            ],
            "functions": [
                {"function": f.function, "source": f"{f.file}:{f.line}", "reason": shorten(f.failed, 200)}
                for f in collector.frames
                if f.failed
            ],
        },
        "backends": dict(backends.most_common()),
        "seconds": {"total": times["total"], **dict(times["stages"])},
        "recompilations": recompiled,
    }
    data |= _priorities(collector)
    data["hints"] = list(_hints(collector, data))
    return data


def _breaks(collector: Collector) -> list[dict[str, Any]]:
    found = Counter(capture.broken for capture in collector.captures if capture.broken is not None)
    return [
        {
            "reason": shorten(item.reason.splitlines()[0] if item.reason else "", 200),
            "source": f"{item.file}:{item.line}" if item.line else "",
            "count": count,
        }
        for item, count in found.items()
    ]


def _recompilations(collector: Collector) -> list[dict[str, Any]]:
    """Functions that were compiled more than once, with the guard that failed last."""
    found: dict[tuple[str, str, int], dict[str, Any]] = {}
    for frame in collector.frames:
        if frame.recompiled:
            row = found.setdefault(
                (frame.function, frame.file, frame.line),
                {"function": _function(frame.function), "source": f"{frame.file}:{frame.line}", "count": 0},
            )
            row["count"] += 1
            row["reason"] = shorten(frame.recompiled, 300)
    return list(found.values())


def _function(name: str) -> str:
    """A function's name; what follows a graph break has none of its own."""
    rest = re.fullmatch(r"torch_dynamo_resume_in_(.+)_at_(\d+)", name)
    return f"{rest[1]} after line {rest[2]}" if rest else name


def _priorities(collector: Collector) -> dict[str, Any]:
    """The costliest kernels and calls, and the fusions that were refused although they would save much."""
    kernels, sources = KernelTable(), SourceTable()
    rows: list[dict[str, Any]] = []
    refused: list[dict[str, Any]] = []
    total = sum(item.report.bytes_after for item in collector.graphs)
    for item in collector.graphs:
        steps = _steps(item, kernels, sources)
        for step in steps:
            row = {key: step.get(key) for key in ("name", "backend", "ms", "bytes", "ops", "source")}
            rows.append({**row, "graph": item.report.name})
        if item.built is None or not total:
            continue
        for pair in refused_pairs(item.report, item.built, steps):
            if pair["bytes"] > _WORTH * total:
                first, second = steps[pair["first"]], steps[pair["second"]]
                refused.append(
                    {
                        "graph": item.report.name,
                        "first": first["name"],
                        "second": second["name"],
                        "saves": pair["bytes"] / total,
                        "reason": pair["reason"],
                    }
                )
    by = "ms" if rows and all(row["ms"] is not None for row in rows) else "bytes"
    whole = sum(row[by] for row in rows) or 1
    for row in rows:
        row["share"] = row[by] / whole
    rows.sort(key=lambda row: -row["share"])
    refused.sort(key=lambda row: -row["saves"])
    return {"costliest": rows[:_COSTLIEST], "costliest_by": by, "refused_fusions": refused}


def _steps(item: Compiled, kernels: KernelTable, sources: SourceTable) -> list[dict[str, Any]]:
    """The launches and calls of a graph; of one that was read from the cache, its launches."""
    if item.built is not None:
        steps = steps_of(item.built, item.timer, kernels, sources)
        lines = iter(item.report.launches)
        for step in steps:
            launch = next(lines) if step["type"] == "kernel" else None
            step["source"] = short_source(launch.sources[0]) if launch and launch.sources else ""
            step["name"] = launch.name if launch else step["name"]
        return steps
    return [
        {
            "name": launch.name,
            "backend": launch.backend,
            "ms": None,
            "bytes": launch.nbytes,
            "ops": list(launch.ops),
            "source": short_source(launch.sources[0]) if launch.sources else "",
        }
        for launch in item.report.launches
    ]


def _hints(collector: Collector, data: Mapping[str, Any]) -> Iterator[str]:
    """What a user can change, most promising first."""
    for row in data["recompilations"]:
        size = re.search(r"tensor '([^']+)' size mismatch at index (\d+)", row["reason"])
        times = f"{row['function']} was compiled {row['count'] + 1} times"
        if size is not None:
            yield (
                f"{times}: dimension {size[2]} of {size[1]} changed; mark it dynamic with "
                f"torch._dynamo.mark_dynamic(tensor, {size[2]}), or compile with dynamic=True"
            )
        else:
            yield f"{times}, last because {row['reason']}"
    for row in data["breaks"]:
        yield f"a graph break{_at(row)} keeps what is before and after it apart: {row['reason']}"
    graphs = data["graphs"]
    if graphs.get("forward") and not graphs.get("backward"):
        yield "gradients are prepared and never computed: call the model under torch.no_grad()"
    launches = data["kernels"]["launches"]
    moved = sum(launch.nbytes for item in collector.graphs for launch in item.report.launches)
    if launches > _MANY_LAUNCHES and moved < _SMALL * launches:
        device = next((item.built.program.device for item in collector.graphs if item.built), "cpu")
        option = 'options={"native_host": True}' if device in ("", "cpu") else 'mode="reduce-overhead"'
        yield f"{launches} launches move little memory each, so that launching dominates: try {option}"


def _at(row: Mapping[str, Any]) -> str:
    return f" at {row['source']}" if row["source"] else ""


def overview_text(data: Mapping[str, Any]) -> str:
    """The same for people."""
    if not data["graphs"]:
        return "nothing was compiled with Polyfuse\n" + "".join(
            f"  {row['function']} ({row['source']}) runs in eager mode: {row['reason']}\n"
            for row in data["eager"]["functions"][:_SHOWN]
        )
    return "\n".join([*_five_lines(data), *_details(data)]) + "\n"


def _five_lines(data: Mapping[str, Any]) -> Iterator[str]:
    graphs, breaks = data["graphs"], data["breaks"]
    kinds = ", ".join(f"{count} {kind}" for kind, count in graphs.items())
    broken = sum(row["count"] for row in breaks)
    cause = f": {breaks[0]['reason']}{_at(breaks[0])}" if breaks else ""
    yield f"graphs    {sum(graphs.values())} ({kinds}), {counted(broken, 'graph break')}{cause}"
    kernels = data["kernels"]
    by = _tally(data["backends"])
    launches = counted(kernels["launches"], "launch", "launches")
    yield f"kernels   {launches} of {counted(kernels['distinct'], 'kernel')}, by {by}"
    eager = data["eager"]
    operators = sum(row["count"] for row in eager["operators"])
    names = join_words([row["operator"] for row in eager["operators"][:3]])
    yield (
        f"calls     {data['library_calls']} of libraries, {counted(operators, 'operator')} in eager mode"
        + (f" ({names})" if names else "")
        + (f", {counted(len(eager['graphs']), 'whole graph')} in eager mode" if eager["graphs"] else "")
    )
    recompiled = sum(row["count"] for row in data["recompilations"])
    functions = counted(len(data["recompilations"]), "function")
    yield f"compiled  {functions} more than once, {counted(recompiled, 'time')} in all"
    seconds = data["seconds"]
    stages = (f"{name} {taken:.2f}" for name, taken in seconds.items() if name != "total" and taken >= 0.005)
    yield f"seconds   {seconds['total']:.2f}: {', '.join(stages)}"


def _tally(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items()) or "none"


def _details(data: Mapping[str, Any]) -> Iterator[str]:
    if data["costliest"]:
        measured = data["costliest_by"] == "ms"
        yield f"costliest kernels and calls ({'measured' if measured else 'by bytes moved'})"
    for row in data["costliest"]:
        amount = f"{row['ms']:.3f} ms" if data["costliest_by"] == "ms" else f"{row['bytes'] / 1e6:.2f} MB"
        source = f"  {row['source']}" if row["source"] else ""
        yield f"  {row['share']:>4.0%}  {amount}  {row['name']} ({row['backend']}){source}"
    eager = data["eager"]
    if eager["operators"] or eager["graphs"] or eager["functions"]:
        yield "in eager mode"
    for row in eager["graphs"][:_SHOWN]:
        yield f"  graph {row['graph']}: {row['reason']}"
    for row in eager["functions"][:_SHOWN]:
        yield f"  {row['function']} ({row['source']}): {row['reason']}"
    for row in eager["operators"][:_SHOWN]:
        yield f"  {row['count']} x {row['operator']}: {row['reason']}"
    if data["refused_fusions"]:
        yield "refused fusions that would save more than 1% of the memory traffic (estimated)"
    for row in data["refused_fusions"][:_SHOWN]:
        yield f"  {row['saves']:>4.0%}  {row['first']} and {row['second']}: {row['reason']}"
    if data["hints"]:
        yield "hints"
    for text in data["hints"][:_SHOWN]:
        yield f"  {text}"
