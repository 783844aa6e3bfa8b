"""What a session's tried share: time, memory of what was measured, one lock for all processes."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from autotuning import best_of, record
from polyfuse.autotune import gemm_choice, tuner
from polyfuse.autotune import search as search_module
from polyfuse.autotune.candidate import CallStep
from polyfuse.autotune.tuner import Tuner
from polyfuse.autotune.worker import WorkerRunner
from polyfuse.base.settings import Settings
from polyfuse.cache.timings import TimingStore
from polyfuse.compiler.reports.report import last_reports, reset_reports
from polyfuse.compiler.session import forget_sessions, session_for
from polyfuse.plugin import Config
from polyfuse.plugin.session.guarded_backend import guard
from polyfuse.reference.backend import InterpreterBackend
from polyfuse.runtime.devices.registry import device_of
from polyfuse.torch_compat.devices.host_switches import HOST_SWITCHES

A, B = torch.randn(7, 5), torch.randn(5, 9)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(InterpreterBackend, "autotunes_gemm", True)
    forget_sessions()
    reset_reports()
    torch.compiler.reset()
    yield
    forget_sessions()


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The problems of tried, which the first candidate wins."""
    problems: list[Any] = []

    def fake(runner: Any, problem: Any, candidates: Any, *_: Any) -> Mapping[str, float]:
        problems.append(problem)
        return {c.name: 1.0 + i for i, c in enumerate(candidates)}

    monkeypatch.setattr(search_module, "run_trials", fake)
    return problems


def options(tmp_path: Path, **more: object) -> dict[str, object]:
    return {
        "backends": ["interpreter"],
        "gemm": "fastest",
        "strict": True,
        "tune_in_process": True,
        "deterministic": "off",
        "cache_dir": str(tmp_path),
        **more,
    }


def compiled(function: Any, tmp_path: Path, **more: object) -> Any:
    return torch.compile(function, backend="polyfuse", options=options(tmp_path, **more))


def a_tuner(tmp_path: Path, **more: object) -> Tuner:
    return session_for(Settings.resolve(None, options(tmp_path, **more))).tuner


