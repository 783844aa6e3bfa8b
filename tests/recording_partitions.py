"""What tests of programs that are recorded in partitions share: a fresh device, compiling, operands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

import recorded_on_device
from fake_graphs import FakeDevice, fake_graph_device
from polyfuse.compiler.reports.report import reset_reports


@contextmanager
def fresh_device() -> Iterator[FakeDevice]:
    """A device that records, with nothing compiled or reported before, and nothing compiled left behind."""
    torch._dynamo.reset()
    reset_reports()
    with fake_graph_device() as made:
        yield made
    torch._dynamo.reset()


def compiled(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """`fn` with recording on; any failure of Polyfuse fails the test."""
    return recorded_on_device.compiled(fn, **{"backends": ["interpreter"], "strict": True, **options})


def same(actual: object, expected: object) -> None:
    """Fails unless both are close."""
    torch.testing.assert_close(actual, expected)


def operands(rows: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Fresh operands of `obstacle.layers`."""
    return torch.randn(rows, 4), torch.randn(4, 4)
