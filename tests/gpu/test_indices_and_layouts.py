"""On a device: what data put at one index, in place and in equal runs; convolutions with channels last."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch

pytestmark = pytest.mark.gpu

OPERATORS: dict[str, Callable[..., torch.Tensor]] = {
    "put": lambda x, i, v: x.index_put((i,), v),
    "accumulate": lambda x, i, v: x.index_put((i,), v, accumulate=True),
    "add": lambda x, i, v: x.index_add(0, i, v),
    "copy": lambda x, i, v: x.index_copy(0, i, v),
    "scatter_add": lambda x, i, v: x.scatter_add(0, i[:, None].expand_as(v), v),
    "largest": lambda x, i, v: x.scatter_reduce(0, i[:, None].expand_as(v), v, "amax"),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_equal_results_in_every_run(name: str) -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    x, i = torch.randn(50, 65, device="cuda"), torch.randint(0, 50, (20_000,), device="cuda")
    values = torch.randn(20_000, 65, device="cuda")
    run = torch.compile(OPERATORS[name], backend="polyfuse")
    results = [run(x, i, values) for _ in range(5)]
    assert all(torch.equal(result, results[0]) for result in results)
    torch.testing.assert_close(results[0], OPERATORS[name](x, i, values), rtol=1e-5, atol=1e-4)


NAMED: dict[str, Callable[..., torch.Tensor]] = {
    "gather": lambda x, i, v: x.gather(0, i) + v,
    "scatter": lambda x, i, v: x.scatter(0, i.argsort(0), v),
    "scatter_add": lambda x, i, v: x.scatter_add(0, i, v),
    "gather along rows": lambda x, i, v: x.view(-1, 4096).gather(1, i.view(-1, 4096) % 4096) + 1,
    "narrow rows": lambda x, i, v: x.view(-1, 4096).bfloat16().gather(1, i.view(-1, 4096) % 4096),
}


@pytest.mark.parametrize("name", NAMED)
def test_data_name_the_row_or_the_column_of_each_element(name: str) -> None:
    """More than the last cache holds, so that programs take bands of columns, or whole rows."""
    x, v = torch.randn(2, 20_000, 1024, device="cuda").unbind()
    i = torch.randint(0, 20_000, x.shape, device="cuda")
    found = torch.compile(NAMED[name], backend="polyfuse")(x, i, v)
    torch.testing.assert_close(found, NAMED[name](x, i, v), rtol=1e-5, atol=1e-4)


def test_equal_gradients_in_every_run() -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    table = torch.randn(50, 65, device="cuda", requires_grad=True)
    index = torch.randint(0, 50, (20_000,), device="cuda")
    run = torch.compile(
        lambda t, i: t[i].sin().sum() + torch.nn.functional.embedding(i, t).cos().sum(), backend="polyfuse"
    )
    gradients = [torch.autograd.grad(run(table, index), table)[0] for _ in range(4)]
    assert all(torch.equal(gradient, gradients[0]) for gradient in gradients)


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_an_input_is_changed_where_it_is(mode: str | None) -> None:
    def update(cache: torch.Tensor, position: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        cache[:, position] = new
        cache.index_copy_(1, position + 5, new * 2)
        return cache.sum((1, 2))

    run = torch.compile(update, backend="polyfuse", mode=mode)
    mine, theirs = (torch.zeros(4, 64, 65, device="cuda") for _ in range(2))
    for step in range(5):
        position = torch.arange(step, step + 3, device="cuda")
        new = torch.randn(4, 3, 65, device="cuda")
        torch.testing.assert_close(run(mine, position, new), update(theirs, position, new))
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("option", ["auto", "on", "off"])
def test_convolutions(dtype: torch.dtype, option: str) -> None:
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3, padding=1),
        torch.nn.BatchNorm2d(32),
        torch.nn.SiLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(32, 32, 3, padding=1, groups=4),
        torch.nn.Conv2d(32, 16, 1),
    ).to("cuda", dtype)
    model.eval()
    x = torch.randn(4, 3, 32, 32, device="cuda", dtype=dtype)
    run = torch.compile(model, backend="polyfuse", options={"channels_last": option, "strict": True})
    with torch.no_grad():
        actual, expected = run(x), model(x)
    torch.testing.assert_close(actual, expected, rtol=2e-2, atol=2e-2)
    assert actual.stride() == expected.stride()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("window", [3, 7, 9])
def test_training_of_convolutions(dtype: torch.dtype, window: int) -> None:
    """In 16 bits with channels last, weights included; gradients as far from those in f64 as eager mode's."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3, padding=1),
        torch.nn.BatchNorm2d(32),
        torch.nn.ReLU(),
        torch.nn.Conv2d(32, 32, window, padding=window // 2, groups=32),
        torch.nn.SiLU(),
        torch.nn.Conv2d(32, 16, 3, stride=2),
        torch.nn.GroupNorm(4, 16),
    ).to("cuda")
    x = torch.randn(4, 3, 32, 32, device="cuda")
    weights = torch.randn(4, 16, 15, 15, device="cuda", dtype=torch.float64)

    def gradients(kind: torch.dtype, compiled: bool) -> list[torch.Tensor]:
        trained = copy.deepcopy(model).to(kind)
        run = torch.compile(trained, backend="polyfuse", options={"strict": True}) if compiled else trained
        (run(x.to(kind)).double() * weights).sum().backward()
        found = [p.grad for p in trained.parameters()]
        assert all(grad.stride() == p.stride() for grad, p in zip(found, trained.parameters(), strict=True))
        return [grad.double() for grad in found]

    exact, eager, mine = gradients(torch.float64, False), gradients(dtype, False), gradients(dtype, True)
    # a bias before a batch norm has no gradient but roundings
    smallest = 1e-3 * max(truth.norm() for truth in exact)
    for truth, theirs, ours in zip(exact, eager, mine, strict=True):
        scale = truth.norm().clamp_min(smallest)
        assert (ours - truth).norm() / scale <= 2 * (theirs - truth).norm() / scale + 1e-3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("shape", [(2048, 2, 768), (262144, 32, 12), (20000, 200, 40)], ids=str)
def test_additions_to_few_rows(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    """Nearly all to one row, as positions far apart have one bucket."""
    count, rows, width = shape
    index = torch.randint(0, 20 * rows, (count,), device="cuda").clamp(max=rows - 1)
    given = torch.randn(count, width, device="cuda").to(dtype)

    def gradient(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.embedding_dense_backward(x * 2, index, rows, -1, False)

    run = torch.compile(gradient, backend="polyfuse")
    found, wanted = run(given), gradient(given.double())
    assert float((found.double() - wanted).norm() / wanted.norm()) < (
        4e-3 if dtype is torch.bfloat16 else 1e-6
    )
    assert torch.equal(found, run(given))
