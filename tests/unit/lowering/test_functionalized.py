"""Operators that users define and that write to their arguments: called on the arguments themselves where
nobody needs what those held before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from lowered import Lowered, check, compiled

from polyfuse.ir.nodes import ExternCall, Pointwise
from polyfuse.torch_compat import ops


@torch.library.custom_op("polyfuse_tests::cosine_into", mutates_args={"out"})
def cosine_into(x: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(x.cos())


@torch.library.custom_op("polyfuse_tests::append", mutates_args={"keys", "values"})
def append(row: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    keys.mul_(0.5)
    keys[0] += row
    values.sub_(row)
    return keys.sum(0) * 3


@append.register_fake
def _(row: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(row)


@torch.library.custom_op("polyfuse_tests::scale_each", mutates_args={"tensors", "extra"})
def scale_each(
    tensors: list[torch.Tensor], factor: float, extra: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    for t in tensors:
        t.mul_(factor)
    if extra is not None:
        extra.add_(factor)
    return tensors[0].sum(), tensors[-1] + 1


@scale_each.register_fake
def _(
    tensors: list[torch.Tensor], factor: float, extra: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    return tensors[0].new_empty(()), torch.empty_like(tensors[-1])


@torch.library.custom_op("polyfuse_tests::shift_into", mutates_args={"out"})
def shift_into(x: torch.Tensor, out: torch.Tensor) -> None:
    out.zero_()  # before x is read: who passes one tensor twice can tell
    out.add_(x + 1)


def calls(record: Lowered) -> list[ExternCall]:
    return [n for n in record.graph.nodes if isinstance(n, ExternCall)]


def kernels(record: Lowered) -> int:
    return sum(isinstance(n, Pointwise) for n in record.graph.nodes)


def test_memory_that_nobody_filled_is_written_as_it_is() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        cosine_into(x, out)
        return out * 2

    record = check(fn, torch.randn(5, 3))
    (call,) = calls(record)
    assert call.op == "polyfuse_tests.cosine_into.default" and call.out == "into"
    assert kernels(record) == 1 and not record.report.fallbacks


def test_inputs_are_written_directly_from_call_to_call() -> None:
    def fn(row: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        total = append(row, keys, values)
        return total + append(row * 2, keys, values)

    record = check(fn, torch.randn(4), torch.randn(6, 4), torch.randn(6, 4))
    names = tuple(i.name for i in record.graph.inputs[1:])
    assert [call.mutates for call in calls(record)] == [names, names]
    written = {n.output for n in record.graph.nodes if isinstance(n, Pointwise)}
    assert not written & set(names)


def test_parts_of_a_value() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        held = x.exp()
        cosine_into(y, held[2])  # a window
        cosine_into(x[1:3], held[1:3])  # a slice
        cosine_into(x.t(), held.t())  # the same elements in another order
        return held

    record = check(fn, torch.randn(4, 5), torch.randn(5))
    assert len({call.mutates for call in calls(record)}) == 1
    assert kernels(record) == 1


def test_part_of_an_input() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        before = x + 0.5  # not computed anywhere yet
        cosine_into(y, x[:, 1])
        return before

    record = check(fn, torch.randn(3, 4), torch.randn(3))
    assert calls(record)[0].mutates == (record.graph.inputs[0].name,)


def test_what_is_needed_afterwards_is_preserved() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        held = torch.mm(x, x)
        mine = held.clone()
        cosine_into(x, mine)
        return held, mine, x * 2

    check(fn, torch.randn(4, 4))


def test_an_input_and_a_result_are_two_tensors() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        mine = x.clone()
        cosine_into(x, mine)
        x.copy_(mine)
        return mine

    run, _ = compiled(fn)
    x = torch.randn(6)
    want = x.cos()
    got = run(x)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(x, want)
    got.zero_()
    torch.testing.assert_close(x, want)


def test_an_input_that_is_overwritten_with_something_else() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mine = x.clone()
        cosine_into(y, mine)
        x.copy_(y)
        return mine, mine + 1

    check(fn, torch.randn(6), torch.randn(6))


def test_one_tensor_as_source_and_result_is_one_tensor() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        shift_into(x, x)
        shift_into(x, x)
        return x * 2

    record = check(fn, torch.randn(6))
    assert {call.mutates for call in calls(record)} == {(record.graph.inputs[0].name,)}


def test_equal_tensors_are_not_taken_for_one() -> None:
    def fn(row: torch.Tensor) -> tuple[torch.Tensor, ...]:
        keys, values = torch.zeros(3, 4), torch.zeros(3, 4)
        result = append(row, keys, values)
        same, other = row.sin(), row.sin()
        shift_into(same, other)
        return result, keys, values, same, other

    check(fn, torch.randn(4))


@pytest.mark.parametrize("extra", [False, True])
def test_lists_and_arguments_left_out(extra: bool) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a, b, c = x.sin(), y.cos(), x * y
        total, last = scale_each([a, b[1:], a], 0.25, c if extra else None)
        return a, b, c, total, last

    record = check(fn, torch.randn(3, 4), torch.randn(3, 4))
    assert not record.report.fallbacks


def test_sizes_known_when_it_runs() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        held = x * 2
        cosine_into(x[1:-1], held[1:-1])
        cosine_into(x[:, 0], held[:, 1])
        return held

    check(fn, torch.randn(7, 3), dynamic=True)


@pytest.mark.quick(2)
@pytest.mark.parametrize("dtype", [torch.complex64, torch.bfloat16, torch.float64])
def test_any_type(dtype: torch.dtype) -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mine, out = x.clone(), torch.empty_like(x)
        cosine_into(x, mine)
        cosine_into(mine, out)
        return mine, out

    check(fn, torch.randn(5).to(dtype), native=not dtype.is_complex)


def test_strides_are_those_of_the_clone() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_strided((3, 4), (1, 5))
        cosine_into(x, out)
        return out

    run, _ = compiled(fn)
    x = torch.randn(3, 4)
    got = run(x)
    torch.testing.assert_close(got, x.cos())
    assert got.stride() == (1, 5)


def test_gradients_through_a_function_that_fills() -> None:
    class Cosine(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            out = torch.empty_like(x)
            cosine_into(x, out)
            ctx.save_for_backward(out)
            return out

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            (out,) = ctx.saved_tensors
            found = torch.empty_like(gradient)
            cosine_into(out * gradient, found)
            return found

    x = torch.randn(9, requires_grad=True)
    run, _ = compiled(lambda x: Cosine.apply(x * 3).pow(2))
    run(x).sum().backward()
    got, x.grad = x.grad, None
    Cosine.apply(x * 3).pow(2).sum().backward()
    torch.testing.assert_close(got, x.grad)


def test_exported_programs() -> None:
    """What is exported and made functional holds the older form of such calls."""
    module = _Held()
    program = torch.export.export(module, (torch.randn(3, 4),)).run_decompositions()
    names = {str(n.target) for n in program.graph.nodes}
    x = torch.randn(3, 4)
    run, record = compiled(program.module())
    torch.testing.assert_close(run(x), module(x))
    assert not record.report.fallbacks, names


class _Held(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        cosine_into(x, out)
        held = x + 1
        cosine_into(out, held)
        return out + held


@pytest.mark.quick(1)
@pytest.mark.parametrize("backend", ["interpreter", "cpp"])
def test_the_whole_way(backend: str) -> None:
    def fn(x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        held = x.sin()
        cosine_into(x * 2, held)
        return append(held, keys, values) + held

    torch._dynamo.reset()
    run: Callable[..., Any] = torch.compile(
        fn, backend="polyfuse", options={"backends": [backend], "strict": True}
    )
    keys, values = torch.randn(3, 4), torch.randn(3, 4)
    mine, own = keys.clone(), values.clone()
    for _ in range(3):
        x = torch.randn(4)
        torch.testing.assert_close(run(x, mine, own), fn(x, keys, values))
        torch.testing.assert_close((mine, own), (keys, values))


def test_an_operator_that_is_defined_anew() -> None:
    """The old one is gone, and who calls it by an object that it still has finds freed memory."""

    def fn(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        held = tuple(t.sin() for t in tensors)
        torch.ops.polyfuse_again.change(*held)
        return held

    for count in (1, 3, 2):
        with torch.library._scoped_library("polyfuse_again", "FRAGMENT") as library:
            library.define(f"change({', '.join(f'Tensor(a{i}!) x{i}' for i in range(count))}) -> ()")
            library.impl("change", _double, "CompositeExplicitAutograd")
            now = torch.ops.polyfuse_again.change.default
            assert ops.resolve("polyfuse_again.change.default") is now
            torch._dynamo.reset()
            run = torch.compile(fn, backend="polyfuse", options={"backends": ["interpreter"], "strict": True})
            tensors = [torch.randn(3) for _ in range(count)]
            torch.testing.assert_close(run(*tensors), tuple(2 * t.sin() for t in tensors))


def _double(*tensors: torch.Tensor) -> None:
    for tensor in tensors:
        tensor.mul_(2)


def test_a_copy_of_what_is_written_stays_one() -> None:
    def fn(row: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        return append(row, keys, keys.clone())

    row, keys = torch.randn(3), torch.randn(4, 3)
    expected = keys.clone()
    wanted = fn(row, expected)
    torch.testing.assert_close(compiled(fn)[0](row, keys), wanted)
    torch.testing.assert_close(keys, expected)


@torch.library.custom_op("polyfuse_tests::double_and_add", mutates_args={"out"})
def double_and_add(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    out.mul_(2)  # before x is read
    out.add_(x.clone())
    return x + 1


@double_and_add.register_fake
def _(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def _one_tensor(t: torch.Tensor) -> torch.Tensor:
    return t


def _part(t: torch.Tensor) -> torch.Tensor:
    return t[1]


def _transposed(t: torch.Tensor) -> torch.Tensor:
    return t.t()


def _detached_view(t: torch.Tensor) -> torch.Tensor:
    return t.view(-1).detach().view(t.shape)


def _copy(t: torch.Tensor) -> torch.Tensor:
    return t.clone()


def _equal_result(t: torch.Tensor) -> torch.Tensor:
    return t * 1


READS = (_one_tensor, _part, _transposed, _detached_view, _copy, _equal_result)


@pytest.mark.usefixtures("interpreted_kernels")
@pytest.mark.quick(1)
@pytest.mark.parametrize("dynamic", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("read", READS)
def test_what_is_read_may_be_what_is_written(
    read: Callable[[torch.Tensor], torch.Tensor], dynamic: bool
) -> None:
    """Of a result, of an input and of a part of either; a copy keeps what was there before."""

    def fn(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        held = x * 2
        first = double_and_add(read(held), held)
        second = double_and_add(read(y), y)
        wide = torch.cat([x, x]) + 1
        third = double_and_add(read(wide[x.size(0) :]), wide[x.size(0) :])
        return held, first, second, wide, third, held.sum(0)

    torch._dynamo.reset()
    run = torch.compile(fn, backend="polyfuse", dynamic=dynamic)
    for n in (5, 3):
        given = [torch.randn(n, n), torch.randn(n, n)]
        if n == 3:
            given = [given[0], torch.randn(n, 2 * n)[:, ::2]]
        mine, eager = [t.clone() for t in given], [t.clone() for t in given]
        for got, want in zip(run(*mine), fn(*eager), strict=True):
            torch.testing.assert_close(got, want)
        torch.testing.assert_close(mine[1], eager[1])


def test_equal_tensors_are_two_where_one_is_written() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        one, other = x * 2, x * 2
        return double_and_add(other, one), one, other

    check(fn, torch.randn(4, 4))


@pytest.mark.usefixtures("interpreted_kernels")
def test_what_is_read_may_be_what_is_written_in_training() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        total = (x.detach() @ x.detach()).t()
        double_and_add(total.detach()[:2], total[:2])
        return ((x * w).sin() * total).sum()

    given = [torch.randn(4, 4, requires_grad=True) for _ in range(2)]
    want = torch.autograd.grad(fn(*given), given)
    got = torch.autograd.grad(torch.compile(fn, backend="polyfuse")(*given), given)
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other)
