"""A slow value that is read twice for one other value is computed with it, where memory takes longer."""

from __future__ import annotations

import pytest
import torch
from lowered import check

from polyfuse.plugin import TargetInfo


def once(x: torch.Tensor, up: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
    gate = torch.sigmoid(x)
    return torch.cat([step * up * gate * (1 + x * (1 - gate)), step], 1)


def silu_step(x: torch.Tensor, up: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
    """As a gated layer's derivative, with both halves beside each other."""
    gate = torch.sigmoid(x)
    return torch.cat([step * up * gate * (1 + x * (1 - gate)), step * x * gate], 1)


def apart(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    gate = torch.sigmoid(x)
    return gate * y, gate + z


def summed(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    gate = torch.sigmoid(x)
    return gate * y + gate.sum() * z


def stored(function: object, points: int, dynamic: bool = False) -> int:
    """How many slow values are stored for their readers."""
    args = [torch.randn(6, 10) for _ in range(3)]
    found = check(function, *args, dynamic=dynamic, target=TargetInfo(recomputed_points=points))  # type: ignore[arg-type]
    return sum("costly" in reason for reason in found.report.realized.values())


@pytest.mark.parametrize("dynamic", (False, True))
def test_readers_that_meet(dynamic: bool) -> None:
    assert stored(once, 0, dynamic) == 0
    assert stored(once, 10**9, dynamic) == 1


def test_readers_that_do_not_meet() -> None:
    for function in (silu_step, apart, summed):
        assert stored(function, 0) == 1
