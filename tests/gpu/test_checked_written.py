"""Hand-written kernels of the GPU plugins under the option `check`, on a real device."""

from __future__ import annotations

import pytest
import torch

from triton_flex import CASES
from triton_written import FLEX_DEFECTS, faults_of_checked_attention, faults_of_checked_sorting

pytestmark = pytest.mark.gpu


def test_sorting() -> None:
    """Honest kernels are silent, and a defect in each frame is named and mended."""
    assert faults_of_checked_sorting("triton", "cuda") == []


@pytest.mark.parametrize("name", CASES)
def test_honest_attention(name: str) -> None:
    assert faults_of_checked_attention([name], False, "cuda") == []


@pytest.mark.parametrize("name", dict.fromkeys(case for case, *_ in FLEX_DEFECTS))
def test_defects_in_attention(name: str) -> None:
    assert faults_of_checked_attention([name], True, "cuda") == []


def test_recordings_launch_without_looking() -> None:
    """What was compared before is recorded as it is."""
    torch._dynamo.reset()
    x = torch.randn(4, 50, device="cuda")
    options = {"check": "first", "device_graphs": True, "graph_cache": False}
    run = torch.compile(lambda x: torch.sort(x * 2, stable=True), backend="polyfuse", options=options)
    for _ in range(5):
        x.normal_()
        for got, right in zip(run(x), torch.sort(x * 2, stable=True), strict=True):
            assert torch.equal(got, right)
