"""What surrounds a call: modes and options, grad modes, autocast, threads, memory, resets."""

from __future__ import annotations

import gc
import resource
import weakref

import pytest
import torch
from torch.autograd import forward_ad

from polyfuse.base.errors import InvalidOptionError
from polyfuse.compiler.session import _SESSIONS

X = torch.randn(8, 64)


def f(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * 2, -1) + 1


def check(**arguments: object) -> None:
    torch.compiler.reset()
    torch.testing.assert_close(torch.compile(f, backend="polyfuse", **arguments)(X), f(X))


@pytest.mark.parametrize(
    "mode",
    [
        "default",
        "reduce-overhead",
        pytest.param("max-autotune", marks=pytest.mark.slow),
        pytest.param("max-autotune-no-cudagraphs", marks=pytest.mark.slow),
    ],
)
def test_modes(mode, warned):
    check(mode=mode)
    assert not warned


def test_an_unknown_mode_lists_the_known_ones():
    with pytest.raises(Exception, match="max-autotune"):
        check(mode="fastest")


def test_an_unknown_option_names_the_nearest():
    with pytest.raises(Exception, match="did you mean numerics"):
        check(options={"numeric": "eager"})
    with pytest.raises(Exception, match="numerics"):
        check(options={"numerics": "sloppy"})
    with pytest.raises(Exception, match=r"did you mean cpp\.isa"):
        check(options={"cpp.issa": "avx2"})


def test_an_option_error_is_shown_as_it_is():
    """Not wrapped by Dynamo, and without its frames."""
    with pytest.raises(InvalidOptionError) as caught:
        check(options={"numeric": "eager"})
    assert str(caught.value) == "option 'numeric' is unknown; did you mean numerics?"
    assert caught.traceback[-1].name == "compile_fx_graph"


def test_a_misspelt_name_in_disable_is_warned_about(warnings_seen):
    check(options={"disable": ["cppp"]})
    (warned,) = [text for text in warnings_seen() if "cppp" in text]
    assert "not installed; did you mean cpp?" in warned


def test_an_unknown_backend_names_the_nearest():
    with pytest.raises(Exception, match="did you mean cpp"):
        check(options={"backends": ("cp",)})


def used() -> set[str]:
    return {backend.name for session in _SESSIONS.values() for backend in session.backends("cpu")}


def test_the_environment_chooses(monkeypatch):
    monkeypatch.setenv("POLYFUSE_BACKENDS", "interpreter")
    check()
    assert used() == {"interpreter"}


def test_the_environment_disables(monkeypatch):
    monkeypatch.setenv("POLYFUSE_DISABLE", "cpp,halide")
    check()
    assert used() == {"interpreter"}


def test_reset_forgets_sessions(monkeypatch):
    check()
    assert used() == {"cpp", "interpreter"}
    torch.compiler.reset()
    assert not _SESSIONS


@pytest.mark.usefixtures("interpreted_kernels")
def test_inference_mode():
    compiled = torch.compile(f, backend="polyfuse")
    with torch.inference_mode():
        torch.testing.assert_close(compiled(X), f(X))
    x = X.clone().requires_grad_()
    compiled(x).sum().backward()
    with torch.no_grad():
        torch.testing.assert_close(compiled(X), f(X))


@pytest.mark.usefixtures("interpreted_kernels")
def test_autocast():
    model = torch.nn.Sequential(torch.nn.Linear(64, 16), torch.nn.GELU(), torch.nn.LayerNorm(16))
    compiled = torch.compile(model, backend="polyfuse", options={"strict": True})
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual, expected = compiled(X), model(X)
    assert actual.dtype is expected.dtype
    torch.testing.assert_close(actual, expected, atol=3e-2, rtol=3e-2)
    torch.testing.assert_close(compiled(X), model(X))


def test_kernels_keep_to_the_number_of_threads():
    x = torch.randn(512, 1024)
    compiled = torch.compile(f, backend="polyfuse", options={"strict": True})
    expected = f(x)
    for threads in (1, 2, 1):
        torch.set_num_threads(threads)
        torch.testing.assert_close(compiled(x), expected)
        assert torch.get_num_threads() == threads


def test_calls_do_not_add_up():
    compiled = torch.compile(f, backend="polyfuse", options={"strict": True})
    x = torch.randn(64, 4096)
    for _ in range(20):
        compiled(x)
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(1000):
        compiled(x)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 8 * 1024  # kilobytes; one result alone has a thousand


def test_results_and_inputs_are_let_go():
    compiled = torch.compile(f, backend="polyfuse", options={"strict": True})
    x = torch.randn(8, 64)
    held = [weakref.ref(x), weakref.ref(compiled(x))]
    del x
    gc.collect()
    assert [ref() for ref in held] == [None, None]


@pytest.mark.usefixtures("interpreted_kernels")
@pytest.mark.quick(1)
@pytest.mark.parametrize("before", [False, True])
def test_tangents_of_forward_mode_are_preserved(before, warned):
    """Compiled code knows nothing of them: such a call is eager mode's, and others are not."""
    compiled = torch.compile(f, backend="polyfuse")
    x, tangent = torch.randn(3, 5), torch.randn(3, 5)
    if before:
        compiled(x)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, tangent)
        found, expected = (forward_ad.unpack_dual(function(dual)) for function in (compiled, f))
        torch.testing.assert_close(found.primal, expected.primal)
        torch.testing.assert_close(found.tangent, expected.tangent)
    assert any("forward-mode" in text for text in warned)
    torch.testing.assert_close(compiled(x), f(x))


def test_forward_mode_inside_is_compiled(warned):
    def tangent(x):
        return torch.func.jvp(f, (x,), (x * 2,))

    torch.testing.assert_close(torch.compile(tangent, backend="polyfuse", fullgraph=True)(X), tangent(X))
    assert not warned
