"""Values read at few indices given by data are computed there; losses save no logarithms of probabilities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from lowered import check, compare, compiled

from polyfuse.ir.expr import walk

F = torch.nn.functional
Function = Callable[..., Any]


def stored_elements(record: Any) -> int:
    """Elements of the largest buffer that a graph makes for itself."""
    kinds = [b for g in record.graphs for b in g.buffers.values() if b.kind == "temp"]
    return max((int(b.numel) for b in kinds), default=0)


FEW: dict[str, Function] = {
    "gather": lambda x, i: (x.exp() * 2).gather(1, i[:, None]),
    "index": lambda x, i: (x.exp() - 1)[torch.arange(x.shape[0]), i],
    "negative": lambda x, i: (x.exp() - 1)[0, i - x.shape[1]],
    "of a broadcast": lambda x, i: (x[:, :1] + torch.arange(x.shape[1])).gather(1, i[:, None]),
    "of a masked value": lambda x, i: F.pad(x * 2, (3, 2), value=7.0).gather(1, i[:, None]),
    "of a choice": lambda x, i: torch.where(x > 0, x, torch.arange(x.shape[1])).gather(1, i[:, None]),
    "of a gather": lambda x, i: x.index_select(1, i).exp().gather(1, i[:, None] % i.shape[0]),
    "of halves": lambda x, i: x.bfloat16().mul(2).gather(1, i[:, None]),
    "of single bits": lambda x, i: (x > 0).gather(1, i[:, None]),
}


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", FEW)
@pytest.mark.parametrize("dynamic", [False, True])
def test_few_elements_are_computed_where_they_are_read(name: str, dynamic: bool) -> None:
    x, i = torch.randn(6, 50), torch.tensor([0, 49, 7, 7, 30, 12])
    x[1, 49], x[2, 7] = float("nan"), float("inf")
    record = check(FEW[name], x, i, dynamic=dynamic)
    if not dynamic:
        assert stored_elements(record) < x.numel()


MANY: dict[str, Function] = {
    "all elements": lambda x, i: (x.exp() * 2).gather(1, i.expand(6, 6).repeat(1, 20)),
    "another order": lambda x, i: x.exp().roll(5, 1).gather(1, i[:, None]),
    "a stored value": lambda x, i: x.gather(1, i[:, None]),
    "no rows": lambda x, i: x[:0].exp().gather(1, i[:0, None]),
}


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", MANY)
def test_others_are_right_too(name: str) -> None:
    check(MANY[name], torch.randn(6, 50), torch.tensor([0, 49, 7, 7, 30, 12]))


def test_values_are_read_before_they_are_overwritten() -> None:
    def fn(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        picked = (x * 2).gather(1, i[:, None])
        x.add_(1)
        return picked + x.sum(1, keepdim=True)

    check(fn, torch.randn(6, 50), torch.tensor([0, 49, 7, 7, 30, 12]))


ONE_TERM: dict[str, Function] = {
    "chosen": lambda x, i: torch.where(torch.arange(50) == i[:, None], x, 0).sum(1),
    "transposed": lambda x, i: torch.where(i[:, None] == torch.arange(50), x * 2, 0.0).sum(1, keepdim=True),
    "not everywhere": lambda x, i: torch.where(
        (torch.arange(50) == i[:, None]) & (i != 7)[:, None], x, 0
    ).sum(1),
    "wider": lambda x, i: torch.where(torch.arange(50) == i[:, None], x, 0).sum(1, dtype=torch.double),
    "integers": lambda x, i: torch.where(torch.arange(50) == i[:, None], (x * 9).int(), 0).sum(1),
    "two axes": lambda x, i: torch.where(torch.arange(50) == i[:, None], x, 0).sum(),
    "depends on the axis": lambda x, i: torch.where(torch.arange(50) == x.long(), x, 0).sum(1),
    "no zero": lambda x, i: torch.where(torch.arange(50) == i[:, None], x, 1).sum(1),
}


@pytest.mark.quick(5)
@pytest.mark.parametrize("name", ONE_TERM)
def test_sums_of_one_term(name: str) -> None:
    x = torch.randn(6, 50)
    x[4, 30], x[5, 12], x[0, 3] = -0.0, float("inf"), 3.5
    record = check(ONE_TERM[name], x, torch.tensor([-1, 50, 7, 8, 30, 12]))
    kinds = record.kinds()
    assert ("Reduction" in kinds) == (name in ("two axes", "depends on the axis", "no zero"))


def test_a_sum_of_one_term_has_no_sign_where_it_is_zero() -> None:
    run, _ = compiled(lambda x, i: torch.where(torch.arange(4) == i[:, None], x, 0).sum(1))
    found = run(torch.full((2, 4), -0.0), torch.tensor([1, 3]))
    assert not torch.signbit(found).any()


Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
LOSSES: dict[str, Loss] = {
    "mean": lambda x, t: F.cross_entropy(x, t),
    "sum": lambda x, t: F.cross_entropy(x, t, reduction="sum"),
    "each": lambda x, t: F.cross_entropy(x, t, reduction="none"),
    "ignored": lambda x, t: F.cross_entropy(x, t, ignore_index=3),
    "weighted": lambda x, t: F.cross_entropy(x, t, weight=torch.arange(1.0, 11.0).to(x.dtype) / 10),
    "weighted each": lambda x, t: F.cross_entropy(
        x, t, weight=torch.arange(10.0).to(x.dtype) / 10, ignore_index=1, reduction="none"
    ),
    "one row": lambda x, t: F.cross_entropy(x[0], t[0]),
    "one row, a label in a list": lambda x, t: F.nll_loss(x[0].log_softmax(0), t[0]),
    "planes": lambda x, t: F.cross_entropy(x.reshape(2, 3, 10).permute(0, 2, 1), t.reshape(2, 3)),
    "images": lambda x, t: F.cross_entropy(
        x.reshape(1, 2, 3, 10).permute(0, 3, 1, 2), t.reshape(1, 2, 3), ignore_index=2
    ),
}


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("numerics", ["fast", "eager"])
def test_losses_save_no_logarithms(name: str, dtype: torch.dtype, numerics: str) -> None:
    loss = LOSSES[name]
    x, target = torch.randn(6, 10).mul(4).to(dtype), torch.tensor([3, 0, 9, 1, 3, 2])
    x[1, 4], x[2, 9] = float("-inf"), 60.0
    run, record = compiled(loss, numerics=numerics)
    mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    found, wanted = run(mine, target), loss(theirs, target)
    near: dict[str, float] = {} if dtype is torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    torch.testing.assert_close(found, wanted, **near)
    weight = (torch.rand(wanted.shape) + 0.5).to(dtype)
    found.backward(weight)
    wanted.backward(weight)
    torch.testing.assert_close(mine.grad, theirs.grad, **near)
    assert not record.report.fallbacks, record.report.text()
    if dtype is torch.float32 and name not in ("planes", "images"):
        forward = next(g for g in record.traced if g.kind == "forward").module.graph
        (results,) = forward.output_node().args
        made = [r.meta["val"] for r in results if isinstance(r, torch.fx.Node) and r.op != "placeholder"]
        assert all(value.numel() < x.numel() for value in made)


@pytest.mark.quick(1)
@pytest.mark.parametrize("rows", [5, 9])
def test_losses_of_any_number_of_rows(rows: int) -> None:
    run, _ = compiled(lambda x, t: F.cross_entropy(x, t, ignore_index=0), dynamic=True)
    for count in (rows, 3 * rows):
        x, target = torch.randn(count, 7), torch.randint(0, 7, (count,))
        mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        compare(run(mine, target), F.cross_entropy(theirs, target, ignore_index=0))
        F.cross_entropy(theirs, target, ignore_index=0).backward()
        run(mine, target).backward()
        torch.testing.assert_close(mine.grad, theirs.grad)


def test_indices_that_are_counted_are_no_data() -> None:
    """A window's start and the position in it: nothing is looked up, wrapped or clamped."""

    def windows(x: torch.Tensor) -> list[torch.Tensor]:
        index = torch.arange(5)[:, None] * 2 + torch.arange(4)
        return [x[:, index], x[:, 12 - index]]

    def unfold(x: torch.Tensor) -> torch.Tensor:
        return F.unfold(x, 3, padding=1, stride=2)

    for fn, x in ((windows, torch.randn(3, 13)), (unfold, torch.randn(2, 3, 9, 11))):
        loads = [e for node in check(fn, x).graph.nodes for e in walk(*node.expressions()) if e.op == "load"]
        assert loads and all(not e.indirect for e in loads)
    check(lambda x: x[:, torch.arange(6) - 3], torch.randn(3, 13))
