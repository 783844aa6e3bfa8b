"""The report of a compiled graph, and its schedule as text."""

from __future__ import annotations

from polyfuse.compiler.built import Built
from polyfuse.compiler.reports.clock import Clock
from polyfuse.compiler.reports.report import GraphReport, LaunchReport
from polyfuse.frontend.graph import AtenGraph
from polyfuse.ir.text.print import text
from polyfuse.lowering import LoweringReport
from polyfuse.program.traffic import steps_traffic
from polyfuse.runtime.frozen import FROZEN
from polyfuse.schedule import Call, Launch, Schedule


def count_operators(aten: AtenGraph) -> int:
    """How many operators a traced graph calls."""
    return sum(1 for n in aten.module.graph.nodes if n.op == "call_function")


def graph_report(aten: AtenGraph, lowering: LoweringReport, built: Built, clock: Clock) -> GraphReport:
    """What became of a graph, and how long that took."""
    schedule = built.schedule
    moved = steps_traffic(schedule)
    names = {(item.launch.backend, item.launch.kernel): name for name, item in built.kernels.items()}
    launches = tuple(
        _launch_report(s, after, built, names[s.backend, s.kernel])
        for s, (_, after) in zip(schedule.steps, moved, strict=True)
        if isinstance(s, Launch)
    )
    packed = built.module.packed_inputs
    once = () if packed is None else tuple(f"{FROZEN}{step.op}" for step in packed.steps)
    calls = tuple(s.node.op for s in schedule.steps if isinstance(s, Call))
    return GraphReport(
        aten.name,
        aten.kind,
        count_operators(aten),
        len(launches),
        len(built.kernels),
        len(calls),
        tuple((f.op, f.reason) for f in lowering.fallbacks),
        sum(before for before, _ in moved),
        sum(after for _, after in moved),
        clock.total(),
        tuple(clock.seconds.items()),
        schedule.decisions,
        launches,
        (*once, *calls),
        aten.rewrites,
        recording=built.module.graph_status,
        host=built.host,
        sizes=None if built.module.sized is None else built.module.sized.status,
    )


def _launch_report(launch: Launch, moved: int, built: Built, name: str) -> LaunchReport:
    key = launch.backend, launch.kernel
    origins = {o: None for node in launch.nodes for o in node.origins}
    return LaunchReport(
        launch.kernel.name,
        built.providers[key],
        tuple(node.name for node in launch.nodes),
        tuple(dict.fromkeys(o.op for o in origins)),
        tuple(dict.fromkeys(o.source for o in origins if o.source)),
        moved,
        built.notes.get(key, ""),
        name,
    )


def schedule_text(schedule: Schedule) -> str:
    """The decisions and steps of a schedule, with the kernels."""
    lines = [f"{d.kind}: {d.first} {d.second}: {d.reason}" for d in schedule.decisions]
    for step in schedule.steps:
        if isinstance(step, Launch):
            lines.append(f"launch {step.kernel.name}({', '.join(map(str, step.operands))}) by {step.backend}")
            lines.append(text(step.kernel).rstrip())
        else:
            lines.append(f"call {step.node.op} -> {', '.join(step.writes)}")
    return "\n".join(lines)
