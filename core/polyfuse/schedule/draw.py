"""A schedule as a graph in Graphviz's `dot` format."""

from __future__ import annotations

from polyfuse.schedule.result import Launch, Schedule


def dot(schedule: Schedule) -> str:
    """A box for each launch and call, an arrow for each buffer that one hands to another."""
    lines = ["digraph schedule {", "  node [shape=box, fontname=monospace];"]
    source = {i.name: f"in_{n}" for n, i in enumerate(schedule.graph.inputs) if i.kind == "tensor"}
    lines += [f'  {mark} [shape=plaintext, label="{_safe(name)}"];' for name, mark in source.items()]
    for number, step in enumerate(schedule.steps):
        if isinstance(step, Launch):
            members = "\\n".join(_safe(_member(node)) for node in step.nodes)
            lines.append(
                f'  s{number} [style=filled, label="{_safe(step.kernel.name)} ({step.backend})\\n{members}"];'
            )
        else:
            lines.append(f'  s{number} [label="{_safe(step.node.op)}"];')
        for name in dict.fromkeys(step.reads):
            if name in source:
                lines.append(f'  {source[name]} -> s{number} [label="{_safe(name)}"];')
        source.update(dict.fromkeys(step.writes, f"s{number}"))
    for number, name in enumerate(schedule.graph.output_buffers()):
        lines.append(f'  out_{number} [shape=plaintext, label="result {number}"];')
        if name in source:
            lines.append(f'  {source[name]} -> out_{number} [label="{_safe(name)}"];')
    return "\n".join([*lines, "}"]) + "\n"


def _member(node: object) -> str:
    origins = getattr(node, "origins", ())
    return f"{getattr(node, 'name', '')}: {origins[0].op if origins else type(node).__name__}"


def _safe(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
