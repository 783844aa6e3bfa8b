"""Positions given by data that do not exist: an error where asked for, else nothing outside a tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

READS: dict[str, Callable[..., torch.Tensor]] = {
    "brackets": lambda x, i: x[i] * 2,
    "brackets at the second": lambda x, i: x.t()[:, i],
    "embedding": lambda x, i: F.embedding(i, x),
    "index_select": lambda x, i: x.index_select(0, i),
    "gather": lambda x, i: x.gather(0, i[:, None].expand(-1, 4)),
}
WRITES: dict[str, Callable[..., torch.Tensor]] = {
    "scatter": lambda x, i: x.scatter(0, i[:, None], 1.0),
    "scatter_add": lambda x, i: x.scatter_add(0, i[:, None], x[:2]),
    "index_add": lambda x, i: x.index_add(0, i, x[:2]),
    "index_put": lambda x, i: x.index_put((i,), torch.ones(4)),
}


def compiled(function: Callable[..., Any], dynamic: bool = False, **options: Any) -> Callable[..., Any]:
    torch.compiler.reset()
    settings = {"backends": ("interpreter",), "strict": True, **options}
    return torch.compile(function, backend="polyfuse", fullgraph=True, dynamic=dynamic, options=settings)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", [*READS, *WRITES])
def test_an_index_out_of_range_raises(name: str, dynamic: bool) -> None:
    function = {**READS, **WRITES}[name]
    run = compiled(function, dynamic, index_asserts=True)
    x, from_end = torch.randn(3, 4), name.startswith(("brackets", "index_put"))
    wraps = from_end or name == "index_add"  # which becomes an index_put
    for good in ([0, 2], [2, 1], *([[-3, -1]] if from_end else [])):
        places = torch.tensor(good)
        torch.testing.assert_close(run(x, places), function(x, places))
    for bad in ([0, 3], [2**40, 1], [-4, 0], *([] if wraps else [[-1, 0]])):
        with pytest.raises(RuntimeError, match=r"an index of aten\.\w+\.\w+ is out of range; give .*\.py"):
            run(x, torch.tensor(bad))


@pytest.mark.parametrize("name", READS)
def test_otherwise_the_nearest_element_is_read(name: str) -> None:
    x = torch.randn(3, 4)
    found = compiled(READS[name])(x, torch.tensor([2**40, 1]))
    torch.testing.assert_close(found, READS[name](x, torch.tensor([2, 1])))


def test_otherwise_nothing_is_written() -> None:
    x = torch.randn(3, 4)
    found = compiled(WRITES["scatter"])(x, torch.tensor([2**40, 1]))
    torch.testing.assert_close(found, WRITES["scatter"](x, torch.tensor([1, 1])))


def test_gradients_with_checked_positions() -> None:
    weight, places = torch.randn(5, 4, requires_grad=True), torch.tensor([4, 0, 4])
    run = compiled(lambda w, i: F.cross_entropy(F.embedding(i, w), i % 4), index_asserts=True)
    run(weight, places).backward()
    found, weight.grad = weight.grad, None
    F.cross_entropy(F.embedding(places, weight), places % 4).backward()
    torch.testing.assert_close(found, weight.grad)
    with pytest.raises(RuntimeError, match="out of range"):
        run(weight, torch.tensor([5, 0, 1]))


def test_ignored_targets_are_no_positions() -> None:
    scores, targets = torch.randn(3, 4), torch.tensor([1, -100, 3])
    run = compiled(F.cross_entropy, index_asserts=True)
    torch.testing.assert_close(run(scores, targets), F.cross_entropy(scores, targets))
    with pytest.raises(RuntimeError, match="out of range"):
        run(scores, torch.tensor([1, 4, 3]))


def test_masks_and_empty_indices_pass() -> None:
    def function(x: torch.Tensor, mask: torch.Tensor, none: torch.Tensor) -> Any:
        changed = x.clone()
        changed[mask] = 0.0
        return changed, x[none], x.t()[none]

    inputs = torch.randn(3, 4), torch.tensor([True, False, True]), torch.empty(0, dtype=torch.int64)
    torch.testing.assert_close(compiled(function, index_asserts=True)(*inputs), function(*inputs))
