"""What a collector saw, as plain data: the JSON form of a report. docs/report.md lists its fields."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import Any

import torch

from polyfuse.base.code import version
from polyfuse.base.text import shorten
from polyfuse.reporting.collect import Capture, Collector, Compiled
from polyfuse.reporting.eager_memory import eager_memory, phase
from polyfuse.reporting.memory import as_rows, peak_of, storages_of
from polyfuse.reporting.sources import SourceTable
from polyfuse.reporting.steps import KernelTable, refused_pairs, steps_of, tuning_rows
from polyfuse.reporting.timing import ProgramTimer, event_names
from polyfuse.reporting.work import ceilings
from polyfuse.runtime.devices.registry import device_of

FORMAT = 1
"""Raised when a field changes its meaning."""

_LONGEST_REASON = 2000


def describe(collector: Collector, title: str) -> dict[str, Any]:
    """All that was seen; measures the devices that kernels ran on."""
    sources, kernels = SourceTable(), KernelTable()
    eager: dict[int, Any] = {}
    graphs = [_graph(item, kernels, sources, eager) for item in collector.graphs]
    devices = {g["device"]: None for g in graphs if g["device"]}
    return {
        "format": FORMAT,
        "title": title,
        "machine": _machine(),
        "times": {"cold": compile_times(collector), "warm": None},
        "breaks": _breaks(collector, sources),
        "recompilations": _recompilations(collector, sources),
        "failed": _failed(collector, sources),
        "ceilings": [ceilings(device) for device in devices],
        "graphs": graphs,
        "kernels": kernels.rows,
        "sources": sources.rows(),
        "files": sources.files(),
    }


def _machine() -> dict[str, Any]:
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    found = None if accelerator is None else device_of(accelerator.type)
    devices = [] if found is None else [found.properties(i).name for i in range(found.count())]
    return {
        "polyfuse": version(),
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu(),
        "threads": torch.get_num_threads(),
        "devices": devices,
    }


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def compile_times(collector: Collector) -> dict[str, Any]:
    """Seconds of compiling, all graphs together, by stage; they add up to `total`.

    `tracing` is Dynamo's, `autograd` what AOTAutograd and the graph cache take around the stages, and
    `building` how long first calls waited for kernels that were still being built.
    """
    frames = sum(f.seconds for f in collector.frames)
    backend = sum(c.seconds for c in collector.captures)
    inside = sum(c.stages for c in collector.captures)
    late = sum(g.seconds for g in collector.graphs if g.late)
    waited = sum(g.timer.waited for g in collector.graphs if g.timer is not None)
    stages: dict[str, float] = {
        "tracing": max(frames - backend, 0.0),
        "autograd": max(backend - inside, 0.0),
    }
    for graph in collector.graphs:
        if graph.built is not None:
            for name, seconds in graph.report.stage_seconds:
                stages[name] = stages.get(name, 0.0) + seconds
    staged = sum(s for name, s in stages.items() if name not in ("tracing", "autograd"))
    stages["other"] = max(inside + late - staged, 0.0)
    stages["building"] = waited
    return {
        "total": sum(stages.values()),
        "stages": [[name, seconds] for name, seconds in stages.items()],
        "frames": len(collector.frames),
        "read": sum(g.report.cached for g in collector.graphs),
        "compiled": sum(g.built is not None for g in collector.graphs),
    }


def _breaks(collector: Collector, sources: SourceTable) -> list[dict[str, Any]]:
    found: dict[tuple[str, str, int], dict[str, Any]] = {}
    for capture in collector.captures:
        item = capture.broken
        if item is None:
            continue
        key = (item.reason, item.file, item.line)
        row = found.setdefault(
            key,
            {
                "reason": _cut(item.reason),
                "source": sources.number(item.file, item.line) if item.line else None,
                "count": 0,
            },
        )
        row["count"] += 1
    return list(found.values())


def _recompilations(collector: Collector, sources: SourceTable) -> list[dict[str, Any]]:
    return [
        {
            "function": frame.function,
            "compile": frame.compile_id,
            "source": sources.number(frame.file, frame.line, frame.function),
            "reason": _cut(frame.recompiled),
            "seconds": frame.seconds,
        }
        for frame in collector.frames
        if frame.recompiled
    ]


def _failed(collector: Collector, sources: SourceTable) -> list[dict[str, Any]]:
    return [
        {
            "function": frame.function,
            "source": sources.number(frame.file, frame.line, frame.function),
            "reason": _cut(frame.failed),
        }
        for frame in collector.frames
        if frame.failed
    ]


def _cut(reason: str) -> str:
    return reason if len(reason) <= _LONGEST_REASON else reason[:_LONGEST_REASON] + "…"


def _graph(
    item: Compiled, kernels: KernelTable, sources: SourceTable, eager: dict[int, Any]
) -> dict[str, Any]:
    report, built = item.report, item.built
    row: dict[str, Any] = {
        "name": report.name,
        "kind": report.kind,
        "eager": report.eager,
        "cached": report.cached,
        "operators": report.aten_ops,
        "launches": report.kernels,
        "distinct": report.distinct_kernels,
        "calls": report.extern_calls,
        "fallbacks": [{"op": op, "reason": reason} for op, reason in report.fallbacks],
        "bytes_before": report.bytes_before,
        "bytes_after": report.bytes_after,
        "stages": [list(pair) for pair in report.stage_seconds],
        "rewrites": [list(pair) for pair in report.rewrites if pair[1]],
        "recording": "" if report.recording is None else report.recording.text(),
        "host": "" if report.host is None else report.host.text(),
        "device": "",
        "steps": [],
        "refused": [],
        "decisions": [],
        "tuning": [],
        "memory": None,
        "timeline": None,
        "program": "",
    }
    if built is None:
        return row
    steps = steps_of(built, item.timer, kernels, sources)
    return row | {
        "device": built.program.device or "cpu",
        "steps": steps,
        "refused": refused_pairs(report, built, steps),
        "decisions": _decisions(item),
        "tuning": tuning_rows(built),
        "memory": _memory(item, eager),
        "timeline": _timeline(item),
        "program": built.module.text,
    }


def _decisions(item: Compiled) -> list[dict[str, Any]]:
    """What backends refused, and which candidates were not timed; equal ones once."""
    found: dict[tuple[str, str, str, str], int] = {}
    for d in item.report.decisions:
        if d.kind in ("backend", "declined", "choice", "tune", "overlap", "unaliased"):
            first = "" if d.kind in ("choice", "declined") else d.first
            key = (d.kind, first, d.second, d.reason)
            found[key] = found.get(key, 0) + 1
    return [
        {"kind": kind, "first": first, "second": second, "reason": shorten(reason, 400), "count": count}
        for (kind, first, second, reason), count in found.items()
    ]


def _memory(item: Compiled, eager: dict[int, Any]) -> dict[str, Any]:
    built, aten = item.built, item.aten
    assert built is not None and aten is not None
    given = [i.name for i in aten.inputs if i.donated and i.kind == "tensor"]
    inputs = zip(aten.inputs, built.schedule.graph.inputs, strict=True)
    names = {traced.name: lowered.name for traced, lowered in inputs}
    storages = storages_of(built.program, built.schedule, [names.get(name, name) for name in given])
    steps = len(built.schedule.steps)
    peak, at = peak_of([(s.nbytes, s.first, s.last) for s in storages], steps)
    return {
        "steps": steps,
        "storages": as_rows(storages),
        "peak": peak,
        "peak_step": at,
        "eager": _eager(item.capture, aten.kind == "backward", eager),
    }


def _eager(capture: Capture | None, backward: bool, known: dict[int, Any]) -> dict[str, Any]:
    if capture is None:
        return {"unknown": "the graph was not captured by Dynamo"}
    if id(capture) not in known:
        known[id(capture)] = eager_memory(capture.graph, capture.inputs)
    found = known[id(capture)]
    return {"unknown": found} if isinstance(found, str) else phase(found, backward)


def _timeline(item: Compiled) -> dict[str, Any] | None:
    """The last measured call of a program, launch by launch, in microseconds."""
    timer, built = item.timer, item.built
    if timer is None or not timer.calls or built is None:
        return None
    timer.read()
    known = event_names(built)
    call = timer.calls[-1]
    numbers: Sequence[int | None] = [None] * len(call.events)
    if known is not None and known[0] == [e.name for e in call.events]:
        numbers = known[1]
    return {
        "us": call.seconds * 1e6,
        "calls": [c.seconds * 1e6 for c in timer.calls],
        "repeated": timer.repeated,
        "events": [
            {
                "name": event.name,
                "step": number,
                "host": [round(event.start * 1e6, 2), round(event.end * 1e6, 2)],
                "device": None if event.device is None else [round(x * 1e6, 2) for x in event.device],
            }
            for event, number in zip(call.events, numbers, strict=True)
        ],
        "unseen": _unseen(item, timer),
    }


def _unseen(item: Compiled, timer: ProgramTimer) -> str:
    """Why launches are missing in the timeline; empty if none are."""
    status = item.report.recording
    if status is not None and any(part.recordings for part in (status, *status.partitions)):
        return "calls that replay a recorded device graph are not seen; these came before it was recorded"
    return "" if any(call.events for call in timer.calls) else "the program launches nothing"
