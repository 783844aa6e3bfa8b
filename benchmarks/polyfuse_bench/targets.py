"""What compile time and memory are measured on: a model family, or one function of the kernel set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from polyfuse_bench.backends import compiled
from polyfuse_bench.devices import CPU, moved
from polyfuse_bench.kernels import KERNELS, runner
from polyfuse_bench.model_timing import TRAIN, prepared_model, step

KERNEL_PREFIX = "kernel:"


@dataclass(frozen=True)
class Target:
    """A workload before anything is compiled: `start(backend)` compiles lazily and answers the call."""

    start: Callable[[str], Callable[[], Any]]
    gradients: bool


def target(task: Mapping[str, Any]) -> Target:
    """Build what `task` names; eager code has run once, so that library start-up is not counted."""
    made = _kernel(task) if task["name"].startswith(KERNEL_PREFIX) else _model(task)
    with torch.set_grad_enabled(made.gradients):
        made.start("eager")()
    return made


def _kernel(task: Mapping[str, Any]) -> Target:
    case = KERNELS[task["name"].removeprefix(KERNEL_PREFIX)]
    torch.manual_seed(0)
    arguments = moved(case.arguments(task.get("kernel_size", "large")), task.get("device", CPU))
    return Target(lambda backend: runner(case, compiled(case.function, backend), arguments), case.backward)


def _model(task: Mapping[str, Any]) -> Target:
    prepared = prepared_model(task)
    model, mode = prepared.model, task["mode"]
    return Target(lambda backend: step(prepared, model, compiled(model, backend), mode), mode == TRAIN)
