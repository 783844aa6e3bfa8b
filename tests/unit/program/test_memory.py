"""Storage reuse: what is shared, what must not be, and what the program needs at most."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import pytest
import torch

from polyfuse.base.settings import Settings
from polyfuse.ir.types import DType
from polyfuse.program import memory_plan
from polyfuse.program.lifetimes import Released, released_inputs
from polyfuse.program.memory import Lifetime, plan_memory
from polyfuse.program.steps import Allocate, Free, Reuse
from polyfuse.symbolic import symbol
from program_builder import Builder, add, add_one


def chain(length: int, **options: object) -> tuple[Builder, int]:
    b = Builder()
    previous = b.tensor("x", (8, 8))
    for i in range(length):
        b.launch(add_one, [b.buffer(f"b{i}", (8, 8))], [previous], kernel="inc")
        previous = f"b{i}"
    b.output(previous)
    allocations = sum(isinstance(s, Allocate) for s in b.program(**options).steps)
    return b, allocations


@pytest.mark.parametrize("length", [3, 10])
def test_a_chain_needs_two_buffers_however_long_it_is(length: int) -> None:
    b, allocations = chain(length)
    assert allocations == 2
    x = torch.randn(8, 8)
    torch.testing.assert_close(b.module()([x])[0], x + length)


def test_without_reuse_every_intermediate_is_allocated_and_the_result_is_the_same() -> None:
    b, allocations = chain(6, reuse_buffers=False)
    assert allocations == 6
    x = torch.randn(8, 8)
    torch.testing.assert_close(b.module(reuse_buffers=False)([x])[0], x + 6)


def test_other_symbols_of_equal_hint_share_nothing() -> None:
    b = Builder(s0=8, s1=8)
    s0, s1 = symbol("s0"), symbol("s1")
    b.tensor("x", (s0,))
    b.tensor("y", (s1,))
    b.launch(add_one, [b.buffer("a", (s0,))], ["x"])
    b.launch(add_one, [b.buffer("b", (s0,))], ["a"])
    b.launch(add_one, [b.buffer("c", (s1,))], ["y"])
    b.launch(add_one, [b.buffer("d", (s0,))], ["b"])
    b.output("c", "d")
    assert [(s.new, s.old) for s in b.program().steps if isinstance(s, Reuse)] == [("d", "a")]
    x, y = torch.randn(5), torch.randn(7)
    c, d = b.module()([x, y])
    torch.testing.assert_close(c, y + 1)
    torch.testing.assert_close(d, x + 3)


def test_equal_storage_of_another_shape_is_shared_and_other_dtypes_are_not() -> None:
    b = Builder()
    b.tensor("x", (4, 6))
    b.launch(add_one, [b.buffer("a", (4, 6))], ["x"])
    b.launch(add_one, [b.buffer("b", (6, 4))], ["a"])
    b.launch(add_one, [b.buffer("c", (6, 4), (1, 6))], ["b"])
    b.launch(lambda o, i: o.copy_(i), [b.buffer("d", (6, 4), dtype=DType.i32)], ["c"])
    b.output("d")
    steps = b.program().steps
    reuses = [s for s in steps if isinstance(s, Reuse)]
    assert [(s.new, s.old, s.same_layout) for s in reuses] == [("c", "a", False)]
    assert {s.name for s in steps if isinstance(s, Allocate)} == {"a", "b", "d"}
    x = torch.randn(4, 6)
    torch.testing.assert_close(b.module()([x])[0], (x + 3).reshape(6, 4).to(torch.int32))


def test_a_dying_input_of_a_kernel_gives_its_storage_to_the_result() -> None:
    b = Builder()
    b.tensor("x", (4,))
    b.launch(add_one, [b.buffer("a", (4,))], ["x"])
    addresses = []

    def in_place(out: torch.Tensor, x: torch.Tensor) -> None:
        addresses.append((out.data_ptr(), x.data_ptr()))
        add_one(out, x)

    b.launch(in_place, [b.buffer("b", (4,))], ["a"], inplace=[("b", "a")])
    b.output("b")
    x = torch.randn(4)
    torch.testing.assert_close(b.module(reuse_buffers=False)([x])[0], x + 2)
    assert addresses[0][0] == addresses[0][1]


def test_an_operand_that_lives_on_is_not_overwritten_even_if_the_schedule_offers_it() -> None:
    b = Builder()
    b.tensor("x", (4,))
    b.launch(add_one, [b.buffer("a", (4,))], ["x"])
    b.launch(add_one, [b.buffer("b", (4,))], ["a"], inplace=[("b", "a")])
    b.launch(add, [b.buffer("c", (4,))], ["a", "b"])
    b.output("c")
    x = torch.randn(4)
    torch.testing.assert_close(b.module()([x])[0], (x + 1) + (x + 2))


def test_results_are_never_recycled() -> None:
    b = Builder()
    b.tensor("x", (4,))
    b.launch(add_one, [b.buffer("a", (4,))], ["x"])
    b.launch(add_one, [b.buffer("b", (4,))], ["a"])
    b.launch(add_one, [b.buffer("c", (4,))], ["b"])
    b.launch(add_one, [b.buffer("d", (4,))], ["c"])
    b.output("a", "d")
    x = torch.randn(4)
    a, d = b.module()([x])
    torch.testing.assert_close(a, x + 1)
    torch.testing.assert_close(d, x + 4)


def test_storage_that_an_operator_may_share_is_never_recycled() -> None:
    b = Builder()
    b.tensor("x", (2, 3))
    b.launch(add_one, [b.buffer("a", (2, 3))], ["x"])
    b.call("aten.t.default", [b.view("a")], [b.buffer("t", (3, 2), (1, 3))], aliases=("a",))
    b.launch(add_one, [b.buffer("c", (2, 3))], ["x"])
    b.launch(add_one, [b.buffer("d", (2, 3))], ["c"])
    b.launch(add_one, [b.buffer("e", (2, 3))], ["d"])
    b.output("e", "t")
    x = torch.randn(2, 3)
    e, t = b.module()([x])
    torch.testing.assert_close(t, (x + 1).t())
    torch.testing.assert_close(e, x + 3)


@pytest.mark.parametrize("checks", [True, False])
def test_a_result_whose_size_is_not_checked_is_never_recycled(checks: bool) -> None:
    """An operator may return an empty tensor for what nobody asked for, whatever it announced."""
    b = Builder()
    x, values = b.tensor("x", (3, 4)), b.buffer("values", (3,))
    positions = b.buffer("positions", (3,), dtype=DType.i64)
    b.call("aten.max.dim", [b.view(x), 1], [values, positions], out="tuple")
    b.launch(add_one, [b.buffer("y", (3, 4))], [x])
    b.call("aten.amax.default", [b.view("y"), (1,)], [b.buffer("largest", (3,))])
    b.launch(add_one, [b.buffer("more", (3,))], ["largest"])
    b.launch(add_one, [b.buffer("most", (3,))], ["more"])
    b.output("most")
    reused = [(s.new, s.old) for s in b.program(size_asserts=checks).steps if isinstance(s, Reuse)]
    assert reused == ([("most", "largest")] if checks else [])


def test_inputs_and_constants_keep_their_values() -> None:
    b = Builder()
    constant = torch.randn(4)
    b.tensor("x", (4,))
    b.constant("k", constant)
    copied = constant.clone()
    b.launch(add, [b.buffer("a", (4,))], ["x", "k"])
    b.launch(add_one, [b.buffer("b", (4,))], ["a"])
    b.launch(add_one, [b.buffer("c", (4,))], ["b"])
    b.output("c")
    module, x = b.module(), torch.randn(4)
    before = x.clone()
    for _ in range(2):
        torch.testing.assert_close(module([x])[0], before + copied + 2)
    assert torch.equal(x, before) and torch.equal(constant, copied)


def test_inputs_are_forgotten_at_their_last_use_and_the_list_is_emptied() -> None:
    b = Builder()
    b.tensor("x", (4,))
    b.tensor("never_read", (4,))
    alive = []

    def look(out: torch.Tensor, x: torch.Tensor) -> None:
        gc.collect()
        alive.append([r() is not None for r in references])
        add_one(out, x)

    b.launch(look, [b.buffer("a", (4,))], ["x"])
    b.launch(look, [b.buffer("b", (4,))], ["a"])
    b.launch(look, [b.buffer("c", (4,))], ["b"])
    b.output("c")
    module = b.module()
    for _ in range(2):
        args = [torch.randn(4), torch.randn(4)]
        references = [weakref.ref(t) for t in args]
        module(args)
        assert args == []
    # the first call goes through the loader's checks; the second is what counts
    assert alive[3:] == [[True, False], [False, False], [False, False]]


def test_removed_buffers_get_nothing() -> None:
    b = Builder()
    b.tensor("x", (4,))
    b.buffer("inside", (4,))
    b.removed.append("inside")
    b.launch(add_one, [b.buffer("a", (4,))], ["x"])
    b.output("a")
    assert "inside" not in b.text()


def test_waiting_storage_never_raises_the_peak() -> None:
    """`small` dies before `large` lives: holding it for `late` would cost more than a new allocation."""
    b = Builder()
    b.tensor("x", (64,))
    b.launch(add_one, [b.buffer("small", (64,))], ["x"])
    b.launch(lambda o, i: o.fill_(1.0), [b.buffer("one", (1,))], ["small"])
    b.launch(lambda o, i: o.fill_(1.0), [b.buffer("large", (4096,))], ["one"])
    b.launch(lambda o, i: o.fill_(1.0), [b.buffer("two", (1,))], ["large"])
    b.launch(lambda o, i: o.fill_(1.0), [b.buffer("late", (64,))], ["two"])
    b.output("late")
    memory = memory_plan(b.schedule(), Settings())
    without = memory_plan(b.schedule(), Settings(reuse_buffers=False))
    assert memory.peak == without.peak == 4 * 4097
    assert "late" not in memory.takes
    frees = [s.names for s in b.program().steps if isinstance(s, Free)]
    assert ("small",) in frees


def _made(name: str, size: int, first: int, last: int) -> Lifetime:
    return Lifetime(name, ("cpu", size), size, first, last, poolable=True, allocated=True)  # type: ignore[arg-type]


def test_waiting_storage_does_not_raise_the_peak_that_inputs_make() -> None:
    """What a backward got from its forward is most of what is in use when it begins."""
    a, b = _made("a", 10, 0, 0), _made("b", 10, 3, 3)
    others = [_made("c", 20, 1, 1), _made("d", 30, 3, 3)]
    without = plan_memory([a, others[0], b, others[1]], 4)
    assert without.takes == {"b": "a"} and without.peak == 40
    saved = plan_memory([a, others[0], b, others[1]], 4, inputs=[Released(45, 0, 1)])
    assert not saved.takes and saved.peak == 40, "inputs are not the program's own"
    assert plan_memory([a, others[0], b, others[1]], 4, inputs=[Released(45, 0, 0)]).takes == {"b": "a"}


def test_what_a_backward_can_release() -> None:
    b = Builder()
    for name in ("primals_1", "mm", "tanh", "unread", "tangents_1"):
        b.tensor(name, (4, 4))
    b.launch(add, [b.buffer("a", (4, 4))], ["mm", "tangents_1"])
    b.launch(add, [b.buffer("c", (4, 4))], ["tanh", "primals_1"])
    b.output("c", "tanh")
    schedule = b.schedule()
    assert released_inputs(schedule) == []
    backward = replace(schedule, graph=replace(schedule.graph, kind="backward"))
    assert released_inputs(backward) == [Released(64, 0, 0), Released(64, 0, 1)]


def test_two_kernel_inputs_in_one_step_are_both_released_once() -> None:
    b = Builder()
    b.tensor("x", (4,))
    b.tensor("y", (4,))
    b.launch(add, [b.buffer("a", (4,))], ["x", "y"])
    b.launch(add, [b.buffer("b", (4,))], ["a", "x"])
    b.launch(add_one, [b.buffer("c", (4,))], ["b"])
    b.output("c")
    names = [n for s in b.program().steps if isinstance(s, Free) for n in s.names]
    assert sorted(names) == sorted(set(names))
