"""What eager mode refuses is refused here as well, with eager mode's own error."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from lowered import check, compiled

INDEX = torch.tensor([1, 1, 3])


def refused(fn: Callable[..., Any], *args: torch.Tensor) -> None:
    with pytest.raises(RuntimeError) as eager:
        fn(*args)
    run, _ = compiled(fn)
    with pytest.raises(RuntimeError, match=re.escape(str(eager.value).splitlines()[0])):
        run(*args)


@pytest.mark.parametrize("source", [torch.ones(3, dtype=torch.bool), torch.ones(3, dtype=torch.float64)])
def test_rows_of_another_type_are_not_added(source: torch.Tensor) -> None:
    refused(lambda x, i, s: x.index_add(0, i, s), torch.zeros(4), INDEX, source)


def test_rows_of_truth_values_are_added() -> None:
    x, source = torch.tensor([True, False, False, False]), torch.tensor([True, False, True])
    check(lambda x, i, s: x.index_add(0, i, s), x, INDEX, source, native=False)


def test_rows_are_added_in_any_dimension() -> None:
    x, source = torch.randn(2, 4), torch.randn(2, 3)
    check(lambda x, i, s: (x.index_add(-1, i, s), x.index_add(1, i, s, alpha=2.5)), x, INDEX, source)
    one, two, place = torch.tensor(4.0), torch.tensor(2.0), torch.tensor(0)
    check(lambda x, i, s: x.index_add(0, i, s), one, place, two)
    check(lambda x, i, s: x.index_add(1, i, s), x, place, source[:, :1])
