"""Decoders whose weights are stored with fewer bits."""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter
from typing import Any

import pytest
import torch
from polyfuse_bench import decode
from polyfuse_bench.decode import CASES, cases_of
from polyfuse_bench.narrow_layers import STORED, narrowed
from polyfuse_bench.timing import Effort
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


def test_nobody_is_compiled_again_once_all_are_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that is compiled, or recorded, in the first calls of a comparison is timed by single calls."""
    compilations: Counter[str] = Counter()

    def counting(model: nn.Module, name: str) -> Any:
        def backend(module: torch.fx.GraphModule, _: list[torch.Tensor]) -> Any:
            compilations[name] += 1
            return module.forward

        return model if name == "eager" else torch.compile(model, backend=backend, dynamic=False)

    monkeypatch.setattr(decode, "compiled", counting)
    once = dataclasses.asdict(Effort(rounds=1, min_sample_seconds=0, warmup_seconds=0))
    task = {"name": "tiny_1", "dtype": "float32", "backends": ["eager", "first", "second"], "effort": once}
    monkeypatch.setattr(decode, "read_rate", float)
    row = decode.measure(task)
    assert not row["failures"] and compilations == {"first": 1, "second": 1}
