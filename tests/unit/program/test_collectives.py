"""Compiled programs that talk to other processes, in a group that does its work only when it is waited for:
whatever takes the memory of a collective that still runs gives wrong numbers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from requirements import DISTRIBUTED, has_distributed

if not has_distributed():
    pytest.skip(DISTRIBUTED, allow_module_level=True)

import delayed_group
from polyfuse.compiler.reports.explain import explain_graph
from polyfuse.compiler.reports.report import last_reports

functional = torch.ops._c10d_functional
wait = functional.wait_tensor

OVERLAPPED = {"overlap_collectives": True, "overlap_memory": 1000, "network_bandwidth": 1}


@pytest.fixture(scope="module")
def group() -> Iterator[delayed_group.DelayedGroup]:
    found = delayed_group.start()
    yield found
    delayed_group.stop()


@pytest.fixture
def check(group: delayed_group.DelayedGroup) -> Callable[..., list[str]]:
    """Return a function that compares a compiled function with eager mode, also with collectives that are
    overlapped as far as can be, and says in what order the group was asked without that.
    """

    def once(function: Callable[..., Any], *args: torch.Tensor, **options: Any) -> list[str]:
        torch._dynamo.reset()
        mine, theirs = ([a.clone() for a in args] for _ in range(2))
        expected = function(*theirs)
        group.log.clear()
        usual = {"strict": True, "graph_cache": False, "overlap_collectives": False, "bucket_collectives": 0}
        given = {"backends": ["interpreter"], **usual} | options
        actual = torch.compile(function, backend="polyfuse", options=given)(*mine)
        torch.testing.assert_close(actual, expected)
        torch.testing.assert_close(mine, theirs)
        return list(group.log)

    def run(function: Callable[..., Any], *args: torch.Tensor, **options: Any) -> list[str]:
        order = once(function, *args, **options)
        moved = once(function, *args, **OVERLAPPED, **options)
        starts = [line for line in order if line.startswith("start")]
        assert starts == [line for line in moved if line.startswith("start")] and len(order) == len(moved)
        return order

    return run


def test_what_a_collective_writes_stays_until_it_is_read(check: Any) -> None:
    def function(x: torch.Tensor) -> Any:
        first = wait(functional.all_reduce(x + 1, "sum", "0"))
        second = functional.all_reduce(x @ x, "sum", "0")
        meanwhile = (x * 7) @ x
        return first.cos() @ wait(second) + meanwhile, meanwhile

    log = check(function, torch.randn(8, 8))
    assert log == ["start all_reduce", "wait all_reduce"] * 2


@pytest.mark.quick(1)
@pytest.mark.parametrize("options", ({}, {"memory_pools": True}, {"inplace": False}, {"size_asserts": False}))
def test_what_a_collective_reads_stays_until_the_wait(check: Any, options: dict[str, Any]) -> None:
    def function(x: torch.Tensor) -> Any:
        gathered = functional.all_gather_into_tensor(x.sin(), 2, "0")
        scattered = functional.reduce_scatter_tensor(x.cos(), "sum", 2, "0")
        changed = functional.all_to_all_single(x.exp(), [4, 4], [4, 4], "0")
        # of the same size as what is read, and made and dropped while it is
        for _ in range(3):
            x = (x @ x).tanh()
        return x, wait(gathered) * 2, wait(scattered) * 2, wait(changed) * 2

    log = check(function, torch.randn(8, 8), **options)
    assert [line.split()[0] for line in log] == ["start"] * 3 + ["wait"] * 3


def test_lists_of_tensors(check: Any) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        sums = functional.all_reduce_coalesced([x * 2, y * 2], "sum", "0")
        gathered = functional.all_gather_into_tensor_coalesced([x + 1, y + 1], 2, "0")
        parts = functional.reduce_scatter_tensor_coalesced([x - 1, y - 1], "sum", 2, "0")
        x, y = (x @ x).sin(), (y @ y).sin()
        return x, y, *(wait(t) + 1 for t in (*sums, *gathered, *parts))

    check(function, torch.randn(4, 4), torch.randn(6, 6))


def test_an_operand_that_is_needed_later_stays(check: Any) -> None:
    def function(x: torch.Tensor) -> Any:
        y = x @ x
        total = functional.all_reduce(y, "sum", "0")
        z = y * 2
        return wait(total) + z, y

    check(function, torch.randn(5, 5))


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", ("all_reduce", "broadcast"))
def test_operands_that_are_not_row_major(check: Any, name: str) -> None:
    def function(x: torch.Tensor) -> Any:
        rest = ("sum", "0") if name == "all_reduce" else (0, "0")
        results = [getattr(functional, name)(t, *rest) for t in (x.t(), x.sin().t(), x[:, ::2], x[1:])]
        y = (x @ x).tanh()
        return y, *(wait(result) * 2 for result in results)

    check(function, torch.randn(6, 6))


def test_views_of_a_result_that_runs(check: Any) -> None:
    def function(x: torch.Tensor) -> Any:
        total = functional.all_reduce(x + 1, "sum", "0")
        gathered = functional.all_gather_into_tensor(x + 1, 2, "0")
        y = (x @ x).sin()
        return y, wait(total.t()) * 2, wait(gathered.view(2, 6, 6)[0]) * 3, wait(gathered.view(-1)[3:]) * 2

    check(function, torch.randn(6, 6))


def test_an_input_is_changed_in_its_memory(check: Any) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        torch.distributed.all_reduce(x)
        return x * 2

    check(function, torch.randn(3, 4))
    calls = last_reports()[-1].calls
    assert calls == ("_c10d_functional.all_reduce_.default", "_c10d_functional.wait_tensor.default")


def test_an_input_that_the_caller_also_gets_holds_no_result(check: Any) -> None:
    def function(x: torch.Tensor) -> Any:
        total = wait(functional.all_reduce(x, "sum", "0"))
        x.copy_(total)
        return total, x + 1

    check(function, torch.randn(3, 4))


def test_what_runs_holds_no_scatter(check: Any) -> None:
    def function(x: torch.Tensor, where: torch.Tensor) -> Any:
        y = x.exp()
        gathered = functional.all_gather_into_tensor(y, 2, "0")
        put = y.index_put((where,), x.new_zeros(()))
        return put * 2, wait(gathered) + 1

    check(function, torch.randn(6, 4), torch.tensor([1, 3]))


def test_empty_tensors_are_communicated_too(check: Any) -> None:
    def function(x: torch.Tensor) -> Any:
        return wait(functional.all_reduce(x[:0] + 1, "sum", "0")), wait(
            functional.all_to_all_single(x[:0] * 2, [0, 0], [0, 0], "0")
        )

    log = check(function, torch.randn(6, 4))
    assert log == ["start all_reduce", "wait all_reduce", "start all_to_all", "wait all_to_all"]


def test_what_nobody_reads_is_communicated(check: Any) -> None:
    """Other processes take part in it."""

    def function(x: torch.Tensor) -> torch.Tensor:
        wait(functional.all_reduce(x * 3, "sum", "0"))
        return x + 1

    assert check(function, torch.randn(4)) == ["start all_reduce", "wait all_reduce"]


def test_a_collective_that_is_complete_when_it_returns(check: Any) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        moved = torch.ops._dtensor.shard_dim_alltoall(x * 2, 0, 1, "0")
        return moved + x.sum()

    assert check(function, torch.randn(4, 6)) == ["start all_to_all", "wait all_to_all"]


@pytest.mark.skipif(
    not hasattr(functional, "isend"), reason="this torch has no functional messages between two processes"
)
def test_messages(check: Any) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        sent = functional.isend(y, 1, 0, "0")
        received = functional.irecv(x.new_empty(8, 8), 1, 0, "0")
        z = ((x @ x).tanh() @ x).tanh()
        wait(sent)
        return wait(received) * 2 + z

    assert check(function, torch.randn(8, 8)) == ["start send", "start receive", "wait send", "wait receive"]


def test_complex_numbers(check: Any) -> None:
    def function(x: torch.Tensor) -> Any:
        first = functional.all_reduce(x * 2, "sum", "0")
        second = functional.all_gather_into_tensor(x + 1, 2, "0")
        third = functional.all_reduce(x.t(), "sum", "0")
        return wait(first) + 1, wait(second) * 2, wait(third) * 3

    check(function, torch.randn(4, 6, dtype=torch.complex64), strict=False)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float64, torch.int64, torch.uint8))
def test_single_numbers_and_other_types(check: Any, dtype: torch.dtype) -> None:
    def function(x: torch.Tensor) -> Any:
        total = functional.all_reduce(x.sum(dtype=x.dtype), "sum", "0")
        row = x[:1].expand(3, 6)
        # torch 2.11 refuses in eager mode what has no memory for each of its numbers
        given = row if torch.__version__ >= (2, 12) else row.contiguous()
        wide = functional.all_gather_into_tensor(given, 2, "0")
        return wait(total) + 1, wait(wide) + x[0]

    check(function, torch.randint(0, 9, (4, 6)).to(dtype))


@pytest.mark.slow
def test_dynamic_sizes(check: Any) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        total = functional.all_reduce(x.sin(), "sum", "0")
        gathered = functional.all_gather_into_tensor(x.cos(), 2, "0")
        return (x @ x.t()).sum() + wait(total).sum() + wait(gathered).sum()

    x = torch.randn(6, 4)
    torch._dynamo.mark_dynamic(x, 0)
    check(function, x)


def test_what_does_not_depend_on_a_collective_is_computed_beside_it(
    group: delayed_group.DelayedGroup,
) -> None:
    seen: list[str] = []

    @torch.library.custom_op("polyfuse_tests::note", mutates_args=())
    def note(x: torch.Tensor) -> torch.Tensor:
        group.log.append("compute")
        return x + 1

    note.register_fake(lambda x: torch.empty_like(x))

    def function(x: torch.Tensor) -> torch.Tensor:
        total = wait(functional.all_reduce(x + 1, "sum", "0"))
        return total * torch.ops.polyfuse_tests.note(x)

    x = torch.randn(64, 64)
    for options in ({"overlap_collectives": False}, OVERLAPPED):
        torch._dynamo.reset()
        group.log.clear()
        given = {"backends": ["interpreter"], "graph_cache": False} | options
        run = torch.compile(function, backend="polyfuse", options=given)
        torch.testing.assert_close(run(x), (x + 1) * 2 * (x + 1))
        seen.append(" ".join(line.split()[0] for line in group.log))
    assert seen == ["start wait compute", "start compute wait"]
    decision = next(d for d in last_reports()[-1].decisions if d.kind == "overlap")
    assert "by estimates they hide" in decision.reason
    assert "overlapped collectives:" in explain_graph(last_reports()[-1])


KINDS = ("sum", "gather", "scatter", "exchange", "wait", "wait", "sin", "product", "add", "put")


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", range(12))
def test_any_program(check: Any, seed: int) -> None:
    """Of matrices of one size, so that memory is used again wherever it can be."""
    dice = random.Random(seed)
    steps = [dice.choice(KINDS) for _ in range(18)]
    picks = [dice.random() for _ in range(99)]

    def function(x: torch.Tensor) -> list[torch.Tensor]:
        pick = iter(picks)
        done, running = [x.sin(), x.cos()], []

        def one() -> torch.Tensor:
            return done[int(next(pick) * len(done))]

        for step in steps:
            if step == "sum":
                running.append(functional.all_reduce(one(), "sum", "0"))
            elif step == "gather":
                running.append(functional.all_gather_into_tensor(one().clone(), 2, "0")[4:12])
            elif step == "scatter":
                taken = torch.cat((one(), one()))
                running.append(functional.reduce_scatter_tensor(taken, "sum", 2, "0"))
            elif step == "exchange":
                running.append(functional.all_to_all_single(one().clone(), [4, 4], [4, 4], "0"))
            elif step == "wait" and running:
                done.append(wait(running.pop(int(next(pick) * len(running)))))
            elif step == "product":
                done.append((one() @ one()).tanh())
            elif step == "add":
                done.append(one() + one().t())
            elif step == "put":
                done.append(one().index_put((torch.tensor([1]),), one()[2]))
            else:
                done.append(one().sin())
            if len(done) > 4:
                done.pop(int(next(pick) * len(done)))
        return [*done, *(wait(result) for result in running)]

    # small ones are joined in every second program
    check(function, torch.randn(8, 8), bucket_collectives=4 * (seed % 2))


class Gathered(torch.autograd.Function):
    """All shares of a tensor; its gradient is summed and shared."""

    @staticmethod
    def forward(ctx: Any, share: torch.Tensor) -> torch.Tensor:
        return wait(functional.all_gather_into_tensor(share, delayed_group.RANKS, "0"))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return wait(functional.reduce_scatter_tensor(grad, "sum", delayed_group.RANKS, "0"))


class Summed(torch.autograd.Function):
    """A sum over processes, and of its gradients."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return wait(functional.all_reduce(x, "sum", "0"))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return wait(functional.all_reduce(grad, "sum", "0"))


