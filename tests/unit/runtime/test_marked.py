"""Names of kernels in torch's profiler."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from polyfuse.runtime import record_function
from polyfuse.runtime.module import Marking


def names_of(*calls: Any) -> list[str]:
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        for call in calls:
            call()
    return [event.key for event in recorded.key_averages()]


def test_kernels_have_names_while_the_profiler_records() -> None:
    namespace: dict[str, Any] = {"mul_0": torch.mul, "later_1": None}
    marking = Marking(namespace, ("mul_0", "later_1"))
    x = torch.ones(3)

    def call() -> None:
        marking.follow()
        assert namespace["mul_0"](x, x).tolist() == [1, 1, 1]

    call()
    assert namespace["mul_0"] is torch.mul
    assert "mul_0" in names_of(call, call)
    call()
    assert namespace["mul_0"] is torch.mul


def test_a_name_costs_no_python_of_torch() -> None:
    """torch's context in Python takes ten times as long as small kernels do, and so would a trace of them."""

    def call() -> None:
        with record_function("small_0"):
            pass

    calls = []
    sys.setprofile(lambda frame, event, arg: calls.append(frame.f_code.co_name) if event == "call" else None)
    try:
        call()
    finally:
        sys.setprofile(None)
    assert calls == ["call"] and "small_0" in names_of(call)


def test_kernels_that_are_put_in_place_later_have_names_too() -> None:
    namespace: dict[str, Any] = {"add_0": None}
    marking = Marking(namespace, ("add_0",))

    def call() -> None:
        marking.follow()
        namespace["add_0"] = torch.add
        marking.follow()
        namespace["add_0"](torch.ones(2), 1)

    assert "add_0" in names_of(call)


def test_what_replaces_a_kernel_while_it_is_marked_stays() -> None:
    namespace: dict[str, Any] = {"add_0": torch.add}
    marking = Marking(namespace, ("add_0",))

    def call() -> None:
        marking.follow()
        namespace["add_0"] = torch.sub

    names_of(call)
    marking.follow()
    assert namespace["add_0"] is torch.sub


def test_a_compiled_function_shows_its_kernels() -> None:
    compiled = torch.compile(
        lambda x: torch.softmax(x, -1), backend="polyfuse", options={"backends": ["interpreter"]}
    )
    x = torch.randn(4, 8)
    compiled(x)
    assert any("exp" in name and name.startswith("fused") for name in names_of(lambda: compiled(x)))
