"""Backends that raise, wherever they can: the next one takes over, with one warning."""

from __future__ import annotations

import pytest
import torch

from polyfuse.base.errors import UnsupportedError
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


@pytest.mark.parametrize("method", ["__init__", "claims", "emit", "describe", "build", "load"])
def test_another_takes_its_place(install, warned, method):
    install(raising(method))
    torch.testing.assert_close(torch.compile(f, backend="polyfuse")(X), f(X))
    (text,) = warned
    assert "'toy'" in text and "is broken" in text


@pytest.mark.parametrize("method", ["group", "can_fuse"])
def test_what_cannot_be_replaced_runs_in_eager_mode(install, warned, method):
    install(raising(method))
    torch.testing.assert_close(torch.compile(two_kernels, backend="polyfuse")(X), two_kernels(X))
    (text,) = warned
    assert "eager mode" in text and "is broken" in text


def two_kernels(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x.sin(), -1).sum(0)


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
        torch.compile(f, backend="polyfuse")(X)
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
