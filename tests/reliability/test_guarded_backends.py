"""Ten kinds of faults in every method of a backend: one warning that names plugin and method, the next
backend instead, never the graph in eager mode, and never the end of the process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from faults import FAULTS
from polyfuse.base.errors import PolyfuseError
from polyfuse.base.settings import Settings
from polyfuse.compiler.reports.report import last_reports
from polyfuse.plugin import Backend, No, TargetInfo, Yes
from polyfuse.plugin.session.guarded_backend import METHODS, guard
from polyfuse.reference.backend import InterpreterBackend

X = torch.randn(4, 6)


def f(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x.sin(), -1).sum(0)


def faulty(method: str, fault: Callable[[], Any]) -> type[Backend]:
    """The interpreter, but for one method, which counts its calls."""
    calls: list[str] = []

    def broken(self: object, *args: object, **kwargs: object) -> object:
        calls.append(method)
        return fault()

    return type("OnTrial", (InterpreterBackend,), {method: broken, "calls": calls})


NEXT = ("claims", "emit", "load", "describe")
"""Methods without which a backend makes no kernel."""
ASKED = (*NEXT, "build", "target_info", "machine")
"""Methods of which something is asked for every graph that is compiled."""
SHORT = [
    kind if kind in ("an exit", "None") else pytest.param(kind, marks=pytest.mark.slow) for kind in FAULTS
]
"""Each graph that is compiled takes a while; the table of all methods and faults is below."""
NOT_AN_ERROR = {("build", kind) for kind in ("None", "nonsense", "an answer that ends the process")}
"""What a method may answer."""


@pytest.mark.quick(4)
@pytest.mark.parametrize("kind", SHORT)
@pytest.mark.parametrize("method", ASKED)
def test_a_fault_costs_one_warning_and_no_graph(install, warned, method, kind):
    made = faulty(method, FAULTS[kind])
    install(made)
    run = torch.compile(f, backend="polyfuse", options={"backends": ["toy", "interpreter"]})
    torch.testing.assert_close(run(X), f(X))
    report = last_reports()[-1]
    assert report.launches, "the graph runs in eager mode"
    if not made.calls:
        assert method == "machine" and not warned
        return
    if (method, kind) in NOT_AN_ERROR:
        return
    (text,) = warned
    assert "'toy'" in text and f"`{method}`" in text and "eager mode" not in text
    if method in NEXT:
        assert "toy" not in {launch.backend for launch in report.launches}


ARGUMENTS: dict[str, tuple[object, ...]] = {
    "neighbours": (None, None),
    "estimate": (None, None),
    "preferred_gemm": (None, {}),
    "prepacks_gemm": (None, {}),
    "epilogue_reduction_width": (None, "sum", "rows"),
    "build": ((), None),
    "review": (None, ""),
} | dict.fromkeys(("worker_options", "extra_files", "synchronize", "machine", "describe"), ())
EMPTY = {"build", "synchronize"}
"""Methods that answer nothing."""
MAY_BE_NONE = {"estimate", "host"}


@pytest.mark.quick(160)
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_guarded(method, kind, strict):
    """An exit is never raised; with `strict`, an error is raised as it is."""
    reported: list[tuple[str, str]] = []
    made = guard(
        faulty(method, FAULTS[kind])(Settings(strict=strict)),
        lambda name, error, doing: reported.append((name, doing)),
    )
    made.name = "toy"
    arguments = ARGUMENTS.get(method, ("cpu",))
    fine = (method in EMPTY and callable(FAULTS[kind]) and kind in ("None", "nonsense")) or (
        method in EMPTY and kind == "an answer that ends the process"
    )
    if fine or (method in MAY_BE_NONE and kind == "None"):
        assert getattr(made, method)(*arguments) is None and not reported
        return
    row = METHODS[method]
    if row.instead is None or strict:
        with pytest.raises(Exception) as caught:
            getattr(made, method)(*arguments)
        assert not reported
        if kind in ("None", "nonsense") or "end" in kind.split()[-3:]:
            assert isinstance(caught.value, PolyfuseError) and f"`{method}`" in str(caught.value)
        return
    answer = getattr(made, method)(*arguments)
    assert reported == [("toy", f"running its method `{method}`")]
    assert isinstance(answer, (No, Yes, TargetInfo, dict, int, tuple, type(None)))


def test_every_method_of_a_backend_has_a_guard():
    public = {
        name
        for name, value in vars(Backend).items()
        if callable(value) and not name.startswith("_") and not isinstance(value, type)
    }
    assert public == set(METHODS)


def test_a_guarded_backend_is_what_it_was():
    plain = InterpreterBackend(Settings())
    made = guard(plain, lambda *_: None)
    assert made is plain and isinstance(made, InterpreterBackend)
    assert type(made).__name__ == "InterpreterBackend"
    assert type(made).packed_width is Backend.packed_width, "what a class does not define needs no guard"
    assert guard(made, lambda *_: None) is made and type(made).__mro__[1] is InterpreterBackend
    assert type(made)(Settings()).describe() == made.describe()
