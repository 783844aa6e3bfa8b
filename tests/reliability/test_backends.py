"""Backends that raise, wherever they can: the next one takes over, with one warning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from polyfuse.base.errors import UnsupportedError, mark_from_model
from polyfuse.compiler.reports.explain import explain
from polyfuse.compiler.reports.report import last_reports
from polyfuse.ir.interpreter.interpret import run_kernel
from polyfuse.reference.backend import InterpreterBackend

X = torch.randn(4, 6)


def f(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() + 1).sum(0)


class Broken(RuntimeError):
    pass


def raising(method: str) -> type:
    """The interpreter, but for one method."""

    def broken(self: object, *args: object, **kwargs: object) -> object:
        raise Broken(f"{method} is broken")

    return type("OnTrial", (InterpreterBackend,), {method: broken})


@pytest.mark.quick(2)
@pytest.mark.parametrize("method", ["__init__", "claims", "emit", "describe", "build", "load"])
def test_another_replaces_it(install, warned, method):
    install(raising(method))
    torch.testing.assert_close(torch.compile(f, backend="polyfuse")(X), f(X))
    (text,) = warned
    assert "'toy'" in text and "is broken" in text


@pytest.mark.quick(3)
@pytest.mark.parametrize("method", ["__init__", "claims", "emit", "describe", "build", "load"])
def test_strict_raises(install, method):
    install(raising(method))
    with pytest.raises(Exception, match="is broken"):
        torch.compile(f, backend="polyfuse", options={"strict": True})(X)


@pytest.mark.parametrize("strict", [False, True])
def test_a_kernel_that_is_refused_goes_to_another_without_a_warning(install, warned, strict):
    class OnTrial(InterpreterBackend):
        def emit(self, kernel, config=None):
            raise UnsupportedError("this kernel is not for me", "ask another")

    install(OnTrial)
    torch.testing.assert_close(torch.compile(f, backend="polyfuse", options={"strict": strict})(X), f(X))
    assert not warned


def test_a_launch_that_raises_names_the_operator(install):
    class OnTrial(InterpreterBackend):
        def load(self, folder):
            def kernel(*operands: object) -> None:
                raise Broken("the launch is broken")

            return dict.fromkeys(super().load(folder), kernel)

    install(OnTrial)
    with pytest.raises(Broken, match="the launch") as caught:
        torch.compile(f, backend="polyfuse", options={"strict": True})(X)
    notes = " ".join(caught.value.__notes__)
    assert "The compiled program was running" in notes and "sin" in notes


def test_one_that_declines_is_named_with_the_reason(install, warned):
    from polyfuse.base.errors import BackendUnavailableError

    class OnTrial(InterpreterBackend):
        def __init__(self, settings):
            raise BackendUnavailableError("there is no such processor here", "buy one")

    install(OnTrial)
    torch.testing.assert_close(torch.compile(f, backend="polyfuse")(X), f(X))
    (text,) = warned
    assert "'toy'" in text and "buy one" in text


def failing(launch: Callable[[Any, tuple[Any, ...]], None]) -> type:
    """The interpreter, with launches of one's own: called with the kernel and its operands."""

    class OnTrial(InterpreterBackend):
        def load(self, folder):
            def one(kernel: Any) -> Any:
                return lambda *operands: launch(kernel, operands)

            return {key: one(kernel) for key, kernel in super().load(folder).items()}

    return OnTrial


def test_a_launch_that_raises_goes_to_the_next_backend(install, warned):
    calls: list[object] = []

    def launch(kernel, operands):
        calls.append(kernel)
        raise Broken("the device is busy")

    install(failing(launch))
    run = torch.compile(f, backend="polyfuse")
    for _ in range(3):
        torch.testing.assert_close(run(X), f(X))
    torch.testing.assert_close(torch.compile(f, backend="polyfuse", dynamic=False)(X), f(X))
    assert len(calls) == 1  # remembered for the rest of the process
    (text,) = warned
    assert "'toy'" in text and "the device is busy" in text and "backend 'cpp' replaces it" in text


def test_a_launch_that_raises_is_raised_with_strict(install):
    def launch(kernel, operands):
        raise Broken("the device is busy")

    install(failing(launch))
    with pytest.raises(Broken):
        torch.compile(f, backend="polyfuse", options={"strict": True})(X)


def test_what_is_the_models_fault_is_raised(install, warned):
    def launch(kernel, operands):
        raise mark_from_model(IndexError("index 9 is out of range"))

    install(failing(launch))
    with pytest.raises(IndexError, match="index 9"):
        torch.compile(f, backend="polyfuse")(X)
    assert not warned


@pytest.mark.quick(4)
@pytest.mark.parametrize("check", ["off", "first"])
@pytest.mark.parametrize(
    "error",
    [
        KeyboardInterrupt(),
        SystemExit(3),
        mark_from_model(IndexError("index 9 is out of range")),
        torch.OutOfMemoryError("no memory left"),
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
        TimeoutError("the alarm of the caller"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_no_other_kernel_can_help_is_raised_as_it_is(install, warned, error, check):
    """And nothing is remembered of the kernel: the next call launches it."""
    errors = [error]

    def launch(kernel, operands):
        if errors:
            raise errors.pop()
        run_kernel(kernel.kernel, operands)

    install(failing(launch))
    run = torch.compile(f, backend="polyfuse", options={"check": check})
    with pytest.raises(type(error)) as caught:
        run(X)
    assert caught.value is error
    torch.testing.assert_close(run(X), f(X))
    assert not warned and last_reports()[-1].launches[0].backend == "toy"


@pytest.mark.parametrize("check", ["off", "first"])
def test_an_error_of_the_device_that_stays_is_raised(install, warned, check):
    """After an illegal address on a GPU, whatever is asked of it raises: no other kernel can be launched."""
    state = {"broken": False}

    def launch(kernel, operands):
        state["broken"] = True
        raise Broken("an illegal memory access was encountered")

    def synchronize(self):
        if state["broken"]:
            raise Broken("an illegal memory access was encountered")

    install(type("OnTrial", (failing(launch),), {"synchronize": synchronize}))
    with pytest.raises(Broken, match="illegal"):
        torch.compile(f, backend="polyfuse", options={"check": check})(X)
    assert not warned and last_reports()[-1].launches[0].backend == "toy"


@pytest.mark.parametrize("check", ["off", "first"])
def test_the_report_names_what_replaced_a_kernel(install, warned, check):
    def launch(kernel, operands):
        raise Broken("the device is busy")

    install(failing(launch))
    torch.compile(f, backend="polyfuse", options={"check": check})(X)
    (found,) = last_reports()[-1].launches
    assert (
        found.backend == "cpp"
        and "toy failed to launch (Broken: the device is busy)" in found.provider.reason
    )
    assert "the device is busy" in explain(last_reports())


@pytest.mark.quick(1)
@pytest.mark.parametrize("touches", [False, True])
def test_a_launch_that_raises_may_have_overwritten_what_it_read(install, warned, touches):
    """Where it had begun to, the call cannot be saved; the next one is."""

    def launch(kernel, operands):
        if touches:
            operands[0].view(-1)[0] = 77
        raise Broken("half way")

    def update(x):
        x.mul_(2)
        return x + 1

    install(failing(launch))
    run = torch.compile(update, backend="polyfuse")
    x = X.clone()
    if touches:
        with pytest.raises(Broken) as caught:
            run(x)
        assert any("from the next call on" in note for note in caught.value.__notes__)
    x = X.clone()
    torch.testing.assert_close(run(x), X * 2 + 1)
    torch.testing.assert_close(x, X * 2)
    assert len(warned) == 1
