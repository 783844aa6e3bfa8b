"""A loop that reads an input under a mask, in one kernel with the store that overwrites this input."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F


def _function(
    a: torch.Tensor, b: torch.Tensor, index: torch.Tensor, c: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    copy = a.clone()
    copy.select(0, 17).mul_(b)
    F.relu(b, inplace=True)
    total = a.sum(0, keepdim=True)
    first, _ = copy.split((55, 41), 0)
    left, right = first.split((14, 41), 0)
    left.index_add_(0, index, c)
    return total, right


@pytest.mark.parametrize("backend", ["interpreter", "cpp"])
def test_the_store_waits_for_the_loop(backend: str) -> None:
    given = [torch.randn(96), torch.tensor(-1.5), torch.tensor([3]), torch.randn(1)]
    mine = [x.clone() for x in given]
    torch._dynamo.reset()
    found = torch.compile(_function, backend="polyfuse", options={"backends": [backend]})(*mine)
    torch.testing.assert_close(found, _function(*given))
    torch.testing.assert_close(mine, given)
