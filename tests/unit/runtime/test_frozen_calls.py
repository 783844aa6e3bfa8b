"""Calls that are done once for each parameter."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from polyfuse.runtime.frozen import (
    CheckedCall,
    CheckedCalls,
    FrozenCall,
    FrozenCalls,
    FrozenOperand,
    FrozenProgram,
    FrozenStep,
    FrozenValues,
)
from polyfuse.runtime.native import operator


def counted() -> tuple[FrozenCall, list[torch.Tensor]]:
    seen: list[torch.Tensor] = []

    def double(tensor: torch.Tensor, *more: object) -> torch.Tensor:
        seen.append(tensor)
        return tensor * 2

    return FrozenCall(double), seen


def test_once_for_each_parameter_and_again_after_each_change():
    call, seen = counted()
    a, b = torch.nn.Parameter(torch.randn(3)), torch.nn.Parameter(torch.randn(3))
    assert call(a) is call(a) and call(b) is call(b) and len(seen) == 2
    before = call(a)
    with torch.no_grad():
        a.add_(1)
    assert torch.equal(call(a), a * 2) and call(a) is not before and len(seen) == 3
    a.data = torch.ones(3)
    assert torch.equal(call(a), torch.full((3,), 2.0)) and not call(a).requires_grad
    assert call(b) is call(b) and len(seen) == 4


def test_other_arguments_are_another_call():
    call, seen = counted()
    a = torch.randn(3)
    assert call(a, [1, 2]) is call(a, (1, 2)) and len(seen) == 1
    assert call(a, (2, 1)) is not call(a, (1, 2)) and len(seen) == 2


def test_a_parameter_made_in_inference_mode_is_known_by_its_address():
    call, seen = counted()
    with torch.inference_mode():
        a, b = torch.ones(3), torch.zeros(3)
    assert call(a) is call(a) and call(b) is not call(a) and len(seen) == 2
    assert torch.equal(call(a), torch.full((3,), 2.0)) and len(seen) == 2


def test_nothing_is_held_of_parameters_that_are_gone():
    call, seen = counted()
    for _ in range(3):
        assert call(torch.nn.Parameter(torch.zeros(3))).sum() == 0
    gc.collect()
    assert len(seen) == 3 and not call._known


def test_results_are_usable_with_gradients_although_they_were_made_in_inference_mode():
    call, _ = counted()
    a = torch.randn(3)
    with torch.inference_mode():
        made = call(a)
    assert not made.is_inference()
    made.add_(1)


def test_a_checked_call_sees_what_leaves_no_trace():
    seen: list[torch.Tensor] = []
    call = CheckedCall(lambda tensor, *more: seen.append(tensor) or tensor * 2)
    a = torch.nn.Parameter(torch.randn(4, 3, 2))
    assert call(a, [1]) is call(a, [1]) and call(a, [2]) is not call(a, [1]) and len(seen) == 2
    changes = (torch.Tensor.neg_, lambda data: data[1, 1].fill_(float("nan")))
    for count, change in enumerate(changes, 3):
        change(a.data)
        torch.testing.assert_close(call(a, [1]), a * 2, equal_nan=True)
        assert call(a, [1]) is call(a, [1]) and len(seen) == count  # NaN is equal to itself
    del a
    gc.collect()
    assert not call._known and not call._seen


def test_parameters_may_go_while_another_is_looked_up():
    """In another thread, or in garbage that is collected meanwhile."""
    call = CheckedCall(torch.clone)
    others = [torch.ones(3) for _ in range(5)]
    for other in others:
        call(other)
    del other

    class Looked(int):
        def __eq__(self, other):
            others.clear()
            return False

        __hash__ = int.__hash__

    first = next(iter(call._known))
    call._known = {(Looked(first[0]), ()): call._known.pop(first), **call._known}
    parameter = torch.ones(3)
    assert call(parameter).equal(parameter) and len(call._known) == 2


def test_a_checked_call_of_another_layout_or_type():
    call = CheckedCall(lambda tensor: tensor.contiguous().clone())
    last = torch.randn(4, 3, 5, 5).to(memory_format=torch.channels_last)
    assert torch.equal(call(last), last) and call(last) is call(last)
    wide = torch.randn(4, 3, dtype=torch.float64)
    with torch.inference_mode():
        made = torch.randn(4, 3)
        assert torch.equal(call(wide), wide) and torch.equal(call(made), made)
        made[0] = 1
        assert torch.equal(call(made), made)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool], ids=str)
def test_a_checked_call_sees_each_number_of_integers(dtype):
    call = CheckedCall(torch.clone)
    last = torch.randint(0, 2, (3, 5, 2, 2)).to(dtype).to(memory_format=torch.channels_last)
    for a in (torch.randint(0, 2, (4, 7)).to(dtype), last):
        for position in torch.cartesian_prod(*map(torch.arange, a.shape)):
            assert torch.equal(call(a), a) and call(a) is call(a)
            number = a.data[tuple(position)]
            number.copy_(number == 0)
            assert torch.equal(call(a), a)
        a.data.copy_(a.flip(0))
        assert torch.equal(call(a), a)


def test_by_name():
    assert isinstance(operator("checked.aten.neg.default"), CheckedCall)
    assert isinstance(operator("checked.together.aten.neg.default"), CheckedCalls)
    call = operator("frozen.aten.neg.default")
    a = torch.randn(3)
    assert isinstance(call, FrozenCall) and torch.equal(call(a), -a) and call(a) is call(a)
    assert operator("aten.neg.default") is not call
    together = operator("frozen.together.aten.neg.default")
    assert isinstance(together, FrozenCalls) and torch.equal(together((a,), ((),))[0], -a)


class Results(TorchDispatchMode):
    """Counts how many results of operators are alive at a time."""

    most = 0

    def __init__(self):
        super().__init__()
        self.made = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.made.append(weakref.ref(result))
        self.most = max(self.most, sum(ref() is not None for ref in self.made))
        return result


def test_steps_towards_a_frozen_value_do_not_stay_in_memory():
    chain = [FrozenStep("aten.mul.Tensor", (FrozenOperand(k), 2.0), {}) for k in range(2, 8)]
    first = FrozenStep("aten.add.Tensor", (FrozenOperand(0), FrozenOperand(1)), {})
    last = FrozenStep("aten.stack.default", ([FrozenOperand(8), FrozenOperand(2)],), {})
    x, constant = torch.randn(4), torch.ones(4)
    values = FrozenValues((0,), (constant,), (first, *chain, last), (9, 3), (((2, 4), (4, 1)), ((4,), (1,))))
    with Results() as results:
        stacked, doubled = values([x])
    # the first, which the last step takes, the second, which is a result, and two of the chain
    assert results.most == 4
    torch.testing.assert_close(stacked, torch.stack([(x + 1) * 64, x + 1]))
    torch.testing.assert_close(doubled, (x + 1) * 2)


def doubled(count: int) -> tuple[FrozenProgram, list[int]]:
    """A program that gets its parameters and their doubles, and how often these were computed."""
    computed: list[int] = []

    def values(given):
        computed.append(len(given))
        return [tensor.detach() * 2 for tensor in given]

    return FrozenProgram(lambda args: tuple(args[count:]), values, range(count)), computed


def test_a_frozen_program_sees_each_change_of_each_parameter():
    program, computed = doubled(3)
    with torch.inference_mode():
        uncounted = torch.randn(4)  # writes to it are not counted
    parameters = [torch.nn.Parameter(torch.randn(4)), torch.randn(4), uncounted]

    def check(times: int) -> None:
        for _ in range(2):
            results = program(list(parameters))
            assert all(torch.equal(r, p.detach() * 2) for r, p in zip(results, parameters, strict=True))
        assert len(computed) == times

    check(1)
    with torch.no_grad():
        parameters[0].add_(1)
    check(2)
    parameters[1].data = torch.randn(4)
    check(3)
    parameters[1] = torch.randn(4)
    check(4)


def test_a_frozen_program_forgets_parameters_that_are_gone():
    program, computed = doubled(2)
    first = torch.randn(2)
    for count in range(1, 5):
        other = torch.randn(2)
        assert torch.equal(program([first, other])[1], other * 2) and len(computed) == count
        del other
        gc.collect()
        assert not program._known
    known = weakref.ref(program)
    program([first, torch.randn(2)])
    del program
    assert known() is None


def test_calls_together_are_done_again_for_what_has_changed():
    seen: list[int] = []
    call = FrozenCalls(lambda tensor, factor: seen.append(factor) or tensor * factor)
    a, b = torch.nn.Parameter(torch.randn(3)), torch.randn(2)
    plain = ((2,), (3,))
    first = call((a, b), plain)
    assert torch.equal(first[0], a * 2) and torch.equal(first[1], b * 3) and seen == [2, 3]
    assert call((a, b), plain) is first
    b.add_(1)
    renewed = call((a, b), plain)
    assert renewed[0] is first[0] and torch.equal(renewed[1], b * 3) and seen == [2, 3, 3]
    a.data = torch.ones(3)
    assert torch.equal(call((a, b), plain)[0], torch.full((3,), 2.0)) and len(seen) == 4
    assert torch.equal(call((a, b), ((5,), (3,)))[0], a * 5) and len(seen) == 5
    assert torch.equal(call((b, a), plain)[1], a * 3) and len(seen) == 7
    del b
    gc.collect()
    assert not call._known and len(call._each._known) == 3  # those of `a`


def test_calls_together_of_what_was_made_in_inference_mode():
    call = FrozenCalls(lambda tensor: tensor * 2)
    with torch.inference_mode():
        a, b = torch.ones(3), torch.zeros(3)
        made = call((a, b), ((), ()))
    assert not made[0].is_inference() and torch.equal(made[0], a * 2)
    assert all(x is y for x, y in zip(call((a, b), ((), ())), made, strict=True))


@torch.no_grad()
def test_contents_of_parameters_may_be_exchanged():
    program, computed = doubled(2)
    frozen, checked = FrozenCall(torch.mul), CheckedCall(torch.mul)
    together = FrozenCalls(torch.mul)
    a, b, plain = torch.nn.Parameter(torch.randn(4)), torch.randn(4), ((2,), (2,))

    def check() -> None:
        results = (*program([a, b]), frozen(a, 2), checked(b, 2), *together((a, b), plain))
        for result, tensor in zip(results, (a, b, a, b, a, b), strict=True):
            assert torch.equal(result, tensor.detach() * 2)

    check()
    torch.utils.swap_tensors(a, torch.nn.Parameter(torch.randn(4)))
    check()
    torch.utils.swap_tensors(b, torch.randn(4))
    check()
    assert len(computed) == 3
    other = weakref.ref(a)
    with pytest.raises(RuntimeError, match="weakref"):
        torch.utils.swap_tensors(a, torch.nn.Parameter(torch.randn(4)))
    assert other() is a
    check()
