"""From a failing line of a host program to the line of the user's model that it computes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import FrameType, TracebackType
from typing import Any

import torch

from polyfuse.base.errors import InputLayoutError

MARK = "# from "
"""What a comment starts with that names the origin of the lines below it."""

_RUNNING = "The compiled program was running"

_TURN = re.compile(r"\s+(\w+(?:, \w+)*,?) = (\w+)\.pop\(\)$")
_CHECK = re.compile(r"\s*(?:assert_size_stride|assert_layout)\((\w+), (.*)\)$")


def line_map(text: str) -> dict[int, str]:
    """The origin of each line of a host program that has one; lines count from 1."""
    found: dict[int, str] = {}
    current = ""
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if stripped.startswith(MARK):
            current = stripped.removeprefix(MARK)
        elif stripped.startswith("return ") or not line.startswith(" "):
            current = ""
        elif current:
            found[number] = current
    return found


def explain(error: BaseException, text: str, filename: str) -> BaseException:
    """The exception to raise for `error`: the same with a note, or a clearer one for a wrong input."""
    frame, line = _innermost(error.__traceback__, filename)
    if frame is None:
        return error
    lines = text.splitlines()
    source = lines[line - 1] if 0 < line <= len(lines) else ""
    check = _CHECK.match(source)
    if isinstance(error, (AssertionError, TypeError)) and check is not None:
        variable = _given(check.group(1), lines[:line], frame)
        return _layout_error(check.group(1), variable, check.group(2), frame) or error
    origin = line_map(text).get(line)
    said = any(note.startswith(_RUNNING) for note in getattr(error, "__notes__", ()))
    if origin is not None and not said:
        error.add_note(running_note(origin, filename, line, source))
    return error


def running_note(origin: str, filename: str, line: int, source: str) -> str:
    """The note that an error gets about the line of a host program that failed."""
    return f"{_RUNNING} {origin}\n  {filename}:{line}: {source.strip()}"


def _innermost(traceback: TracebackType | None, filename: str) -> tuple[FrameType | None, int]:
    """The innermost frame of a host program: its function for a series is called by another one."""
    found: tuple[FrameType | None, int] = (None, 0)
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == filename:
            found = traceback.tb_frame, traceback.tb_lineno
        traceback = traceback.tb_next
    return found


def _given(name: str, lines: Sequence[str], frame: FrameType) -> str:
    """The input that a variable is: what a turn of a loop is given has another name there, and stands in a
    row of the table of which the loop takes the last one in each turn.

    Args:
        lines: of the program, up to the one that checks the variable.
    """
    for number in range(len(lines) - 1, -1, -1):
        turn = _TURN.match(lines[number])
        if turn is None:
            continue
        names, table = turn.group(1).rstrip(",").split(", "), turn.group(2)
        row = lines.index(f"    {table} = [") + 1 + len(frame.f_locals[table])
        return dict(zip(names, lines[row].strip("(), ").split(", "), strict=True)).get(name, name)
    return name


def _layout_error(name: str, variable: str, layout: str, frame: FrameType) -> InputLayoutError | None:
    tensor = frame.f_locals.get(name)
    name = shown_name(frame.f_globals, variable)
    if not isinstance(tensor, torch.Tensor):
        return not_a_tensor(name, tensor)
    size, stride = eval(f"({layout})", frame.f_globals, frame.f_locals)
    return layout_error(name, tensor, size, stride)


def shown_name(namespace: Mapping[str, Any], variable: str) -> str:
    """What messages call an input of a program: as its author named it, where that is known."""
    names: Mapping[str, str] = namespace.get("NAMES", {})
    return names.get(variable, variable)


def not_a_tensor(name: str, value: object) -> InputLayoutError:
    """The error for an input that should be a tensor."""
    return InputLayoutError(
        f"input {name} is {type(value).__name__} where a tensor was expected", "call it with a tensor"
    )


def layout_error(name: str, tensor: torch.Tensor, size: Any, stride: Any) -> InputLayoutError:
    """The error for an input whose size or stride is not what the program was compiled for."""
    return InputLayoutError(
        f"input {name} has size {tuple(tensor.shape)} and stride {tuple(tensor.stride())} where size"
        f" {tuple(size)} and stride {tuple(stride)} were expected",
        "call the compiled program with inputs laid out like those it was compiled with",
    )
