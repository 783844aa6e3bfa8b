"""Inputs of a host program: what they must be, and what of them is checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from polyfuse.ir.graph import Graph, GraphInput, GraphOutput
from polyfuse.ir.nodes import View
from polyfuse.program.loops.finding import NotALoop, Skipped
from polyfuse.program.planning.storage import is_whole
from polyfuse.program.steps import AssertLayout, ProgramInput
from polyfuse.schedule.result import Launch, Schedule


def program_input(
    item: GraphInput, graph: Graph, alignments: Mapping[str, int], mutated: frozenset[str]
) -> ProgramInput:
    """An input of the graph as the program knows it.

    Args:
        alignments: bytes of which kernels take an address to be a multiple.
        mutated: inputs that the graph writes to.
    """
    buffer = graph.buffers.get(item.name)
    if item.kind != "tensor" or buffer is None:
        kind = "object" if item.kind == "tensor" else item.kind
        return ProgramInput(item.name, kind, value=item.value, static=item.static, label=item.label)
    return ProgramInput(
        item.name,
        "tensor",
        buffer.size,
        buffer.stride,
        buffer.torch_dtype,
        buffer.device,
        item.static,
        alignments.get(item.name, 0) if item.address == "traced" else 0,
        item.name in mutated,
        label=item.label,
    )


def assumed_alignments(schedule: Schedule) -> dict[str, int]:
    """Bytes of which a buffer's address must be a multiple, for those of which some kernel assumes it."""
    found: dict[str, int] = {}
    for step in schedule.steps:
        if isinstance(step, Launch) and step.alignment:
            for arg, operand in zip(step.kernel.args, step.operands, strict=True):
                if arg.aligned and isinstance(operand, str):
                    found[operand] = max(found.get(operand, 0), step.alignment)
    return found


def layout_checks(
    inputs: Iterable[ProgramInput], unused: Sequence[str]
) -> tuple[tuple[AssertLayout, ...], tuple[AssertLayout, ...]]:
    """Checks made at the first call only, and at every call.

    A parameter is the same object in every call, so once is enough for it.
    """
    once: list[AssertLayout] = []
    always: list[AssertLayout] = []
    for item in inputs:
        # an empty tensor's strides mean nothing
        if item.kind == "tensor" and item.name not in unused and not any(n == 0 for n in item.size):
            plain = all(isinstance(n, int) for n in (*item.size, *item.stride))
            checks = once if item.static and plain else always
            checks.append(AssertLayout(item.name, item.size, item.stride))
    return tuple(once), tuple(always)


def views_of_inputs(graph: Graph, skipped: Skipped | None) -> tuple[tuple[int, int], ...]:
    """Results of a forward that are parts of inputs, which autograd must know: (result, input) of each.

    Raises:
        NotALoop: layers that are left out would return such results.
    """
    if graph.kind != "forward":
        return ()
    single = {name for row in skipped.inputs for name in row} if skipped is not None else set()
    inputs = {item.name: i for i, item in enumerate(graph.inputs) if item.name in graph.buffers}
    outputs = [output for output, _ in results_of(graph, skipped)]
    if any(isinstance(o.value, View) and not o.saved and o.value.buffer in single for o in outputs):
        raise NotALoop("layers return what they are given")
    return tuple(
        (k, inputs[output.value.buffer])
        for k, output in enumerate(outputs)
        if isinstance(output.value, View) and not output.saved and output.value.buffer in inputs
        if output.value.dtype is None and not is_whole(output.value, graph.buffers[output.value.buffer])
    )


def results_of(graph: Graph, skipped: Skipped | None) -> Iterable[tuple[GraphOutput, int]]:
    """The results of a program, and how many layers later than it stands there each is made."""
    return [(output, 0) for output in graph.outputs] if skipped is None else skipped.outputs
