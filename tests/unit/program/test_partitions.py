"""Single features of host programs that no larger test shows."""

from __future__ import annotations

import torch

from polyfuse.ir.nodes import Buffer
from polyfuse.ir.types import DType
from polyfuse.program.steps import Allocate
from polyfuse.runtime import load
from program_builder import Builder, add, add_one


def three_kernels() -> Builder:
    b = Builder()
    b.tensor("x", (4,))
    b.launch(add_one, [b.buffer("a", (4,))], ["x"], kernel="one")
    b.launch(add, [b.buffer("b", (4,))], ["a", "x"], kernel="one")
    b.launch(add, [b.buffer("c", (4,))], ["a", "b"], kernel="two")
    b.output("c")
    return b


def test_the_module_stands_in_order() -> None:
    text = three_kernels().text()
    positions = [
        text.index(part)
        for part in ("import", "KERNELS =", "INPUTS =", "def call(args):", "args.clear()", "return")
    ]
    assert positions == sorted(positions)
    compile(text, "program", "exec")


def test_helpers_are_imported_once_and_only_where_needed() -> None:
    text = three_kernels().text()
    (line,) = [line for line in text.splitlines() if line.startswith("from polyfuse.runtime import")]
    names = line.removeprefix("from polyfuse.runtime import ").split(", ")
    assert names == sorted(set(names))
    assert all(text.count(f"{name}(") for name in names)
    assert "device_guard" not in text and "record_function" not in text


def test_kernels_have_names_of_their_own() -> None:
    names = [entry.name for entry in three_kernels().program().kernels]
    assert len(names) == len(set(names))


def test_programs_that_differ_in_a_constant_are_distinguished() -> None:
    results = []
    for value in (1.0, 2.0):
        b = Builder()
        b.tensor("x", (4,))
        b.constant("k", torch.full((4,), value))
        b.launch(add, [b.buffer("a", (4,))], ["x", "k"])
        b.output("a")
        results.append((b.text(), b.module()))
    x = torch.zeros(4)
    assert [module([x])[0][0].item() for _, module in results] == [1.0, 2.0]
    (first, one), (second, two) = results
    assert first == second and one.namespace is not two.namespace


def test_a_constant_that_was_not_given_is_named() -> None:
    b = Builder()
    b.tensor("x", (4,))
    b.constant("k", torch.ones(4))
    b.launch(add, [b.buffer("a", (4,))], ["x", "k"])
    b.output("a")
    try:
        load(b.text(), dict.fromkeys([k.name for k in b.program().kernels], add), {})
    except Exception as error:
        assert "needs k" in str(error)
    else:
        raise AssertionError("the missing constant went unnoticed")


def test_allocations_have_the_planned_layout_on_any_device() -> None:
    b = Builder()
    b.tensor("x", (4, 6))
    b.launch(add_one, [b.buffer("a", (4, 6), (1, 4))], ["x"])
    b.output("a")
    (step,) = [s for s in b.program().steps if isinstance(s, Allocate)]
    assert (step.size, step.stride) == ((4, 6), (1, 4))
    (result,) = b.module()([torch.randn(4, 6)])
    assert result.stride() == (1, 4)
    b.buffers["a"] = Buffer("a", DType.f32, "meta", (4, 6), (1, 4), "float32")
    text = b.text()
    assert "empty_strided_cpu" not in text and "meta" in text


def test_the_device_of_a_program_is_current_while_it_runs() -> None:
    b = Builder()
    b.tensor("x", (4,))
    b.buffer("a", (4,))
    for name, kind in (("x", "input"), ("a", "temp")):
        b.buffers[name] = Buffer(name, DType.f32, "cuda:1", (4,), (1,), "float32", kind)
    b.launch(add_one, ["a"], ["x"], kernel="kernel")
    b.output("a")
    text = b.text()
    assert "DEVICE = 'cuda:1'" in text
    # the loader sees to it, and only where there are several
    assert "with " not in text and "empty_strided_cuda(" in text


def test_waiting_after_each_launch_is_for_devices_only() -> None:
    assert "synchronize" not in three_kernels().text(debug_sync=True)


def test_a_size_used_in_several_statements_is_computed_from_one_symbol() -> None:
    from polyfuse.symbolic import symbol

    b = Builder(s0=8)
    s0 = symbol("s0")
    b.tensor("x", (s0 * 2,))
    b.launch(add_one, [b.buffer("a", (s0 * 2,))], ["x"])
    b.launch(add_one, [b.buffer("b", (s0 * 2,))], ["a"])
    b.output("a", "b")
    assert b.text().count("s0 = ") == 1
    x = torch.randn(10)
    torch.testing.assert_close(b.module()([x])[1], x + 2)
