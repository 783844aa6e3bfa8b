"""A loop of a host program as text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from polyfuse.program.partitions import uses
from polyfuse.program.steps import AssertLayout, Loop, Program
from polyfuse.program.text.writer import Writer


def checked_in_turns(program: Program, loop: Loop) -> Mapping[str, AssertLayout]:
    """The checks that each turn may make of what it is given, by the variable that stands for all, instead of
    one for each turn in front of the loop. None where an input would have been written to by then.
    """
    if any(item.mutated for item in program.inputs):
        return {}
    before = program.steps[: loop.start]
    checks = {step.name: step for step in before if isinstance(step, AssertLayout)}
    used = {name for step in before if not isinstance(step, AssertLayout) for name in uses(step)}
    found: dict[str, AssertLayout] = {}
    for column in loop.given:
        layouts = {(item.size, item.stride) for name in column if (item := checks.get(name)) is not None}
        if len(layouts) == 1 and checks.keys() >= set(column) and used.isdisjoint(column):
            found[column[0]] = checks[column[0]]
    return found


def print_loop(
    writer: Writer, loop: Loop, checks: Iterable[Callable[[], None]], body: Callable[[], None]
) -> None:
    """Print a loop.

    In its body, what the loop is given and what is carried from turn to turn have names of their own, since
    what has these names outside may be returned.

    Args:
        checks: print those that a turn makes of what it is given.
        body: prints the steps of a turn.
    """
    line, names, variables = writer.line, writer.names, writer.variables
    writer.flush()
    rows, saved = names.fresh("layers"), names.fresh("results")
    each = {column[0]: names.fresh(f"each_{writer.variable(column[0])}") for column in loop.given}
    before = {name: names.fresh(f"before_{writer.variable(name)}") for name, _ in loop.carried}
    outside = {name: writer.variable(name) for name in (*each, *before)}
    _print_rows(writer, rows, loop)
    if loop.saved:
        line(f"{saved} = []")
    for name, made in before.items():
        line(f"{made} = {outside[name]}" + (f"; del {outside[name]}" if name in loop.moved else ""))
    with writer.block(f"while {rows}:"):
        line(f"{_targets(list(each.values()))}{rows}.pop()")
        variables.update({**each, **before})
        for check in checks:
            check()
        body()
        writer.flush()
        if loop.saved:
            line(f"{saved}.append(({', '.join(map(writer.variable, loop.saved))},))")
        _print_carried(writer, rows, loop)
    for name in before:
        variables[name] = outside[name]
    carried = {new for _, new in loop.carried}
    for name in each:
        variables[loop.outside(name)] = outside[name]
        if name not in carried:
            variables[name] = outside[name]
    for at, name in enumerate(loop.saved):
        for turn in range(loop.count):
            variables[loop.result(name, turn)] = f"{saved}[{turn}][{at}]"


def _print_rows(writer: Writer, rows: str, loop: Loop) -> None:
    """The table of what each turn is given, the last one first, and nothing else that holds it."""
    line = writer.line
    if not loop.given:
        line(f"{rows} = [None] * {loop.count}")
        return
    line(f"{rows} = [")
    for row in reversed(list(zip(*loop.given, strict=True))):
        line(f"    ({', '.join(map(writer.variable, row))},),")
    line("]")
    moved = [writer.variable(name) for column in loop.given if column[0] in loop.moved for name in column]
    if moved:
        line(f"del {', '.join(moved)}")


def _print_carried(writer: Writer, rows: str, loop: Loop) -> None:
    """What the next turn gets from this one; behind the last turn it has the names that it has here."""
    if not loop.carried:
        return
    line, variable = writer.line, writer.variable
    old = [variable(name) for name, _ in loop.carried]
    new = [variable(name) for _, name in loop.carried]
    gone = [variable(made) for name, made in loop.carried if name in loop.moved]
    line(f"if {rows}:")
    line(f"    {', '.join(old)} = {', '.join(new)}" + (f"; del {', '.join(gone)}" if gone else ""))


def _targets(names: Sequence[str]) -> str:
    return f"{', '.join(names)}{',' if len(names) == 1 else ''} = " if names else ""
