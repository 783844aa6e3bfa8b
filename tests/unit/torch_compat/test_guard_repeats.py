"""A guard that says what another says is left out; one that says something else is not."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch._dynamo.source import LocalSource
from torch._guards import Guard, GuardsSet

from polyfuse.torch_compat.captures import shortcuts as guard_repeats
from polyfuse.torch_compat.captures.shortcuts import shortcuts


def _check(builder: Any, guard: Any, *args: Any, **named: Any) -> None:
    """Stands for what builds a guard."""


def _added(*guards: Guard) -> list[Guard]:
    held = GuardsSet()
    with shortcuts():
        for guard in guards:
            held.add(guard)
    return list(held)


def _guard(name: str, *args: Any, **named: Any) -> Guard:
    return Guard(LocalSource(name), partial(_check, *args, **named))


def test_equal_arguments_say_the_same() -> None:
    first = _guard("x", "a", key=1, other=LocalSource("y"))
    assert _added(first, _guard("x", "a", other=LocalSource("y"), key=1)) == [first]
    bare = Guard(LocalSource("x"), _check)
    assert _added(bare, Guard(LocalSource("x"), _check)) == [bare]


def test_what_differs_is_left_in() -> None:
    guards = [
        _guard("x", 1),
        _guard("y", 1),
        _guard("x", True),
        _guard("x", 1.0),
        _guard("x", 1.0 + 0.0),
        _guard("x", [1]),
        _guard("x", [1]),
        _guard("x", key=1),
        _guard("x", LocalSource("y")),
        _guard("x", LocalSource("z")),
    ]
    different = [guard for index, guard in enumerate(guards) if index != 4]
    assert all(any(each is guard for each in _added(*guards)) for guard in different)


def test_guards_on_what_cannot_be_hashed_stay() -> None:
    class Unhashable(LocalSource):
        __hash__ = None  # type: ignore[assignment]

    said = partial(_check, Unhashable("x"))
    guards = [Guard(LocalSource("x"), _check), Guard(LocalSource("y"), said), Guard(LocalSource("z"), said)]
    assert _added(*guards) == guards


def test_a_set_that_others_changed_is_looked_at_again() -> None:
    held = GuardsSet()
    with shortcuts():
        held.add(_guard("x", 1))
        held.remove_guards_with_source(LocalSource("x"))
        held.add(_guard("x", 1))
        assert len(held) == 1
        held.inner = type(held.inner)()
        held.add(_guard("x", 1))
    assert len(held) == 1


def test_guards_that_torch_takes_out_do_not_have_all_looked_at_again(monkeypatch: Any) -> None:
    """It does so for each constant of a program, so that long programs took a square of their length."""
    held, looked = GuardsSet(), []
    meaning = guard_repeats._meaning
    monkeypatch.setattr(guard_repeats, "_meaning", lambda guard: looked.append(guard) or meaning(guard))
    with shortcuts():
        for index in range(10):
            held.add(_guard("x", index))
            held.inner.discard(next(iter(held)))
            held.add(_guard("x", index))
    assert len(held) == 1 and len(looked) == 20


def test_a_loop_over_one_list_makes_each_guard_once() -> None:
    """Results follow what guards compare, though each is made once."""
    weights = [2.0, 3.0]

    def summed(x: torch.Tensor) -> torch.Tensor:
        for _ in range(5):
            x = x * weights[0] + (weights[1] if "z" not in vars(torch) else 0)
        return x

    torch._dynamo.reset()
    compiled = torch.compile(summed, backend="polyfuse", fullgraph=True)
    x = torch.randn(4)
    torch.testing.assert_close(compiled(x), summed(x))
    weights[1] = 5.0
    torch.testing.assert_close(compiled(x), summed(x))
    weights.append(7.0)
    torch.testing.assert_close(compiled(x), summed(x))
