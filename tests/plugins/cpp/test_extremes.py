"""Running extremes whose lanes are the steps of one row: values and positions as in eager mode."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

pytestmark = pytest.mark.usefixtures("fresh_sessions")

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.int64, torch.uint8)


def rows(dtype: torch.dtype, count: int, length: int) -> torch.Tensor:
    """Rows that rise, fall, go up and down, stay, and hold zeros of both signs and what is no number."""
    steps = torch.arange(count * length).view(count, length)
    zigzag = steps + 5 * (steps % 2)
    found = [torch.randint(-50, 50, (count, length)), steps, steps.flip(-1), zigzag, steps * 0 + 3]
    made = [x.to(dtype) for x in found]
    if dtype.is_floating_point:
        mixed = made[0] / 4
        mixed[0, :] = -0.0
        mixed[0, ::3] = 0.0
        mixed[1, length // 2 :] = float("nan")
        mixed[2, [1, length - 1]] = float("nan")
        mixed[3, 5] = float("inf")
        made.append(mixed)
    return torch.cat(made)


@pytest.mark.quick(1)
@pytest.mark.parametrize("isa", ["", "avx2", "sse"])
@pytest.mark.parametrize("function", [torch.cummax, torch.cummin])
def test_along_rows(function: Callable[..., tuple[torch.Tensor, torch.Tensor]], isa: str) -> None:
    given = [rows(dtype, 4, length) for dtype in DTYPES for length in (64, 97, 333)]

    def extremes(given: list[torch.Tensor]) -> list[torch.Tensor]:
        backwards = [function(x.flip(-1), -1) for x in given[::5]]
        return [part for x in given for part in function(x, -1)] + [
            part for pair in backwards for part in pair
        ]

    options = {"backends": ["cpp"], "strict": True, **({"cpp.isa": isa} if isa else {})}
    found = torch.compile(extremes, backend="polyfuse", options=options, dynamic=False)(given)
    for mine, eager in zip(found, extremes(given), strict=True):
        torch.testing.assert_close(mine, eager, rtol=0, atol=0, equal_nan=True)
        if mine.is_floating_point():
            number = ~eager.isnan()
            assert torch.equal(mine.signbit()[number], eager.signbit()[number])


@pytest.mark.slow
def test_of_an_unknown_length() -> None:
    call = torch.compile(lambda x: torch.cummax(x, -1), backend="polyfuse", dynamic=True)
    for length in (200, 65, 7, 1):
        x = torch.randn(3, length)
        for mine, eager in zip(call(x), torch.cummax(x, -1), strict=True):
            assert torch.equal(mine, eager)
