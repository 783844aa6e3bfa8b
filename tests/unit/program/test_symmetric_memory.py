"""Sums through symmetric memory: which are chosen, and that they equal eager mode, by the operator's plain
form in a group that does its work only when it is waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from requirements import DISTRIBUTED, has_distributed

if not has_distributed():
    pytest.skip(DISTRIBUTED, allow_module_level=True)

import delayed_group
from polyfuse.compiler.reports.report import last_reports
from polyfuse.torch_compat import groups, symmetric

functional = torch.ops._c10d_functional
wait = functional.wait_tensor
RANKS = delayed_group.RANKS
X, W = torch.randn(6, 8), torch.randn(8, 16)


@pytest.fixture(scope="module")
def group() -> Iterator[delayed_group.DelayedGroup]:
    found = delayed_group.start()
    yield found
    delayed_group.stop()


@pytest.fixture
def chosen(group: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, int]]:
    """Compile a function with symmetric memory in its group, compare it with eager mode, and say which
    rewrites applied."""
    from polyfuse.frontend.rewrites import symmetric as rewrites

    monkeypatch.setattr(rewrites, "symmetric_groups", lambda: ("0",))
    monkeypatch.setattr(symmetric, "is_supported", lambda value, name: name == "0" and value.dim() > 0)

    def run(function: Callable[..., Any], *args: torch.Tensor, **options: Any) -> dict[str, int]:
        torch._dynamo.reset()
        given = {"backends": ["interpreter"], "strict": True, "graph_cache": False}
        given |= options
        expected = function(*(x.clone() for x in args))
        compiled = torch.compile(function, backend="polyfuse", options=given)
        torch.testing.assert_close(compiled(*args), expected)
        rewrites = last_reports()[-1].rewrites
        return {name: count for name, count in rewrites if name.startswith("symmetric")}

    return run


def gather(x: torch.Tensor) -> torch.Tensor:
    return wait(functional.all_gather_into_tensor(x, RANKS, "0"))


def total(x: torch.Tensor) -> torch.Tensor:
    return wait(functional.all_reduce(x, "sum", "0"))


def test_short_sums(chosen: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return total(x @ w).relu() + 1

    assert chosen(f, X, W) == {"symmetric-sums": 1}
    monkeypatch.setattr(symmetric, "LARGEST_SUM", 6 * 16 * 4 - 1)
    assert chosen(f, X, W) == {}


def test_it_can_be_turned_off_and_takes_no_other_collective(chosen: Any) -> None:
    function = lambda x, w: total(gather(x) @ w)  # noqa: E731
    assert chosen(function, X, W) == {"symmetric-sums": 1}
    assert chosen(function, X, W, symmetric_memory="off") == {}


def test_what_is_supported(group: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    half = torch.empty(4, 8, dtype=torch.bfloat16, device="meta")
    monkeypatch.setattr(symmetric, "symmetric_groups", lambda: ("0",))
    assert not symmetric.is_supported(half, "0")  # on no GPU

    class OnGpu:
        device, dtype, shape = torch.device("cuda", 0), torch.bfloat16, (4, 8)

        def numel(self) -> int:
            return 32

        def element_size(self) -> int:
            return 2

    value: Any = OnGpu()
    assert symmetric.is_supported(value, "0")
    assert not symmetric.is_supported(value, "1")
    value.shape = (4, 7)
    assert not symmetric.is_supported(value, "0")
    value.shape, value.dtype = (4, 8), torch.float32
    assert not symmetric.is_supported(value, "0")


def test_groups_for_which_symmetric_memory_was_enabled(group: Any) -> None:
    from torch.distributed import _symmetric_memory

    assert groups.symmetric_groups() == ()
    with _symmetric_memory._test_mode():
        assert groups.symmetric_groups() == ("0",)
