"""Trials on a device: a candidate that breaks the device's state only loses, and what won is remembered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from polyfuse.autotune import worker as worker
from polyfuse.autotune.candidate import BuiltProgram, CallStep, Fault, Problem, Storage, Window, WorkerSetup
from polyfuse.autotune.worker import WorkerRunner
from polyfuse.base.settings import Settings
from polyfuse.compiler.reports.report import last_reports, reset_reports
from polyfuse.compiler.session import forget_sessions

pytestmark = [
    pytest.mark.gpu,
]

DEVICE = "cuda:0"
ROWS = Window(0, (2, 8), (8, 1), 0, "float32")
INDICES = Window(1, (64,), (1,), 0, "int64")
PROBLEM = Problem(
    "rows", DEVICE, "triton", (Storage("float32", DEVICE, 16), Storage("int64", DEVICE, 64, "small"))
)
# indices up to 7, of 2 rows: the device's own check ends all work on it
BAD = BuiltProgram("bad", (CallStep("aten.index_select.default", (ROWS, 0, INDICES)),))
GOOD = BuiltProgram("good", (CallStep("aten.add.Tensor", (ROWS, ROWS)),))


@pytest.fixture
def runner() -> Iterator[WorkerRunner]:
    backends = {"triton": "polyfuse_triton.backend:TritonBackend"}
    runner = WorkerRunner(lambda: WorkerSetup(Settings(), backends), 60)
    yield runner
    runner.close()


def test_what_breaks_the_device_costs_only_itself(runner: WorkerRunner) -> None:
    runner.prepare(PROBLEM)
    assert runner.first(GOOD) > 0 and runner.sample(GOOD) > 0
    with pytest.raises(Fault):
        runner.first(BAD)
    assert runner.sample(GOOD) > 0
    assert torch.ones(3, device=DEVICE).sum().item() == 3


@pytest.mark.slow
def test_a_model_is_tuned_once(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYFUSE_CACHE_DIR", str(tmp_path))
    x, w, b = (
        torch.randn(*size, device=DEVICE, dtype=torch.bfloat16) for size in ((96, 128), (80, 128), (80,))
    )

    def layer(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.softmax(F.gelu(F.linear(x, w, b)), -1)

    seen: list[list[tuple[str, str, str]]] = []
    for _ in range(2):
        forget_sessions()
        reset_reports()
        torch.compiler.reset()
        compiled = torch.compile(layer, backend="polyfuse", mode="max-autotune-no-cudagraphs")
        torch.testing.assert_close(compiled(x, w, b), layer(x, w, b), rtol=3e-2, atol=3e-2)
        decisions = [(d.kind, d.second, d.reason) for d in last_reports()[-1].decisions]
        seen.append([d for d in decisions if d[0] in ("choice", "tune")])
        monkeypatch.setattr(worker, "WorkerProcess", None)  # from now on nothing is timed
    forget_sessions()
    assert seen[0] and seen[0] == seen[1]
