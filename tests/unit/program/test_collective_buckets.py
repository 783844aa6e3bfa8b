"""Small collectives are joined: fewer messages, the same numbers, in a group that plays two ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from requirements import DISTRIBUTED, has_distributed

if not has_distributed():
    pytest.skip(DISTRIBUTED, allow_module_level=True)

import delayed_group

functional = torch.ops._c10d_functional
wait = functional.wait_tensor
RANKS = delayed_group.RANKS


@pytest.fixture(scope="module")
def group() -> Iterator[delayed_group.DelayedGroup]:
    found = delayed_group.start()
    yield found
    delayed_group.stop()


@pytest.fixture
def starts(group: delayed_group.DelayedGroup) -> Callable[..., list[str]]:
    """Compile a function, compare it with eager mode, and return which collectives it started."""

    def run(function: Callable[..., Any], *args: torch.Tensor, **options: Any) -> list[str]:
        torch._dynamo.reset()
        mine, theirs = ([a.clone() for a in args] for _ in range(2))
        expected = function(*theirs)
        group.log.clear()
        given = {"backends": ["interpreter"], "strict": True, "graph_cache": False, **options}
        dynamic = given.pop("dynamic", None)
        actual = torch.compile(function, backend="polyfuse", options=given, dynamic=dynamic)(*mine)
        torch.testing.assert_close(actual, expected)
        torch.testing.assert_close(mine, theirs)
        storages = [a.untyped_storage().data_ptr() for a in actual]
        assert len({*storages}) == len(storages), "results have memory of their own"
        return [
            line.removeprefix("start ").removesuffix("_coalesced")
            for line in group.log
            if line.startswith("start")
        ]

    return run


def gather(x: torch.Tensor) -> torch.Tensor:
    return functional.all_gather_into_tensor(x, RANKS, "0")


def scatter(x: torch.Tensor) -> torch.Tensor:
    return functional.reduce_scatter_tensor(x, "sum", RANKS, "0")


def total(x: torch.Tensor, op: str = "sum") -> torch.Tensor:
    return functional.all_reduce(x, op, "0")


A, B, C = torch.randn(3, 4), torch.randn(2, 6), torch.randn(5)
X = torch.randn(2, 6)


def layers(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Any:
    """Weights are gathered layer by layer."""
    x = x @ wait(gather(b)).t()
    x = x.sin() @ wait(gather(a)).view(4, -1)
    return x, wait(gather(c * 2)) + 1


def test_all_gathers_start_with_the_first(starts: Any) -> None:
    assert starts(layers, X, A, B, C) == ["all_gather"]
    assert starts(layers, X, A, B, C, bucket_collectives=0) == ["all_gather"] * 3


def gradients(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> Any:
    """Each is reduced as soon as it is known."""
    first = wait(scatter((x.t() @ x).sin()))
    second = wait(scatter((a.t() @ a).cos()))
    return first / RANKS, second / RANKS, wait(scatter(b.t() * 1.0))


def test_reduce_scatters_start_with_the_last(starts: Any) -> None:
    assert starts(gradients, X, A, B) == ["reduce_scatter"]


def test_sums_of_one_kind(starts: Any) -> None:
    def f(x: torch.Tensor, a: torch.Tensor, c: torch.Tensor) -> Any:
        first, other = wait(total(x + 1)), wait(total(c, "avg"))
        return first, wait(total(a.t() * 2)), other, wait(total(c.sin())) * 3, wait(total(c.sin(), "avg"))

    assert starts(f, X, A, C) == ["all_reduce"] * 2


def test_what_needs_a_result_starts_later(starts: Any) -> None:
    def f(x: torch.Tensor, a: torch.Tensor, c: torch.Tensor) -> Any:
        first = wait(total(x))
        return first, wait(total(a * first.sum())), wait(total(c))

    assert starts(f, X, A, C) == ["all_reduce"] * 2

    def g(a: torch.Tensor, b: torch.Tensor) -> Any:
        first = wait(gather(a))
        return first + 1, wait(gather(b * first.sum()))

    assert starts(g, A, B) == ["all_gather"] * 2


def test_other_types_and_larger_ones_stay_apart(starts: Any) -> None:
    def f(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Any:
        return wait(total(a)), wait(total(b)), wait(total(c))

    assert starts(f, A, A.double(), A.to(torch.int32)) == ["all_reduce"] * 3
    large = torch.randn(200 << 10)
    assert starts(f, large, large + 1, A, bucket_collectives=1) == ["all_reduce"] * 2


def test_nothing_moves_across_what_is_written(starts: Any) -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> Any:
        first = wait(total(a))
        torch.ops.polyfuse_buckets.note(b)
        return first, wait(total(b + 1))

    library = torch.library.Library("polyfuse_buckets", "FRAGMENT")
    library.define("note(Tensor(a!) x) -> ()")
    library.impl("note", lambda x: (x.add_(1), None)[1], "CompositeExplicitAutograd")
    library.impl("note", lambda x: None, "Meta")
    try:
        assert starts(f, A, B) == ["all_reduce"] * 2
    finally:
        library._destroy()


@pytest.mark.slow
def test_sizes_that_vary_stay_apart(starts: Any) -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> Any:
        return wait(total(a)) + 1, wait(total(b)) + 1

    assert starts(f, A, B, dynamic=True) == ["all_reduce"] * 2


def test_what_several_read(starts: Any) -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> Any:
        first, second = wait(total(a)), wait(total(b))
        shared = first.sum() + second.sum()
        return first + shared, second * shared, first.t() @ first

    assert starts(f, A, B) == ["all_reduce"]
