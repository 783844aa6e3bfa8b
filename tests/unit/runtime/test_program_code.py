"""Byte code that is stored beside a host program does what its text does."""

from __future__ import annotations

import traceback

import pytest

from polyfuse.runtime import program_code
from polyfuse.runtime.program_code import code_of, inputs_of, stored_code

TEXT = """
NAME = 'f'

def call(args):
    def inner():
        return 1 / args[0]

    return inner()
"""


def run(code: object) -> dict[str, object]:
    names: dict[str, object] = {}
    exec(code, names)  # type: ignore[arg-type]
    return names


def test_stored_code_is_that_of_the_text() -> None:
    for code in (code_of(TEXT, "here"), code_of(TEXT, "here", stored_code(compile(TEXT, "made", "exec")))):
        names = run(code)
        assert names["NAME"] == "f" and names["call"]([4]) == 0.25  # type: ignore[operator]


def test_its_lines_are_those_of_the_program_that_runs() -> None:
    names = run(code_of(TEXT, "<polyfuse program 7>", stored_code(compile(TEXT, "made", "exec"))))
    try:
        names["call"]([0])  # type: ignore[operator]
    except ZeroDivisionError as error:
        frames = traceback.extract_tb(error.__traceback__)[1:]
    assert [(frame.filename, frame.lineno) for frame in frames] == [
        ("<polyfuse program 7>", 8),
        ("<polyfuse program 7>", 6),
    ]


def test_code_of_another_python_is_left_alone(monkeypatch) -> None:
    stored = stored_code(compile("NAME = 'other'", "", "exec"))
    monkeypatch.setattr(program_code, "_VERSION", b"other version")
    assert run(code_of(TEXT, "here", stored))["NAME"] == "f"


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_the_table_of_inputs_is_read_from_the_text(rows: int) -> None:
    row = "    ('arg{}_1', 'tensor', 'float32', '', (2, 3), (3, 1)),\n"
    table = "".join(map(row.format, range(rows)))
    text = f"NAME = 'f'\nINPUTS = (\n{table})\n\ndef call(args):\n    raise ValueError\n"
    expected = run(compile(text, "", "exec"))
    assert inputs_of(text) == expected["INPUTS"] and len(expected["INPUTS"]) == rows
    made = run(code_of(text, "here"))
    assert "INPUTS" not in made and inputs_of("NAME = 'f'") is None
    assert made["call"].__code__.co_firstlineno == expected["call"].__code__.co_firstlineno
