"""Kernels that the model's author wrote by hand: called as in eager mode, with clones only where needed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from lowered import Lowered, check, compiled

from hand_written import interpreted_kernels
from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.nodes import ExternCall, Pointwise
from polyfuse.torch_compat.user_kernels import Dynamic, UserKernel, mutated_arguments
from requirements import TRITON

triton = pytest.importorskip("triton", reason=TRITON)

from hand_written_kernels import (  # noqa: E402
    add_kernel,
    scale_kernel,
    tuned_add_kernel,
    two_results_kernel,
)


@pytest.fixture(autouse=True)
def launches(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    with interpreted_kernels(monkeypatch) as launched:
        yield launched


pytestmark = pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")


def calls(record: Lowered) -> list[ExternCall]:
    return [n for n in record.graph.nodes if isinstance(n, ExternCall)]


def copies(record: Lowered) -> list[str]:
    """What is computed in kernels of the compiler's own."""
    return [n.output for n in record.graph.nodes if isinstance(n, Pointwise)]


def add(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor, block: int = 16) -> torch.Tensor:
    n = x.numel()
    add_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, out, n, BLOCK=block)
    return out


def test_memory_that_nobody_filled_is_written_as_it_is() -> None:
    x, y = torch.randn(100), torch.randn(100)
    record = check(lambda x, y: add(x, y, torch.empty_like(x)), x, y)
    (call,) = calls(record)
    assert call.out == "into" and len(call.outputs) == 1 and not call.mutates
    assert not copies(record)


def test_fused_around() -> None:
    x, y = torch.randn(7, 9), torch.randn(7, 9)
    record = check(lambda x, y: add(x.sin() + 1, y * 2, torch.empty_like(x)).relu() - y, x, y)
    assert len(calls(record)) == 1
    assert len(copies(record)) == 3


def test_an_input_is_written_directly() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        scale_kernel[(4,)](x, 3.0, x.numel(), BLOCK=32)
        return x + 1

    record = check(fn, torch.randn(100))
    (call,) = calls(record)
    assert call.mutates == (record.graph.inputs[0].name,)
    assert len(copies(record)) == 1


def test_an_input_that_is_read_afterwards_is_cloned() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x.clone()
        scale_kernel[(4,)](y, 3.0, x.numel(), BLOCK=32)
        return y, x * 2

    record = check(fn, torch.randn(100))
    (call,) = calls(record)
    assert call.mutates and call.mutates[0] != record.graph.inputs[0].name


def test_a_value_read_before_the_kernel_overwrites_it() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        before = x * 2  # not computed anywhere yet when the kernel comes
        scale_kernel[(4,)](x, 3.0, x.numel(), BLOCK=32)
        return before, x

    check(fn, torch.randn(100))


def test_a_value_of_the_graph_is_overwritten_in_place() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x.cos()
        scale_kernel[(4,)](y, 0.5, x.numel(), BLOCK=32)
        scale_kernel[(4,)](y, 0.25, x.numel(), BLOCK=32)
        return y

    record = check(fn, torch.randn(100))
    first, second = calls(record)
    assert first.mutates == second.mutates
    assert len(copies(record)) == 1


def test_a_value_that_is_needed_afterwards_is_preserved() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x.cos()
        z = y.clone()
        scale_kernel[(4,)](z, 0.5, x.numel(), BLOCK=32)
        return y, z

    check(fn, torch.randn(100))


def test_a_view_of_it_that_is_needed_afterwards_is_preserved() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x.cos()
        part = y[10:20] * 1.0
        z = torch.mm(y.view(10, 10), y.view(10, 10))
        scale_kernel[(4,)](y, 0.5, x.numel(), BLOCK=32)
        return part, y + z.flatten()

    check(fn, torch.randn(100))


def test_part_of_a_tensor_is_overwritten() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        scale_kernel[(1,)](y[1], 5.0, y.shape[1], BLOCK=32)
        return y

    check(fn, torch.randn(4, 20))


