"""What autotuning decides is data in the schedule: nothing reads it back from the disk or from its text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from autotuning import with_times
from polyfuse.base.config import Config
from polyfuse.cache.timings import TimingStore
from polyfuse.compiler import stages
from polyfuse.ir.kernel import Kernel
from polyfuse.plugin import Source
from polyfuse.reference.backend import InterpreterBackend
from polyfuse.schedule import Call, Launch, Schedule

A, B = torch.randn(7, 5), torch.randn(5, 9)
WAYS = [Config.of(way=way) for way in (1, 2)]


@pytest.fixture
def emitted(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[list[Schedule], list[Config | None]]]:
    """The schedules of which code is generated, and the configurations of kernels, each of which has two."""
    schedules: list[Schedule] = []
    configs: list[Config | None] = []
    emit_kernels, emit = stages.emit_kernels, InterpreterBackend.emit

    def generating(schedule: Schedule, session: Any) -> Any:
        schedules.append(schedule)
        configs.clear()
        return emit_kernels(schedule, session)

    def generated(self: InterpreterBackend, kernel: Kernel, config: Config | None = None) -> Source:
        configs.append(config)
        plain = emit(self, kernel)
        return Source(plain.name, plain.text, plain.language, meta=str(config))

    monkeypatch.setattr(stages, "emit_kernels", generating)
    monkeypatch.setattr(InterpreterBackend, "autotunes_gemm", True)
    monkeypatch.setattr(InterpreterBackend, "configs", lambda *_: WAYS)
    monkeypatch.setattr(InterpreterBackend, "emit", generated)
    yield schedules, configs


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.relu(a @ b)


def test_a_launch_carries_the_configuration_of_the_gemm_that_was_timed(emitted, monkeypatch, tmp_path):
    times = {"library": 5.0, "interpreter way=1": 3.0, "interpreter way=2": 1.0}
    with_times(monkeypatch, tmp_path, times)(matmul, A, B)
    schedules, configs = emitted
    (step,) = schedules[-1].steps
    assert isinstance(step, Launch) and step.config == Config.of(way=2)
    assert step.choice is not None and step.choice.candidate.implementation == "interpreter"
    found = {str(trial.candidate): trial.milliseconds for trial in step.choice.trials}
    assert found.items() >= times.items()
    assert configs == [Config.of(way=2)]


def test_a_call_carries_why_the_library_does_it(emitted, monkeypatch, tmp_path):
    with_times(monkeypatch, tmp_path, {"library": 1.0})(matmul, A, B)
    call = next(step for step in emitted[0][-1].steps if isinstance(step, Call))
    assert call.choice is not None and str(call.choice.candidate) == "library"
    assert "library 1.0000 ms" in call.choice.reason


def test_a_kernel_that_was_not_timed_has_no_choice(emitted, monkeypatch, tmp_path):
    with_times(monkeypatch, tmp_path, {})(lambda a: a.sin() + 1, A)
    (step,) = emitted[0][-1].steps
    assert isinstance(step, Launch) and step.choice is None and step.config is None
    assert not step.merges


@pytest.mark.quick(1)
@pytest.mark.parametrize("again", [False, True])
def test_the_disk_is_read_at_the_start_of_a_search_alone(emitted, monkeypatch, tmp_path, again):
    run: Callable[..., Any] = with_times(monkeypatch, tmp_path, {"interpreter way=2": 1.0})
    if again:
        run(matmul, A, B)
    reads: Counter[str] = Counter()
    read = TimingStore.read

    def counted(self: TimingStore, key: str) -> Any:
        reads[key] += 1
        return read(self, key)

    monkeypatch.setattr(TimingStore, "read", counted)
    run(matmul, A, B)
    # once more after the lock was taken: another process may have measured meanwhile
    assert set(reads.values()) == {1 if again else 2}
    assert emitted[1] == [Config.of(way=2)]


def test_a_fused_launch_says_what_was_merged(emitted, monkeypatch, tmp_path):
    with_times(monkeypatch, tmp_path, {})(lambda a: torch.softmax(a, -1), A)
    (step,) = emitted[0][-1].steps
    assert isinstance(step, Launch) and len(step.merges) == len(step.nodes) - 1 > 1
    assert all(first and second and not first & second for first, second in step.merges)
    first, second = step.merges[-1]
    assert first | second == {node.name for node in step.nodes}


def test_nothing_of_a_decision_is_stored(emitted, monkeypatch, tmp_path: Path):
    with_times(monkeypatch, tmp_path, {"library": 1.0})(matmul, A, B)
    files = {path.suffix for path in (tmp_path / "timings").rglob("*") if path.is_file()}
    assert files == {".json"}
    (record,) = (record for _, record in TimingStore(tmp_path).entries())
    assert record.best is not None and record.complete and record.baseline == "library"
