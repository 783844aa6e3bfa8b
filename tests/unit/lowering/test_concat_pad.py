"""Joining, padding, rolling, triangles: against eager mode, and in how many passes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from lowered import check

F = torch.nn.functional


def gradient(fn: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    """The gradient of a weighted sum of what `fn` gives."""

    def run(x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_(True)
        return torch.autograd.grad((fn(x) ** 2).sum(), x)[0]

    return run


@pytest.mark.quick(1)
@pytest.mark.parametrize("dynamic", [False, True])
def test_cat_with_one_reader_is_computed_by_it(dynamic: bool) -> None:
    x, y = torch.randn(3, 4, 6), torch.randn(3, 2, 6)
    assert check(lambda x, y: torch.cat([x, y], 1) * 2, x, y, dynamic=dynamic).kinds() == ["Pointwise"]
    rotated = check(lambda x: torch.cat([-x[..., 3:], x[..., :3]], -1) * 2 + x, x, dynamic=dynamic)
    assert rotated.kinds() == ["Pointwise"]
    check(lambda x, y: torch.cat([x, y, x.relu()], 1).sum(1), x, y, dynamic=dynamic)


@pytest.mark.quick(1)
@pytest.mark.parametrize("dynamic", [False, True])
def test_stored_cat_is_one_pass_over_each_part(dynamic: bool) -> None:
    x, y = torch.randn(3, 4, 6), torch.randn(3, 2, 6)
    record = check(lambda x, y: torch.cat([x, y, x + 1], 1), x, y, dynamic=dynamic)
    assert record.kinds() == ["Pointwise"] * 3
    outputs = {n.writes() for n in record.graph.nodes}
    assert len(outputs) == 1, "every part is written into the result itself"


def test_many_small_parts_are_one_call() -> None:
    record = check(lambda x: torch.cat([x[i] for i in range(3)] * 6), torch.randn(3, 5))
    assert record.kinds() == ["ExternCall"]


def test_cat_of_mixed_types_and_layouts() -> None:
    x = torch.randn(3, 4, 6)
    check(lambda x: torch.cat([x.bfloat16(), torch.ones(3, 4, 1, dtype=torch.long)], 2), x)
    check(lambda x: torch.cat([torch.empty(0), x, x[:, :0]], 1) + 1, x)
    last = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    check(lambda a: torch.cat([a, a + 1], 1), last)
    check(lambda x: torch.stack([x, x + 1], -1), x.transpose(0, 2))


@pytest.mark.quick(1)
@pytest.mark.parametrize("dynamic", [False, True])
def test_constant_pad(dynamic: bool) -> None:
    x = torch.randn(3, 4, 6)
    check(lambda x: F.pad(x, (1, 2, 0, 3)), x, dynamic=dynamic)
    check(lambda x: F.pad(x + 1, (-1, 2), value=3.3), x, dynamic=dynamic)
    check(lambda x: F.pad(x + 1, (1, 2), value=3.3) * 2, x.bfloat16(), dynamic=dynamic)
    check(lambda x: F.pad(x, (1, 2), value=3), torch.arange(6), dynamic=dynamic)
    check(lambda x: F.pad(x, (1, 2), value=-0.0), torch.zeros(2, 3), dynamic=dynamic, exact=True)


@pytest.mark.quick(1)
@pytest.mark.parametrize("mode", ["reflect", "replicate"])
@pytest.mark.parametrize("dynamic", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_margins_filled_from_inside(mode: str, dynamic: bool) -> None:
    x = torch.randn(3, 4, 6)

    def padded(x: torch.Tensor) -> list[torch.Tensor]:
        given = ((x, (3, 2)), (x[None], (1, 2, 3, 1)), (x[None, None], (1, 1, 1, 1, 1, 1)))
        return [F.pad(y, pad, mode=mode) + 1 for y, pad in given]

    check(padded, x, dynamic=dynamic)
    check(gradient(lambda x: F.pad(x, (3, 2), mode=mode)), x, dynamic=dynamic)
    check(gradient(lambda x: F.pad(x[None], (1, 1, 2, 0), mode=mode)), x, dynamic=dynamic)


@pytest.mark.parametrize("dynamic", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_circular_margins(dynamic: bool) -> None:
    x = torch.randn(3, 4, 6)

    def padded(x: torch.Tensor) -> list[torch.Tensor]:
        """On both sides by all of it, by what is left, and of another type."""
        given = ((x, (6, 6)), (x[None], (-1, 2, 1, -2)), ((x * 9).int(), (1, 1)))
        return [F.pad(y, pad, mode="circular") for y, pad in given]

    check(padded, x, dynamic=dynamic, exact=True)
    check(gradient(lambda x: F.pad(x[None], (1, 2, 3, 1), mode="circular")), x, dynamic=dynamic)


@pytest.mark.quick(1)
@pytest.mark.parametrize("dynamic", [False, True])
def test_moves(dynamic: bool) -> None:
    x = torch.randn(3, 4, 6)
    check(lambda x: torch.roll(x, (1, -2), (0, 2)), x, dynamic=dynamic)
    check(lambda x: torch.roll(x, 5), x, dynamic=dynamic)
    check(lambda x: torch.tril(x) + torch.triu(x, 1), x, dynamic=dynamic)
    check(lambda x: x.flip(0, -1) + x.repeat(1, 1, 1), x, dynamic=dynamic)
    check(lambda x: x.repeat_interleave(3, 1), x, dynamic=dynamic)


def test_stored_parts_that_no_kernel_makes_are_copied_by_the_library() -> None:
    x, y = torch.randn(3, 4, 6), torch.randn(3, 2, 6)
    assert check(lambda x, y: torch.cat([x, y], 1), x, y).kinds() == ["ExternCall"]
    assert check(lambda x, y: torch.cat([x, y.double()], 1), x, y).kinds() == ["Pointwise"] * 2
    transposed = lambda x: x.transpose(0, 1).reshape(4, 3, 6).transpose(0, 1)  # noqa: E731
    check(lambda x: torch.cat([x[:, 1:], transposed(x)], 1), x, dynamic=True)


@pytest.mark.quick(1)
@pytest.mark.parametrize("dynamic", [False, True])
def test_elements_that_take_turns_are_written_by_kernels(dynamic: bool) -> None:
    """The library would copy them one by one."""
    x, y, z = (torch.randn(3, 5) for _ in range(3))
    kinds = check(lambda x, y, z: torch.stack([x, y, z], -1), x, y, z, dynamic=dynamic).kinds()
    assert kinds == ["Pointwise"] * 3
    kinds = check(lambda x, y, z: torch.stack([x, y, z], 0), x, y, z, dynamic=dynamic).kinds()
    assert kinds == ["ExternCall"]