def test_part_of_an_input_is_overwritten() -> None:
    def fn(x: torch.Tensor) -> None:
        scale_kernel[(1,)](x[1], 5.0, x.shape[1], BLOCK=32)

    check(fn, torch.randn(4, 20))


def test_one_tensor_as_source_and_result() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return add(x, y, y) * 2

    record = check(fn, torch.randn(50), torch.randn(50))
    (call,) = calls(record)
    assert call.mutates == (record.graph.inputs[1].name,)


def test_several_results() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows, cols = x.shape
        total, square = torch.ones(rows, cols), torch.empty(rows, cols)
        two_results_kernel[(rows,)](x, total, square, cols, x.stride(0), BLOCK=32)
        return total, square + 1

    record = check(fn, torch.randn(6, 20))
    (call,) = calls(record)
    assert len(call.outputs) == 1 and len(call.mutates) == 1


def test_strides_are_those_that_the_kernel_was_called_with() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        wide = torch.nn.functional.pad(x.sin(), (0, 4))[:, :-4]
        rows, cols = wide.shape
        total, square = torch.ones(rows, cols), torch.empty(rows, cols)
        two_results_kernel[(rows,)](wide, total, square, cols, wide.stride(0), BLOCK=32)
        return total, square

    check(fn, torch.randn(6, 20))


@pytest.mark.quick(2)
@pytest.mark.parametrize("numel", [1, 64, 100])
def test_sizes_known_when_it_runs(numel: int) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return add(x + 1, y, torch.empty_like(x)) * x.shape[0]

    check(fn, torch.randn(numel), torch.randn(numel), dynamic=True)


def test_a_kernel_chooses_among_its_configurations(launches: list[str]) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        n = x.numel()
        tuned_add_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, out, n)
        return out + 1

    check(fn, torch.randn(100), torch.randn(100))
    check(fn, torch.randn(70), torch.randn(70), dynamic=True)
    assert "tuned_add_kernel" in launches


def test_configurations_are_measured_before_the_first_call(launches: list[str]) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        n = x.numel()
        tuned_add_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, out, n)
        return out + 1

    tuned_add_kernel.cache.clear()
    x, y = torch.randn(90), torch.randn(90)
    run, record = compiled(fn)
    torch.testing.assert_close(run(x, y), x + y + 1)
    assert len(tuned_add_kernel.cache) == 1
    assert len(launches) >= len(tuned_add_kernel.configs) + 2
    measured = len(launches)
    torch.testing.assert_close(run(x, y), x + y + 1)
    assert len(launches) == measured + 1, "a call launches the kernel once"
    assert calls(record)


def test_equal_calls_share_one_definition() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a = add(x, y, torch.empty_like(x))
        b = add(a, y, torch.empty_like(x))
        return a, b, add(b, y, torch.empty_like(x), block=32)

    record = check(fn, torch.randn(64), torch.randn(64))
    first, second, third = calls(record)
    assert first.op == second.op != third.op
    assert "add_kernel" in first.op


def test_a_call_without_use_falls_away() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        add(x, y, torch.empty_like(x))
        return x * 2

    assert not calls(check(fn, torch.randn(64), torch.randn(64)))


