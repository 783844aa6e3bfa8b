"""Draws the pictures of docs/concepts.md from a real compilation: `make docs` runs it, a test compares.

The function below is captured and scheduled for the C++ backend; nothing is built or run.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import torch
import torch.nn.functional as F

from polyfuse.base.settings import Settings
from polyfuse.compiler.session import CompileSession, session_for
from polyfuse.ir.expr import walk
from polyfuse.ir.graph import Graph
from polyfuse.ir.nodes import ExternCall, Node, Reduction
from polyfuse.ir.text.parse import parse
from polyfuse.program import plan
from polyfuse.program.memory import storage_bytes
from polyfuse.program.steps import Allocate, ExternStep, Free, LaunchKernel, Program, Return, Reuse
from polyfuse.program.traffic import bytes_moved
from polyfuse.schedule import Launch, Schedule, claim_nodes
from polyfuse.schedule.schedule import schedule_graph

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "images"
ROWS, WIDTH, HIDDEN = 128, 256, 256

INK, MUTED, GROUND = "#1f2328", "#57606a", "#ffffff"
KERNEL, CALL, DATA = "#dce9f8", "#f6e7c6", "#eef0f2"
BARS = ("#1f5fa8", "#d9a441", "#5b9a68", "#8e7cc3", "#c26b5a", "#4d9fb0")
APART = {"fusion": False, "inplace": False, "reuse_buffers": False}
"""Options under which each node is a kernel and each buffer has storage of its own, as in eager mode."""

WORK = (LaunchKernel, ExternStep, Return)
"""Steps of a host program that the pictures count."""

STYLE = f"font-family: -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif; font-size: 12px; fill: {INK}"


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """One attention without heads, the residual and a layer norm: what the pictures show."""
    scores = torch.softmax(q @ k * 0.0625, dim=-1)
    return F.layer_norm(x + scores @ v, (HIDDEN,))


@dataclass(frozen=True)
class Compiled:
    """What the stages make of the function; `unfused`: with each node a kernel of its own."""

    operators: int
    graph: Graph
    schedule: Schedule
    program: Program
    unfused: Schedule
    unfused_program: Program


def compiled() -> Compiled:
    """Capture the function, and schedule its graph for the C++ backend."""
    inputs = (
        torch.randn(ROWS, WIDTH),
        torch.randn(WIDTH, ROWS),
        torch.randn(ROWS, HIDDEN),
        torch.randn(ROWS, HIDDEN),
    )
    torch._dynamo.reset()
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        options = {"backends": ["interpreter"], "dump": folder, "graph_cache": False}
        torch.compile(attention, backend="polyfuse", options=options)(*inputs)
        (dumped,) = Path(folder).iterdir()
        graph = parse((dumped / "graph.ir").read_text(encoding="utf-8"))
        aten = (dumped / "aten.txt").read_text(encoding="utf-8")
    assert isinstance(graph, Graph)
    fused = session_for(Settings.resolve(None, {"backends": ["cpp"], "cpp.isa": "avx2"}))
    apart = session_for(Settings.resolve(None, {"backends": ["cpp"], "cpp.isa": "avx2", **APART}))
    schedule, program = _scheduled(graph, fused)
    return Compiled(aten.count("= aten."), graph, schedule, program, *_scheduled(graph, apart))


def _scheduled(graph: Graph, session: CompileSession) -> tuple[Schedule, Program]:
    claims = claim_nodes(graph, session.backends, session.settings)
    schedule = schedule_graph(claims.graph, session.settings, session.backends, claims.backends)
    return schedule, plan(schedule, session.settings)


# ---- drawing -------------------------------------------------------------------------------------


def picture(width: int, height: int, words: str, parts: Sequence[str]) -> str:
    """An SVG; `words` describe it to those who cannot see it."""
    marker = (
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        f'orient="auto"><path d="M0 0L8 4L0 8z" fill="{MUTED}"/></marker></defs>'
    )
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(words)}" style="{STYLE}">'
    )
    ground = f'<rect width="100%" height="100%" rx="6" fill="{GROUND}"/>'
    return "\n".join([head, marker, ground, *parts, "</svg>"]) + "\n"


def label(x: float, y: float, words: str, *, size: int = 12, colour: str = INK, weight: int = 400) -> str:
    style = f"font-size: {size}px; fill: {colour}; font-weight: {weight}"
    return f'<text x="{x:g}" y="{y:g}" style="{style}">{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, colour: str) -> str:
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4" fill="{colour}" '
        'stroke="#8c959f" stroke-width="0.7"/>'
    )


def arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    bend = (y1 + y2) / 2
    return (
        f'<path d="M{x1:g} {y1:g}C{x1:g} {bend:g} {x2:g} {bend:g} {x2:g} {y2:g}" fill="none" '
        f'stroke="{MUTED}" marker-end="url(#arrow)"/>'
    )


def size_words(count: float) -> str:
    return f"{count / 1024:.0f} KiB" if count >= 1024 else f"{count:.0f} B"


def stages_picture(made: Compiled) -> str:
    """Every stage, its data structure."""
    launches = [step for step in made.schedule.steps if isinstance(step, Launch)]
    calls = len(made.schedule.steps) - len(launches)
    before, after = bytes_moved(made.schedule)
    loops = sum(not isinstance(node, ExternCall) for node in made.graph.nodes)
    steps = (
        ("capture", "AtenGraph", f"{made.operators} operators", "Dynamo, AOTAutograd"),
        ("lower", "Graph", f"{loops} loops, {len(made.graph.nodes) - loops} calls", "the loop IR"),
        ("fuse", "Schedule", f"{len(launches)} kernels, {calls} calls", "launches and calls in order"),
        ("generate", "sources", f"{len(launches)} C++ functions", "each backend its kernels"),
        ("plan memory", "Program", f"{len(made.program.steps)} steps", "allocate, launch, call, free"),
        ("build, load", "callable", f"{size_words(before)} → {size_words(after)}", "memory traffic"),
    )
    wide, high, gap = 184, 96, 46
    parts = []
    for number, (stage, data, count, words) in enumerate(steps):
        row, column = divmod(number, 3)
        x, y = 16 + column * (wide + gap), 16 + row * (high + 34)
        parts += [box(x, y, wide, high, KERNEL if row else DATA)]
        parts += [label(x + 10, y + 20, f"{number + 1}. {stage}", weight=600)]
        parts += [label(x + 10, y + 42, data, size=13)]
        parts += [label(x + 10, y + 62, count), label(x + 10, y + 82, words, size=11, colour=MUTED)]
        if column < 2:
            middle = y + high / 2
            parts.append(
                f'<path d="M{x + wide + 4} {middle}H{x + wide + gap - 4}" stroke="{MUTED}" '
                'marker-end="url(#arrow)"/>'
            )
    return picture(676, 16 + 2 * (high + 34) - 18, "The stages of the compiler and what each makes", parts)


def fusion_picture(made: Compiled) -> str:
    """The nodes of the graph on the left, the kernels and calls that they became on the right."""
    before, after = bytes_moved(made.schedule)
    nodes = {node.name: node for step in made.unfused.steps for node in _nodes(step)}
    parts = [
        label(16, 24, f"each node by itself: {size_words(before)} of memory traffic", weight=600),
        label(376, 24, f"fused: {size_words(after)}", weight=600),
    ]
    row, top = 34, 42
    tops: dict[str, float] = {}
    for number, node in enumerate(nodes.values()):
        y = top + number * row
        tops[node.name] = y
        parts.append(box(16, y, 264, 26, CALL if isinstance(node, ExternCall) else DATA))
        parts.append(label(26, y + 17, f"{node.name}: {_words(node)}", size=11))
    y: float = top
    for step in made.schedule.steps:
        members = _nodes(step)
        high = 26 + 17 * len(members) if isinstance(step, Launch) else 26
        parts.append(box(376, y, 284, high, KERNEL if isinstance(step, Launch) else CALL))
        title = f"kernel {step.kernel.name}" if isinstance(step, Launch) else f"call {_words(step.node)}"
        parts.append(label(386, y + 17, title, size=11, weight=600))
        for number, node in enumerate(members):
            if isinstance(step, Launch):
                parts.append(label(396, y + 36 + 17 * number, _words(node), size=11, colour=MUTED))
            target = y + (31 + 17 * number if isinstance(step, Launch) else 13)
            parts.append(
                f'<path d="M280 {tops[node.name] + 13:g}C328 {tops[node.name] + 13:g} 328 {target:g} '
                f'374 {target:g}" fill="none" stroke="{MUTED}" marker-end="url(#arrow)"/>'
            )
        y += high + 10
    height = max(top + len(nodes) * row, y) + 8
    return picture(676, int(height), "Nodes of the loop IR, and the kernels into which they are fused", parts)


def memory_picture(made: Compiled) -> str:
    """Lifetimes of storage, with each node a kernel of its own and fused, and the bytes in use."""
    parts: list[str] = []
    y = 8.0
    for words, schedule, program in (
        ("each node by itself", made.unfused, made.unfused_program),
        ("fused", made.schedule, made.program),
    ):
        drawn, y = _lifetimes(words, schedule, program, y)
        parts += drawn
    return picture(676, int(y) + 8, "When the storage of each intermediate buffer is in use", parts)


def _lifetimes(words: str, schedule: Schedule, program: Program, top: float) -> tuple[list[str], float]:
    """One half: a bar for each storage from its allocation to its release, labelled by the buffers in it."""
    hints = dict(program.symbol_hints)
    sizes = {name: storage_bytes(buffer, hints) for name, buffer in schedule.graph.buffers.items()}
    work = [step for step in program.steps if isinstance(step, WORK)]
    storages = _storages(program)
    unit = 420 / len(work)
    use = [
        sum(sizes[names[0]] for names, first, last in storages if first <= at <= last)
        for at in range(len(work))
    ]
    parts = [
        label(16, top + 18, f"{words}: {len(storages)} storages, peak {size_words(max(use))}", weight=600)
    ]
    y = top + 30
    for number, (names, first, last) in enumerate(storages):
        x, wide = 216 + first * unit, (last - first + 1) * unit - 3
        parts.append(label(16, y + 11, f"{' → '.join(names)} ({size_words(sizes[names[0]])})", size=11))
        colour = BARS[number % len(BARS)]
        parts.append(f'<rect x="{x:.1f}" y="{y}" width="{wide:.1f}" height="14" rx="3" fill="{colour}"/>')
        y += 19
    for at, step in enumerate(work):
        x = 216 + at * unit
        parts.append(
            f'<path d="M{x - 1.5:.1f} {top + 28}V{y}" stroke="{MUTED}" stroke-width="0.5" '
            'stroke-dasharray="2 3"/>'
        )
        name = "return" if isinstance(step, Return) else str(at + 1)
        parts.append(label(x, y + 12, name, size=10, colour=MUTED))
    parts.append(label(16, y + 12, "step of the host program", size=10, colour=MUTED))
    return parts, y + 26


def _storages(program: Program) -> list[tuple[list[str], int, int]]:
    """(buffers in it, first step of work, last one) of each storage that the program allocates."""
    found: dict[str, tuple[list[str], int, int]] = {}
    order: list[str] = []
    at = 0
    holder: dict[str, str] = {}
    for step in program.steps:
        match step:
            case Allocate(name=name):
                holder[name] = name
                found[name] = ([name], at, at)
                order.append(name)
            case Reuse(new=new, old=old) if old in holder:
                holder[new] = holder.pop(old)
                found[holder[new]][0].append(new)
            case Free(names=names):
                for name in names:
                    if name in holder:
                        held, first, _ = found[holder.pop(name)]
                        found[held[0]] = (held, first, at - 1)
            case _ if isinstance(step, WORK):
                at += 1
    for root in holder.values():  # what is returned
        held, first, _ = found[root]
        found[root] = (held, first, at - 1)
    return [found[name] for name in order]


def _nodes(step: object) -> tuple[Node, ...]:
    return step.nodes if isinstance(step, Launch) else (step.node,)  # type: ignore[attr-defined]


def _words(node: Node) -> str:
    """What a node computes, by its operations."""
    if isinstance(node, ExternCall):
        return node.op.removesuffix(".out")
    names = dict.fromkeys(e.op for e in walk(*node.expressions()) if e.op not in ("load", "const"))
    kind = f"{node.kind} of " if isinstance(node, Reduction) else ""
    return kind + (", ".join(names) or "its input")


def pictures() -> Mapping[str, str]:
    """All of them, by file name."""
    made = compiled()
    return {
        "stages.svg": stages_picture(made),
        "fusion.svg": fusion_picture(made),
        "memory.svg": memory_picture(made),
    }


def main() -> int:
    """Write all pictures."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in pictures().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
        print(f"wrote docs/images/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
