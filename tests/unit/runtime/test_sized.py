"""Which of the programs of a graph a call runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from polyfuse.runtime.sized import SizedPrograms


def sized(
    positions: tuple[int, ...], seen: dict[str, int] | None = None
) -> SizedPrograms[Callable[..., Any]]:
    def program(key: tuple[Any, ...], sizes: tuple[Any, ...]) -> Callable[[list[Any]], Any]:
        return lambda args: (key, sizes)

    return SizedPrograms(positions, lambda sizes: tuple(n > 8 for n in sizes), program, seen)


@pytest.mark.parametrize("positions", [(0,), (2, 0)])
def test_a_program_for_each_class(positions: tuple[int, ...]) -> None:
    programs = sized(positions)
    for args in ([3, "x", 20], [4, "x", 20], [9, "x", 20], [3, "y", 20]):
        sizes = tuple(args[i] for i in positions)
        assert programs(args)(args)[0] == tuple(n > 8 for n in sizes)
    assert len(programs.programs) == 2 and programs.status.made[0] == tuple(
        [3, "x", 20][i] for i in positions
    )


def test_sizes_that_programs_write() -> None:
    seen = {"u0": 1}
    programs = sized((0,), seen)
    assert programs([3])([])[0] == (False, False)
    seen["u0"] = 9
    assert programs([3])([])[0] == (False, True)


def test_a_known_size_is_looked_up_without_a_call() -> None:
    programs, calls = sized((0,)), []
    programs([3])
    sys.setprofile(lambda frame, event, arg: calls.append(frame.f_code.co_name) if event == "call" else None)
    try:
        programs([3])
    finally:
        sys.setprofile(None)
    assert calls == ["__call__"]