def test_nothing_is_mistaken_for_equal() -> None:
    """Two calls with the same arguments have two results."""

    def fn(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = add(x, y, torch.empty_like(x)), add(x, y, torch.empty_like(x))
        return a.mul(2), b

    check(fn, torch.randn(64), torch.randn(64))


def test_gradients_through_a_function_with_kernels() -> None:
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return add(x, x, torch.empty_like(x))

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            gradient = gradient.contiguous()
            return add(gradient, gradient, torch.empty_like(gradient)) + 0 * x

    x = torch.randn(40, requires_grad=True)
    run, _ = compiled(lambda x: Doubled.apply(x.sin()).sum())
    run(x).backward()
    got, x.grad = x.grad, None
    Doubled.apply(x.sin()).sum().backward()
    torch.testing.assert_close(got, x.grad)


def test_an_operator_made_of_kernels() -> None:
    @torch.library.triton_op("polyfuse_tests::added", mutates_args={})
    def added(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        n = x.numel()
        torch.library.wrap_triton(add_kernel)[(triton.cdiv(n, 32),)](x, y, out, n, BLOCK=32)
        return out

    record = check(lambda x, y: added(x * 2, y) + 1, torch.randn(80), torch.randn(80))
    (call,) = calls(record)
    assert "add_kernel" in call.op


def test_the_whole_way(launches: list[str]) -> None:
    """Through the compiler's entry, with a host program."""

    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        scale_kernel[(2,)](y, 2.0, 64, BLOCK=32)
        return add(x.sin(), y, torch.empty_like(x)).cos()

    torch._dynamo.reset()
    run = torch.compile(fn, backend="polyfuse", options={"backends": ["interpreter"], "strict": True})
    for _ in range(2):
        x, y = torch.randn(64), torch.randn(64)
        mine = y.clone()
        got = run(x, mine)
        torch.testing.assert_close(got, fn(x, y))
        torch.testing.assert_close(mine, y)
    assert launches.count("add_kernel") == 4


class Kernel:
    """Notes how it is launched."""

    def __init__(self, arg_names: list[str], configs: tuple[dict[str, int], ...] = ()) -> None:
        self.arg_names = arg_names
        self.configs = [triton.Config(c) for c in configs]
        self.launches: list[Any] = []

    def __getitem__(self, grid: Any) -> Any:
        return lambda *args, **options: self.launches.append((grid, args, options))


def test_arguments_are_given_by_position_as_far_as_that_goes() -> None:
    kernel = Kernel(["x", "n", "BLOCK", "y"])
    x = torch.zeros(2)
    call = UserKernel(kernel, ("x",), (("BLOCK", 8), ("n", 3), ("num_warps", 2)), ((1, 2, Dynamic(1)),))
    call(x, 7)
    assert kernel.launches == [((1, 2, 7), (x, 3, 8), {"num_warps": 2})]


def test_a_tensor_descriptor_is_made_of_its_tensor() -> None:
    kernel = Kernel(["x", "y"])
    description = ("stable", ([Dynamic(2), 16],))
    call = UserKernel(kernel, ("x", "y"), (), ((1, 1, 1),), (("x", description),))
    x, y = torch.zeros(32, 32), torch.zeros(3)
    call(x, y, 8)
    ((_, (descriptor, other), _),) = kernel.launches
    assert descriptor.base is x and descriptor.block_shape == [8, 16]
    assert other is y


def test_each_configuration_has_its_grid() -> None:
    kernel = Kernel(["x"], ({"BLOCK": 16}, {"BLOCK": 64}))
    call = UserKernel(kernel, ("x",), (), ((Dynamic(1), 1, 1), (2, 1, 1)))
    call(torch.zeros(1), 9)
    ((grid, _, _),) = kernel.launches
    assert grid({"BLOCK": 16, "x": None}) == (9, 1, 1)
    assert grid({"BLOCK": 64}) == (2, 1, 1)
    with pytest.raises(UnsupportedError, match="configuration"):
        grid({"BLOCK": 32})


def test_one_grid_for_all_configurations() -> None:
    kernel = Kernel(["x"], ({"BLOCK": 16}, {"BLOCK": 64}))
    UserKernel(kernel, ("x",), (), ((5, 1, 1), (5, 1, 1)))(torch.zeros(1))
    assert kernel.launches[0][0] == (5, 1, 1)


def test_which_arguments_are_written_is_read_from_the_code() -> None:
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

    number = kernel_side_table.add_kernel(add_kernel)
    constants = kernel_side_table.add_constant_args({"BLOCK": 16, "n": 10})
    tensors = {name: torch.zeros(10) for name in ("x", "y", "out")}
    assert mutated_arguments(number, constants, tensors, {}) == ("out",)


def test_if_it_cannot_be_read_all_are_taken_for_written() -> None:
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

    number = kernel_side_table.add_kernel(add_kernel)
    constants = kernel_side_table.add_constant_args({})  # too few arguments
    tensors = {name: torch.zeros(10) for name in ("x", "y", "out")}
    assert mutated_arguments(number, constants, tensors, {}) == ("x", "y", "out")
