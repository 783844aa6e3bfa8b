"""The tables of a host program's module: what its loader checks, records and makes example inputs from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

from polyfuse.program.partitions import uses
from polyfuse.program.steps import BindSymbol, LaunchKernel, MakeView, Program, Reuse, Series
from polyfuse.symbolic import IndexLike, example_value


def table_lines(program: Program, variable: Callable[[str], str]) -> list[str]:
    """Assignments to global names.

    Args:
        program: what the tables say.
        variable: the Python name of each variable.
    """
    rows = _inputs(program, variable)
    if labels := {variable(i.name): i.label for i in program.inputs if i.label}:
        rows.append(f"NAMES = {labels!r}")
    position = {item.name: i for i, item in enumerate(program.inputs)}
    written = {item.name for item in program.inputs if item.mutated}
    checks = tuple((position[c.name], c.size, c.stride, c.name in written) for c in program.checks)
    aligned = tuple(
        (position[i.name], i.alignment, i.mutated, i.static) for i in program.inputs if i.alignment
    )
    if program.recording is not None:
        facts = asdict(program.recording)
        del facts["names"]  # `INPUTS` has them
        rows.append(f"GRAPH = {facts!r}")
    if program.partitions:
        table = tuple((p.name, asdict(p.facts), len(p.inputs)) for p in program.partitions)
        rows.append(f"PARTITIONS = {table!r}")
    if program.series:
        rows += ["SERIES = (", *(line for series in program.series for line in _series(series)), ")"]
    if program.views:
        rows.append(f"VIEWS = {program.views!r}")
    if program.noted:
        rows.append("SEEN = {}")
    if program.computes_alone:
        rows.append("ALONE = True")
    return [*rows, f"CHECKS = {checks!r}", f"ALIGNED = {aligned!r}", f"DEVICE = {program.device!r}"]


def _inputs(program: Program, variable: Callable[[str], str]) -> list[str]:
    """What inputs must be, with an example of each size."""
    hints = dict(program.symbol_hints)

    def example(index: IndexLike) -> int:
        return example_value(index, hints)

    rows = ["INPUTS = ("]
    free = _devices_unchecked(program)
    for item in program.inputs:
        size, stride = tuple(map(example, item.size)), tuple(map(example, item.stride))
        if item.kind == "symint" and item.value is not None:
            size = (example(item.value),)
        device = "" if item.name in free else item.device
        row = (variable(item.name), item.kind, item.dtype, device, size, stride)
        rows.append(f"    {row!r},")
    return [*rows, ")"]


def _series(series: Series) -> list[str]:
    return [
        f"    ({series.name!r}, {len(series.inputs)}, {series.symbols!r}, {series.slots},",
        f"     {series.returns!r}, (",
        *(f"         {row!r}," for row in series.rows),
        "     )),",
    ]


def _devices_unchecked(program: Program) -> set[str]:
    """Scalar inputs that go to eager operators and nowhere else.

    Operators return some of these on other devices than they were traced with (the seeds of attention are on
    the CPU or on the device, as the operator finds useful), and take them back from there.
    """
    found = {i.name for i in program.inputs if i.kind == "tensor" and not i.size}
    for step in program.steps:
        if isinstance(step, (LaunchKernel, MakeView, Reuse, BindSymbol)):
            found.difference_update(uses(step))
    return found
