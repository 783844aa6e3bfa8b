"""Time one model, forward or a whole training step's forward and backward, in this process."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from polyfuse_bench.backends import compiled
from polyfuse_bench.devices import CPU, waiter
from polyfuse_bench.models import Prepared, Size, family, flatten_outputs, prepare
from polyfuse_bench.side_by_side import side_by_side
from polyfuse_bench.tensors import relative_error
from polyfuse_bench.timing import Effort

FORWARD = "forward"
TRAIN = "train"
MODES = (FORWARD, TRAIN)


def prepared_model(task: Mapping[str, Any]) -> Prepared:
    """The model and inputs that a task names."""
    return prepare(
        family(task["name"]),
        Size(task.get("size", "real")),
        batch=task.get("batch"),
        seq=task.get("seq"),
        train=task["mode"] == TRAIN,
        dtype=getattr(torch, task.get("dtype", "float32")),
        device=task.get("device", CPU),
    )


def step(prepared: Prepared, model: nn.Module, function: Callable[..., Any], mode: str) -> Callable[[], Any]:
    """A call that runs the forward, or the forward, the loss and the gradients of all parameters."""
    inputs = prepared.inputs
    if mode == FORWARD:
        return lambda: flatten_outputs(function(**inputs))
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def forward_and_backward() -> Any:
        loss = prepared.loss(function(**inputs))
        return [loss.detach(), *torch.autograd.grad(loss, parameters, allow_unused=True)]

    return forward_and_backward


def own_error(prepared: Prepared, mode: str) -> float:
    """How far eager mode is from itself where every weight is larger by one rounding, or is not, at random.

    ReLU inputs near 0 flip gradients: no compiler that rounds otherwise can be nearer than this.
    """
    moved = copy.deepcopy(prepared.model)
    numbers = torch.Generator(next(moved.parameters()).device).manual_seed(0)
    with torch.no_grad():
        for parameter in moved.parameters():
            coins = torch.empty_like(parameter).bernoulli_(0.5, generator=numbers)
            parameter.mul_(1 + coins * torch.finfo(parameter.dtype).eps)
    still = copy.deepcopy(prepared.model)
    expected, found = (step(prepared, model, model, mode)() for model in (still, moved))
    return relative_error(found, expected)


def measure(task: Mapping[str, Any]) -> dict[str, Any]:
    """The row of `task["name"]` in `task["mode"]` for `task["backends"]`."""
    prepared, mode = prepared_model(task), task["mode"]

    def candidate(backend: str) -> Callable[[], Any]:
        # Weights are shared unless training, where batch norms keep running statistics.
        model = copy.deepcopy(prepared.model) if mode == TRAIN else prepared.model
        return step(prepared, model, compiled(model, backend), mode)

    with torch.set_grad_enabled(mode == TRAIN):
        outcome = side_by_side(
            task["backends"], candidate, Effort(**task["effort"]), wait=waiter(task.get("device", CPU))
        )
        outcome["own_error"] = own_error(prepared, mode)
    return {
        "name": task["name"],
        "group": prepared.family.kind,
        "mode": mode,
        "shapes": {name: list(value.shape) for name, value in prepared.inputs.items()},
        "dtype": task.get("dtype", "float32"),
        "batch": task.get("batch"),
        "parameters": sum(parameter.numel() for parameter in prepared.model.parameters()),
        **outcome,
    }
