"""Implementations that crash, hang, fail or compute something else lose, with one line each; the
model compiles.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch

from bad_choices import WAYS
from fake_plugins import install, plugin
from polyfuse.autotune import search as search_module
from polyfuse.autotune import worker
from polyfuse.base.settings import Settings
from polyfuse.compiler.session import forget_sessions, session_for

OPTIONS = {"backends": ["toy", "interpreter"], "tune_timeout": 2, "strict": True, "tune_verify": "drop"}
A, B, C = torch.randn(7, 5), torch.randn(5, 9), torch.randn(9)


@pytest.fixture
def bad(monkeypatch):
    point = plugin(monkeypatch, load="bad_choices:BadChoices", priority={"cpu": 1000}, options={})
    install(monkeypatch, point)
    monkeypatch.setattr(worker.WorkerProcess, "ask", patient(worker.WorkerProcess.ask))
    forget_sessions()


def patient(ask: Callable[..., Any]) -> Callable[..., Any]:
    """Let the limit of time hold for what hangs: on a busy machine, what ends may take any time."""
    hanging = f"toy way={WAYS.index('hang')}"

    def asked(process: Any, name: str, arguments: tuple[Any, ...], seconds: float) -> Any:
        hangs = any(getattr(argument, "name", "") == hanging for argument in arguments)
        return ask(process, name, arguments, seconds if hangs else 120)

    return asked


def product(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    return torch.relu(a @ b + c)


def reasons(warned: list[str]) -> dict[str, str]:
    """Why each way is not used."""
    found: dict[str, str] = {}
    for text in warned:
        name, _, rest = text.partition(" is no candidate for ")
        if not rest:
            continue
        way = WAYS[int(name.rpartition("=")[2])]
        assert way not in found, f"{way} is named twice"
        found[way] = rest.partition(": ")[2]
    return found


def test_bad_choices_for_a_matmul_lose(bad, warned, monkeypatch):
    options = {**OPTIONS, "gemm": "fastest"}
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    pid = os.getpid()
    torch.testing.assert_close(
        torch.compile(product, backend="polyfuse", options=options)(A, B, C), product(A, B, C)
    )
    # neither this process nor its random numbers are touched
    assert os.getpid() == pid
    assert torch.equal(torch.rand(3), expected)
    found = reasons(warned)
    assert set(found) == set(WAYS) - {"fine", "emit"}
    assert "SIGSEGV" in found["segfault"]
    assert "did not end within 2 seconds" in found["hang"]
    assert "its result is not that of library" in found["wrong"]
    assert "invalid argument" in found["raise"]
    assert "RuntimeError" in found["memory"]
    assert "syntax error" in found["build"]
    assert "with status 3" in found["exit"]
    known = [entry for _, entry in session_for(Settings.resolve(None, options)).tuner.timings.entries()]
    (record,) = [entry for entry in known if entry.baseline == "library"]
    assert record.about == "mm of float32[7x5] float32[5x9]"
    outcomes = {str(trial.candidate): trial for trial in record.trials}
    assert outcomes["toy way=0"].milliseconds < float("inf") and not outcomes["toy way=0"].fault
    assert outcomes["toy way=1"].milliseconds == float("inf") and outcomes["toy way=1"].fault
    times_nothing(monkeypatch, warned, options)


@pytest.mark.slow
def test_bad_configurations_of_a_kernel_lose(bad, warned):
    options = {**OPTIONS, "tune_kernels": True}
    function = torch.compile(lambda x: x.sin() + 1, backend="polyfuse", options=options)
    torch.testing.assert_close(function(A), A.sin() + 1)
    assert set(reasons(warned)) == set(WAYS) - {"fine", "emit"}


def times_nothing(monkeypatch: pytest.MonkeyPatch, warned: list[str], options: dict[str, object]) -> None:
    """A second session begins without the first one's faults, and starts no process."""
    del warned[:]
    forget_sessions()
    torch.compiler.reset()
    started: list[object] = []
    monkeypatch.setattr(worker, "WorkerProcess", started.append)
    monkeypatch.setattr(search_module, "run_trials", lambda *arguments: started.append(arguments) or {})
    torch.testing.assert_close(
        torch.compile(product, backend="polyfuse", options=options)(A, B, C), product(A, B, C)
    )
    assert not started
    assert not any("is no candidate for" in text for text in warned)


@pytest.mark.slow
def test_a_second_session_times_nothing(bad, warned, monkeypatch):
    options = {**OPTIONS, "gemm": "fastest", "tune_kernels": True}
    torch.compile(product, backend="polyfuse", options=options)(A, B, C)
    assert any("is no candidate for" in text for text in warned)
    times_nothing(monkeypatch, warned, options)


@pytest.mark.parametrize("options", [{"gemm": "fastest"}, {"tune_kernels": True}])
def test_where_no_child_can_be_started_the_model_compiles(bad, warned, monkeypatch, options):
    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(worker.subprocess, "Popen", refuse)
    function = torch.compile(product, backend="polyfuse", options={**OPTIONS, **options, "strict": False})
    torch.testing.assert_close(function(A, B, C), product(A, B, C))
    assert len([text for text in warned if "no more processes" in text]) == 1
