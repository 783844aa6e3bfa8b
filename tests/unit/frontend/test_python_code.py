"""Functions as text: alike where they do the same, different wherever something that they read differs."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from polyfuse.frontend.python_code import Unreadable, function_text

SCALE = 2
LIMITS = {"low": 0.5, "high": [1, 2]}


def helper(x: Any) -> Any:
    return x * SCALE


def made(text: str, **names: Any) -> Any:
    """A function from its source, with these global names."""
    space: dict[str, Any] = {"torch": torch, "math": math, "operator": operator, "os": os, **names}
    exec(f"def f(x, *rest):\n    {text}", space)
    return space["f"]


def closing(value: Any) -> Callable[[Any], Any]:
    return lambda x: [x + value for _ in range(2)]


ALIKE: list[Callable[[], Any]] = [
    lambda: made("return helper(x) + math.pi", helper=made("return x * scale", scale=2)),
    lambda: closing({"a", "b", "c", "d"}),
    lambda: closing({"d", "c", "b", "a"}),
    lambda: partial(closing(1.5), 3),
    lambda: made("return torch.ops.aten.sin.default if x else torch.nn.functional.relu"),
    lambda: made("return f(x - 1) if x else limits['high']", limits=LIMITS),
]


@pytest.mark.parametrize("make", ALIKE)
def test_functions_that_do_the_same(make):
    assert function_text(make()) == function_text(make())


def test_sets_in_any_order():
    first, second = ({str(n) for n in numbers} for numbers in (range(40), range(39, -1, -1)))
    assert function_text(closing(first)) == function_text(closing(second))


DIFFERENT: list[tuple[Any, Any]] = [
    (closing(1), closing(1.0)),
    (closing([1, 2]), closing((1, 2))),
    (closing(0.0), closing(-0.0)),
    (closing(made("return x + 1")), closing(made("return x + 2"))),
    (
        made("return helper(x)", helper=helper),
        made("return helper(x)", helper=made("return x * scale", scale=2)),
    ),
    (made("return m.floor(x)", m=torch), made("return m.floor(x)", m=math)),
    (made("return x + n", n=1), made("return x + n", n=2)),
    (made("return x + n", n=1), made("return x + n")),
    (made("return x[n]", n={"a": 1, "b": 2}), made("return x[n]", n={"b": 2, "a": 1})),
    (made("return torch.sin(x)"), made("return torch.cos(x)")),
    (made("return [x for _ in range(1)]"), made("return [x for _ in range(2)]")),
    (partial(helper, 1), partial(helper, 2)),
    (made("return op.sin.default", op=torch.ops.aten), made("return op.cos.default", op=torch.ops.aten)),
]


@pytest.mark.parametrize("pair", DIFFERENT, ids=range(len(DIFFERENT)))
def test_functions_that_differ(pair):
    first, second = map(function_text, pair)
    assert first != second


class Callback:
    def __call__(self, x: Any) -> Any:
        return x


REFUSED = {
    "an object": Callback(),
    "a method": [].append,
    "an object that is read": made("return c(x)", c=Callback()),
    "a class": made("return c(x)", c=Callback),
    "a tensor": made("return x + t", t=torch.zeros(1)),
    "an import": made("import math; return math.pi"),
    "a module that is passed around": made("m = math; return m.pi"),
    "operators by name": made("return getattr(torch.ops.aten, x)"),
    "a file": made("return open(x)"),
    "the environment": made("return os.environ['HOME']"),
    "a function of the system": made("return os.getcwd()"),
    "code that is made": made("return eval('x')"),
    "a variable that is set": made("global SCALE; SCALE = x"),
    "an attribute that is not there": made("return math.nothing"),
    "an attribute of a function": made("return helper.scale", helper=helper),
    "a switch of torch": made("return torch.cuda.is_available()"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_text(name):
    with pytest.raises(Unreadable):
        function_text(REFUSED[name])


def test_a_function_of_torch_that_was_replaced_is_refused(monkeypatch):
    monkeypatch.setattr(torch, "sin", helper)
    text = function_text(made("return torch.sin(x)"))
    assert "torch.sin is @" in text, "its code is followed as that of any other function"
