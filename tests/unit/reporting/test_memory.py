from __future__ import annotations

import torch
from torch import nn

from polyfuse.reporting.eager_memory import EagerInputs, eager_memory, phase
from polyfuse.reporting.memory import peak_of


def test_the_peak_is_where_most_is_live() -> None:
    assert peak_of([(10, 0, 1), (20, 1, 2), (5, 2, None)], 4) == (30, 1)
    assert peak_of([], 0) == (0, 0)


def test_eager_mode_frees_what_nobody_reads_again() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor]:
        return (x.sin().cos().exp(),)

    trace = eager_memory(function, EagerInputs.of([torch.empty(256)]))
    assert not isinstance(trace, str)
    found = phase(trace, backward=False)
    assert [(s["buffers"], s["bytes"], s["first"]) for s in found["storages"]] == [
        (["aten.sin.default"], 1024, 0),
        (["aten.cos.default"], 1024, 1),
        (["aten.exp.default"], 1024, 2),
    ]
    assert found["peak"] == 2048, "the first is gone when the third is made"


def test_a_backward_starts_with_what_its_forward_saved() -> None:
    layer = nn.Linear(64, 64)
    x = torch.empty(8, 64)

    def function(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor]:
        return (torch.tanh(x @ weight),)

    trace = eager_memory(function, EagerInputs.of([x, layer.weight]))
    assert not isinstance(trace, str)
    forward, backward = phase(trace, False), phase(trace, True)
    assert forward["steps"] + backward["steps"] == trace.ops
    saved = [s["buffers"] for s in backward["storages"] if s["first"] == 0]
    assert ["aten.tanh.default"] in saved
    gradients = [s for s in backward["storages"] if s["last"] is None and s["bytes"] == layer.weight.nbytes]
    assert len(gradients) == 1, "the gradient of the weight outlives the backward"


def test_what_does_not_run_on_fake_tensors_has_a_reason() -> None:
    def function(x: torch.Tensor) -> tuple[float]:
        return (float(x.sum()),)

    found = eager_memory(function, EagerInputs.of([torch.ones(3)]))
    assert isinstance(found, str) and "fake tensors" in found
