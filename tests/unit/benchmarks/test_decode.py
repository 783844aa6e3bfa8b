"""Decoders whose weights are stored with fewer bits."""

from __future__ import annotations

import copy

import pytest
import torch
from polyfuse_bench.decode import CASES, cases_of
from polyfuse_bench.narrow_layers import STORED, narrowed
from torch import nn


@pytest.mark.parametrize(("stored", "error"), [("int8", 1e-2), ("int4", 0.15)])
def test_narrow_layers_are_near_what_they_were(stored: str, error: float) -> None:
    model = nn.Sequential(nn.Linear(256, 384, bias=False), nn.Sequential(nn.Linear(384, 64, bias=False)))
    x = torch.randn(2, 256)
    narrow = narrowed(copy.deepcopy(model), stored)
    assert not any(isinstance(module, nn.Linear) for module in narrow.modules())
    with torch.no_grad():
        wanted = model(x)
        assert (narrow(x) - wanted).norm() / wanted.norm() < error
    held = sum(t.nbytes for t in narrow.state_dict().values())
    assert held < sum(t.nbytes for t in model.state_dict().values()) * (0.3 if stored == "int8" else 0.17)


def test_weights_are_compared_on_the_cpu_and_batches_on_devices() -> None:
    assert cases_of("cpu") == [f"two_layers_{s}" for s in ("float32", "bfloat16", *STORED)]
    assert not {name for name in cases_of("cuda") if CASES[name].stored}