def test_equal_problems_are_one(tmp_path, timed):
    def function(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Any:
        return torch.relu(a @ b), torch.relu(c @ b), (a * 2) @ b

    compiled(function, tmp_path)(A, B, torch.randn(7, 5))
    # the last one reads what was just computed, which is another thing to time
    assert len(timed) == 2


def test_a_repeated_operand_is_one_tensor(tmp_path, monkeypatch):
    calls: list[CallStep] = []

    def fake(runner: Any, problem: Any, candidates: Any, *_: Any) -> Mapping[str, float]:
        calls.extend(c.steps[0] for c in candidates if c.name == "library")
        return {c.name: 1.0 for c in candidates}

    monkeypatch.setattr(search_module, "run_trials", fake)
    square, other = torch.randn(6, 6), torch.randn(6, 6)
    compiled(lambda a, b: a @ b, tmp_path)(square, other)
    compiled(lambda a: a @ a, tmp_path)(square)
    different, same = ([arg.storage for arg in call.args] for call in calls)
    assert len(set(different)) == 2 and len(set(same)) == 1


def test_a_task_has_nothing_in_it_that_others_do_for_other_calls(tmp_path, timed):
    def function(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Any:
        first = torch.nn.functional.gelu(a @ b)
        return (first / first.sum(-1, keepdim=True)) @ c, first

    compiled(function, tmp_path)(A, B, torch.randn(9, 11))
    counts = {problem.about: {s.count for s in problem.storages} for problem in timed}
    first, second = (counts[f"mm of float32[7x{k}] float32[{k}x{n}]"] for k, n in ((5, 9), (9, 11)))
    # the second may compute the quotient, which shares a kernel with what follows the first
    assert 9 * 11 not in first and 5 * 9 in second


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("get", "put", "other"),
    [
        (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "medium"),
        (*HOST_SWITCHES["oneDNN"], False),
    ],
    ids=["precision", "oneDNN"],
)
def test_what_won_under_other_switches_is_timed_again(tmp_path, timed, get, put, other):
    before = get()
    for value in (before, other, before):
        torch.compiler.reset()
        put(value)
        try:
            compiled(torch.mm, tmp_path)(A, B)
        finally:
            put(before)
    assert len(timed) == 2


def test_a_view_with_an_offset(tmp_path, timed):
    compiled(lambda a, b: a[2:] @ b, tmp_path)(A, B)
    assert timed[0].storages


def test_the_time_for_autotuning_may_be_used_up(tmp_path, timed):
    session = a_tuner(tmp_path, max_autotune_seconds=1)
    session.spent = 2.0
    torch.testing.assert_close(compiled(torch.mm, tmp_path, max_autotune_seconds=1)(A, B), A @ B)
    assert timed == []
    (decision,) = [d for d in last_reports()[-1].decisions if d.kind == "choice"]
    assert decision.second == "library" and "max_autotune_seconds" in decision.reason


def test_time_may_run_out_while_candidates_are_built(tmp_path, timed, monkeypatch):
    clock = itertools.count(0, 100)
    monkeypatch.setattr(tuner, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    torch.testing.assert_close(compiled(torch.mm, tmp_path, max_autotune_seconds=50)(A, B), A @ B)
    assert timed == []
    (decision,) = [d for d in last_reports()[-1].decisions if d.kind == "choice"]
    assert decision.second == "library" and "max_autotune_seconds" in decision.reason


def test_the_key_has_what_times_depend_on(tmp_path, monkeypatch):
    one = a_tuner(tmp_path)
    backend = one.backend("interpreter")
    key = one.key("kernel", (backend,), "cpu")
    assert key == one.key("kernel", (backend,), "cpu")
    others = {
        one.key("other", (backend,), "cpu"),
        one.key("kernel", (backend,), "cpu", {"around": "more"}),
        a_tuner(tmp_path, tune_verify="drop").key("kernel", (backend,), "cpu"),
    }
    monkeypatch.setattr(tuner, "threads", lambda: 77)
    others.add(one.key("kernel", (backend,), "cpu"))
    assert key not in others and len(others) == 4


def test_the_device_says_which_switches_do_not_decide_how_fast_it_is(tmp_path, monkeypatch):
    one = a_tuner(tmp_path)
    cpu = type(device_of("cpu"))
    keys = []
    for which in ("a", "b"):
        monkeypatch.setattr(cpu, "switches", lambda self, which=which: {"library": 1, "current": which})
        keys.append(one.key("kernel", (one.backend("interpreter"),), "cpu"))
    assert keys[0] != keys[1], "no switch is left out by its name"
    monkeypatch.setattr(cpu, "timeless_switches", frozenset({"current"}))
    keys = [one.key("kernel", (one.backend("interpreter"),), "cpu")]
    monkeypatch.setattr(cpu, "switches", lambda self: {"library": 1, "current": "c"})
    assert keys == [one.key("kernel", (one.backend("interpreter"),), "cpu")]


def test_estimates_say_which_of_many_are_built(tmp_path, monkeypatch):
    session = a_tuner(tmp_path, tune_candidates=3)
    backend = session.backend("interpreter")
    sizes = [7, 1, 9, 3, 5, 1]
    monkeypatch.setattr(InterpreterBackend, "configs", lambda self, kernel: [Config.of(n=n) for n in sizes])
    assert [c.get("n") for c in session.configs(backend, None)] == [7, 1, 9]  # type: ignore[arg-type]
    monkeypatch.setattr(InterpreterBackend, "estimate", lambda self, kernel, config: 10.0 + config.get("n"))
    # the baseline stays
    assert [c.get("n") for c in session.configs(backend, None)] == [7, 1, 3]  # type: ignore[arg-type]
    monkeypatch.setattr(InterpreterBackend, "estimate", lambda self, kernel, config: float(config.get("n")))
    # what is guessed to be far slower than the best is not built
    assert [c.get("n") for c in session.configs(backend, None)] == [7, 1]  # type: ignore[arg-type]

    def fails(self: Any, kernel: Any, config: Config) -> float:
        raise ValueError("no idea")

    class Failing(InterpreterBackend):
        estimate = fails

    guesser = guard(Failing(Settings()), lambda *fault: None)
    monkeypatch.setattr(Failing, "configs", lambda self, kernel: [Config.of(n=n) for n in sizes])
    assert [c.get("n") for c in session.configs(guesser, None)] == [7, 1, 9]  # type: ignore[arg-type]


def test_what_is_known_to_be_faster_is_not_asked_for_where_roundings_count(tmp_path, monkeypatch):
    asked: list[str] = []
    monkeypatch.setattr(gemm_choice, "_known", lambda tuner, graph, decisions: asked.append(graph.name) or {})
    for numerics, times in (("eager", 0), ("fast", 1)):
        torch.compiler.reset()
        options = {"gemm": "known", "numerics": numerics}
        torch.testing.assert_close(compiled(torch.mm, tmp_path, **options)(A, B), A @ B)
        assert len(asked) == times


def test_the_process_that_times_starts_early_only_where_nothing_is_known(tmp_path, monkeypatch):
    started: list[str] = []
    monkeypatch.setattr(WorkerRunner, "start", lambda self: started.append("child"))
    a_tuner(tmp_path / "a", gemm="library", tune_in_process=False).expect()
    a_tuner(tmp_path / "a", tune_in_process=True).expect()
    assert started == []
    a_tuner(tmp_path / "a", tune_in_process=False).expect()
    assert started == ["child"]
    TimingStore(tmp_path / "b").write("ab", record({"x": 1.0}))
    a_tuner(tmp_path / "b", tune_in_process=False).expect()
    assert started == ["child"]


def _hold(root: str, started: Any, looked: Any) -> None:
    with TimingStore(Path(root)).exclusive(10):
        started.set()
        looked.wait(60)
        time.sleep(0.2)  # the other asks for the lock meanwhile
        TimingStore(Path(root)).write("ab", record({"x": 1.0}))


def test_processes_measure_one_after_another(tmp_path):
    context = multiprocessing.get_context("fork")
    started, looked = context.Event(), context.Event()
    other = context.Process(target=_hold, args=(str(tmp_path), started, looked))
    other.start()
    assert started.wait(60)
    store = TimingStore(tmp_path)
    assert store.read("ab").best is None
    looked.set()
    with store.exclusive(60):
        assert best_of(store.read("ab")) == "x"
    other.join()


def test_a_lock_that_is_not_released_is_passed(tmp_path):
    with TimingStore(tmp_path).exclusive(0), TimingStore(tmp_path).exclusive(0.05):
        pass


def test_what_is_known_can_be_listed_and_forgotten(tmp_path):
    store = TimingStore(tmp_path)
    store.write("ab12", record({"x": 1.0}, "a sum"))
    store.write("cd34", record({"y": 2.0}, complete=False))
    assert {key: m.about for key, m in store.entries()} == {"ab12": "a sum", "cd34": ""}
    store.forget("ab12")
    store.forget("ab12")
    assert [key for key, _ in store.entries()] == ["cd34"]


def test_searches_are_logged(tmp_path, timed):
    log = tmp_path / "tune.jsonl"
    compiled(torch.mm, tmp_path, tune_log=str(log))(A, B)
    (line,) = log.read_text().splitlines()
    assert json.loads(line)["problem"] == "mm of float32[7x5] float32[5x9]"


def test_what_was_measured_decides_again_in_another_session(tmp_path, timed):
    compiled(torch.mm, tmp_path, graph_cache=False)(A, B)
    assert len(timed) == 1
    forget_sessions()
    torch.compiler.reset()
    torch.testing.assert_close(compiled(torch.mm, tmp_path, graph_cache=False)(A, B), A @ B)
    first, second = ([d for d in r.decisions if d.kind == "choice"] for r in last_reports()[-2:])
    assert len(timed) == 1 and first == second and first
    # what is forgotten is measured again
    store = TimingStore(tmp_path)
    store.forget(next(store.entries())[0])
    forget_sessions()
    torch.compiler.reset()
    compiled(torch.mm, tmp_path, graph_cache=False)(A, B)
    assert len(timed) == 2
