"""Results that share memory are views, as in eager mode: autograd knows what is written through each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

VIEWS: dict[str, Callable[[torch.Tensor], Any]] = {
    "flat": lambda y: y.view(24),
    "row": lambda y: y[2],
    "transposed": lambda y: y.t(),
    "window": lambda y: y[1:, ::2],
    "expanded": lambda y: y[:, :1].expand(4, 9),
    "overlapping": lambda y: y.unfold(1, 3, 1),
    "two": lambda y: y.split(2),
    "columns": lambda y: y.unbind(1),
}


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function, backend="polyfuse", options=options)


@pytest.mark.quick(2)
@pytest.mark.parametrize("native", [False, True], ids=["python", "native"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_views_are_views(dynamic: bool, native: bool) -> None:
    def f(given: list[torch.Tensor]) -> Any:
        results = [x.sin() + 1 for x in given]
        return [(y, view(y), y.sum(0)) for view, y in zip(VIEWS.values(), results, strict=True)]

    run = torch.compile(f, backend="polyfuse", dynamic=dynamic, options={"native_host": native})
    given = [torch.randn(4, 6) for _ in VIEWS]
    for name, (y, found, total), (_, wanted, _) in zip(VIEWS, run(given), f(given), strict=True):
        for a, b in zip(*((v if isinstance(v, tuple) else (v,)) for v in (found, wanted)), strict=True):
            torch.testing.assert_close(a, b)
            assert a._base is y and a.stride() == b.stride(), name
            assert a.storage_offset() == b.storage_offset(), name
        assert not y._is_view() and not total._is_view(), name


def test_writing_one_spoils_what_was_saved_of_the_other() -> None:
    """A gradient of what is not there any more raises; it is not wrong."""

    def f(x: torch.Tensor) -> Any:
        y = x + 1
        return y, y.view(24)

    y, flat = compiled(f)(torch.randn(4, 6))
    weight = torch.randn(4, 6, requires_grad=True)
    loss = (y * weight).sum()
    flat.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_view_is_written_with_a_gradient() -> None:
    """Also where the graph ran without gradients, as graphs do that have none."""
    x, weight = torch.randn(4, 6), torch.randn(24, requires_grad=True)
    y = compiled(lambda x: (x + 1).view(24))(x)
    y.mul_(weight)
    y.sum().backward()
    torch.testing.assert_close(weight.grad, (x + 1).view(24))


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_without_gradients(context: Callable[[], Any]) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x + 1)[1:].t()

    x, run = torch.randn(4, 6), compiled(f)
    with context():
        found, wanted = run(x), f(x)
        assert not torch.is_grad_enabled()
        assert found._is_view() is wanted._is_view() and found.is_inference() is wanted.is_inference()
        torch.testing.assert_close(found, wanted)


def test_windows_of_pooled_memory() -> None:
    """An offset counts from where the value itself begins."""

    def f(x: torch.Tensor) -> Any:
        y, z = x.sin(), x.cos()
        return y[1:], z[2:], (y * z).t()

    x = torch.randn(4, 6)
    for found, wanted in zip(compiled(f, memory_pools=True)(x), f(x), strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.each_value
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(
    "view",
    [lambda y: y.unfold(1, 3, 1), lambda y: y.as_strided((3, 4), (2, 1)), lambda y: y[:1].expand(5, 6)],
)
def test_gradients_of_results_whose_elements_share_memory(
    view: Callable[[torch.Tensor], torch.Tensor], dynamic: bool | None
) -> None:
    """Each element has a number of its own, though elements of the result share one."""

    def gradient(function: Callable[..., Any]) -> torch.Tensor:
        x = torch.arange(24.0).view(4, 6).requires_grad_()
        y = function(x)
        y.backward(torch.arange(1.0, y.numel() + 1).view(y.shape))
        assert x.grad is not None
        return x.grad

    def f(x: torch.Tensor) -> torch.Tensor:
        return view(x * 2)

    torch._dynamo.reset()
    run = torch.compile(f, backend="polyfuse", dynamic=dynamic)
    torch.testing.assert_close(gradient(run), gradient(f))
