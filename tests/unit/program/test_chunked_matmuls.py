"""Matmuls in chunks beside collectives: as many messages as chunks, the same numbers, in a group that does
its work only when it is waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from requirements import DISTRIBUTED, has_distributed

if not has_distributed():
    pytest.skip(DISTRIBUTED, allow_module_level=True)

import delayed_group
from polyfuse.base.settings import Settings
from polyfuse.compiler.reports.explain import explain_graph
from polyfuse.compiler.reports.report import last_reports
from polyfuse.frontend.rewrites.chunk_gains import Work, best_chunking
from polyfuse.runtime.devices.registry import device_of
from polyfuse.runtime.ranks.costs import CollectiveCosts, forget_costs, use_costs

functional = torch.ops._c10d_functional
wait = functional.wait_tensor
RANKS = delayed_group.RANKS


@pytest.fixture(scope="module")
def group() -> Iterator[delayed_group.DelayedGroup]:
    found = delayed_group.start()
    yield found
    delayed_group.stop()


@pytest.fixture
def log(group: delayed_group.DelayedGroup) -> Callable[..., list[str]]:
    """Compile a function in two chunks, compare it with eager mode, and return what the group was asked."""

    def run(function: Callable[..., Any], *args: torch.Tensor, **options: Any) -> list[str]:
        torch._dynamo.reset()
        dynamic = options.pop("dynamic", None)
        given = {"backends": ["interpreter"], "strict": True, "graph_cache": False, "chunk_collectives": "2"}
        given |= {"overlap_collectives": False, **options}
        expected = function(*(x.clone() for x in args))
        compiled = torch.compile(function, backend="polyfuse", options=given, dynamic=dynamic)
        group.log.clear()
        torch.testing.assert_close(compiled(*args), expected)
        return list(group.log)

    return run


def gather(x: torch.Tensor) -> torch.Tensor:
    return wait(functional.all_gather_into_tensor(x, RANKS, "0"))


def scatter(x: torch.Tensor) -> torch.Tensor:
    return wait(functional.reduce_scatter_tensor(x, "sum", RANKS, "0"))


def total(x: torch.Tensor) -> torch.Tensor:
    return wait(functional.all_reduce(x, "sum", "0"))


def starts(log: list[str]) -> int:
    return sum(line.startswith("start") for line in log)


X, W, BIAS = torch.randn(6, 8), torch.randn(8, 16), torch.randn(16)


def test_rows_are_multiplied_as_they_arrive(log: Any) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (gather(x.sin()) @ w).relu()

    assert log(f, X, W) == ["start all_gather_coalesced"] * 2 + ["wait all_gather_coalesced"] * 2
    assert starts(log(f, X, W, chunk_collectives="off")) == 1
    # three rows of each rank cannot be halved
    assert starts(log(f, X[:3], W)) == 1


@pytest.mark.slow
def test_several_matmuls_and_what_is_saved(log: Any) -> None:
    def f(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> Any:
        whole = gather(x)
        return torch.addmm(bias, whole, w), whole @ w.cos(), whole * 2, whole

    assert starts(log(f, X, W, BIAS)) == 2


@pytest.mark.slow
def test_parts_that_are_joined_along_the_second_dimension(log: Any) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> Any:
        joined = torch.cat(gather(x).split(x.shape[0]), 1)
        return joined @ w, joined.flatten(0, 1).sum(0)

    assert starts(log(f, torch.randn(3, 4, 8), W)) == 2
    assert starts(log(lambda x, w: f(x, w)[0] + 1, torch.randn(3, 4, 8), W)) == 2


def test_operands_of_three_dimensions(log: Any) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> Any:
        return gather(x) @ w

    assert starts(log(f, torch.randn(4, 3, 8), W)) == 2


def test_columns_leave_as_they_are_known(log: Any) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return scatter(x @ w) + 1

    assert log(f, X, W) == ["start reduce_scatter_coalesced"] * 2 + ["wait reduce_scatter_coalesced"] * 2
    assert starts(log(f, X, W, chunk_collectives="4")) == 4

    def with_bias(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> Any:
        return total(torch.nn.functional.linear(x, w.t(), bias).view(2, 3, 16))

    assert log(with_bias, X, W, BIAS) == ["start all_reduce"] * 2 + ["wait all_reduce"] * 2


@pytest.mark.slow
def test_blocks_of_rows_that_are_sent_in_another_order(log: Any) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return scatter(torch.cat((x @ w).split(2, 1))) * 3

    assert starts(log(f, torch.randn(3, 4, 8), W)) == 2


def test_results_that_are_read_elsewhere_stay_whole(log: Any) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> Any:
        product = x @ w
        return scatter(product), product + 1

    assert starts(log(f, X, W)) == 1

    def columns(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return total((x @ w).t().contiguous())

    assert starts(log(columns, X, W)) == 1


@pytest.mark.quick(1)
@pytest.mark.parametrize("dynamic", (False, True))
def test_forward_and_backward(group: Any, dynamic: bool) -> None:
    from torch.distributed import _functional_collectives as collectives

    def f(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        rows = collectives.all_gather_tensor_autograd(x, 0, "0")
        made = (rows @ w).relu() @ v
        return collectives.reduce_scatter_tensor_autograd(made, "sum", 0, "0")

    options = {"backends": ["interpreter"], "strict": True, "graph_cache": False}
    results, messages = [], []
    torch._dynamo.reset()
    for run in (f, torch.compile(f, backend="polyfuse", options=options | {"chunk_collectives": "2"})):
        for rows in (6, 10):
            torch.manual_seed(0)
            x, w, v = (torch.randn(n, 8, requires_grad=True) for n in (rows, 8, 8))
            if dynamic:
                torch._dynamo.mark_dynamic(x, 0)
            group.log.clear()
            result = run(x, w, v)
            result.square().sum().backward()
            results.append((result, x.grad, w.grad, v.grad))
            messages.append(starts(group.log))
    assert messages == [4, 4, 8, 8]
    # gradients of squares are sums of hundreds of products, added up chunk by chunk
    for expected, found in zip(results[:2], results[2:], strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)


def test_equal_gathers_become_one(log: Any) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> Any:
        return gather(x) @ w, gather(x) @ w.cos(), total(x), total(x) + 1

    assert starts(log(f, X, W, chunk_collectives="off", bucket_collectives=0)) == 2

    def changed(x: torch.Tensor, w: torch.Tensor) -> Any:
        first = gather(x) @ w
        x.add_(1)
        return first, gather(x) @ w

    assert starts(log(changed, X.clone(), W, chunk_collectives="off", bucket_collectives=0)) == 2


def test_what_is_explained(log: Any) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return scatter(x @ w)

    log(f, X, W, network_bandwidth=1)
    (decision,) = [d for d in last_reports()[-1].decisions if d.kind == "chunk"]
    assert decision.reason.startswith("in 2 chunks; exposed communication by estimates: ")
    text = explain_graph(last_reports()[-1])
    assert "matmuls in chunks beside collectives" in text and decision.reason in text


def test_what_was_measured_decides(group: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cpu")
    properties = replace(device_of("cpu").properties(0), units=8)
    # a matmul of ten milliseconds, and a message that takes as long
    work = Work("all_gather", "0", device, 1e6, 0.010 * properties.operations, 1e3)
    settings = Settings()
    bandwidth = settings.with_options(network_bandwidth=100)
    assert best_chunking(work, bandwidth, (2, 4, 8)) is None  # its few processors carry messages, too
    monkeypatch.setattr(type(device_of("cpu")), "properties", lambda *_: properties)
    assert best_chunking(work, settings, (2, 4, 8)) is None  # nothing was measured
    facts = device_of("cpu").facts()
    try:
        for latency, chunks in ((1e-5, 8), (2e-3, 2), (9e-3, None)):
            rows = dict.fromkeys(CollectiveCosts.given(1000000000.0).seconds, ((1, latency), (1000000, 0.01)))
            forget_costs()
            use_costs([CollectiveCosts(delayed_group.NAME, facts, RANKS, False, rows)])
            found = best_chunking(work, settings, (2, 4, 8))
            assert (found and found.chunks) == chunks, latency
            if found is not None:
                assert found.usual == pytest.approx(0.010) and found.exposed < found.usual
        # the same messages, of which each further one was measured to take long, or to take nothing
        for further, chunks in ((1e-6, 8), (5e-4, 4), (2e-3, 2), (5e-3, None)):
            rows = dict.fromkeys(CollectiveCosts.given(1e9).seconds, ((1, 1e-5), (1000000, 0.01)))
            forget_costs()
            use_costs([CollectiveCosts(delayed_group.NAME, facts, RANKS, False, rows, further=further)])
            found = best_chunking(work, settings, (2, 4, 8))
            assert (found and found.chunks) == chunks, further
    finally:
        forget_costs()
    assert best_chunking(work, bandwidth, (2,)) is not None
    assert best_chunking(work, bandwidth, ()) is None
    assert best_chunking(work, settings.with_options(chunk_collectives="off"), (2,)) is None
