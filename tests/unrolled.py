"""The steps that a program with a loop stands for, to be compared with those of the whole program."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

from polyfuse.compiler.layers.renaming import Renaming
from polyfuse.program.partitions import Span
from polyfuse.program.steps import Free, Loop, Program, Step

__all__ = ["as_it_runs", "unrolled"]


def unrolled(program: Program) -> list[Step]:
    """The steps of a program, with those of its loop once for each turn, under names of their own."""
    loop = program.loop
    if loop is None:
        return list(program.steps)
    made = Span(program.steps, (loop.start, loop.end), frozenset(), frozenset()).made
    steps: list[Step] = list(program.steps[: loop.start])
    tables: list[dict[str, str]] = []
    for turn in range(loop.count):
        table = {name: f"{name} of {turn}" for name in made}
        table |= {column[0]: column[turn] for column in loop.given}
        last = tables[-1] if tables else {}
        table |= {name: last.get(new, name) if turn else name for name, new in loop.carried}
        tables.append(table)
        steps += [Renaming(table, {}).value(step) for step in program.steps[loop.start : loop.end]]
    behind = {name: tables[-1][name] for name in (*made, *(new for _, new in loop.carried))}
    steps += [Renaming(behind, {}).value(step) for step in program.steps[loop.end : -1]]
    saved = {Loop.result(name, turn): table[name] for turn, table in enumerate(tables) for name in loop.saved}
    saved |= {Loop.outside(column[0]): column[0] for column in loop.given}
    return [*steps, Renaming(saved, {}).value(program.steps[-1])]


def as_it_runs(program: Program) -> list[Any]:
    """The steps of a program with numbers instead of what it computes, in order of appearance."""
    known = {item.name: item.name for item in program.inputs}
    known |= {name: name for name, _ in program.constants}
    return [_numbered(step, known) for step in unrolled(program)]


def _numbered(value: Any, known: dict[str, str]) -> Any:
    if isinstance(value, Free):
        return "free", frozenset(known[name] for name in value.names)
    if isinstance(value, str):
        return known.setdefault(value, f"number {len(known)}")
    if isinstance(value, tuple):
        return tuple(_numbered(item, known) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        names = [item.name for item in fields(value) if item.compare]
        if not hasattr(value, "__slots__") and type(value).__module__.startswith("polyfuse.program"):
            return type(value), *(_numbered(getattr(value, name), known) for name in names)
        if type(value).__name__ == "View":
            return replace(value, buffer=_numbered(value.buffer, known))
    return value