def trained(
    run: Callable[..., torch.Tensor], *given: torch.Tensor
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """A loss and its gradients."""
    weights = [w.clone().requires_grad_() for w in given]
    loss = run(*weights)
    return loss.detach(), torch.autograd.grad(loss, weights)


@pytest.mark.quick(1)
@pytest.mark.parametrize("options", ({}, OVERLAPPED))
def test_training(group: delayed_group.DelayedGroup, options: dict[str, Any]) -> None:
    def forward(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return Summed.apply((x @ Gathered.apply(w)).relu()).square().mean()

    torch._dynamo.reset()
    given = torch.randn(3, 8), torch.randn(4, 5)
    run = torch.compile(forward, backend="polyfuse", options=options)
    torch.testing.assert_close(trained(run, *given), trained(forward, *given))


def test_gradients_of_weights_are_computed_beside_sums_of_other_gradients(
    group: delayed_group.DelayedGroup,
) -> None:
    def forward(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        for w in weights:
            x = Summed.apply(x @ w).tanh()
        return x.sum()

    torch._dynamo.reset()
    given = [torch.randn(16, 16) / 8 for _ in range(4)]
    options = {"backends": ["interpreter"], "graph_cache": False} | OVERLAPPED
    run = torch.compile(forward, backend="polyfuse", options=options)
    torch.testing.assert_close(trained(run, *given), trained(forward, *given))
    short = {"aten.mm.out": "product", "_c10d_functional.all_reduce_.default": "start"}
    calls = [short.get(op, "wait") for op in last_reports()[-1].calls]
    assert calls[:4] == ["start", "wait", "product", "start"], "nothing is there yet beside the first"
    assert calls[4:7] == ["product", "wait", "product"] and calls[7:10] == ["start", "product", "wait"]
