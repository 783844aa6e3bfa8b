"""Programs end to end: inputs, symbols, calls, views, results, errors and the printed text."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch

from polyfuse.base.errors import InputLayoutError, IRError, KernelLoadError, PolyfuseError, UnsupportedError
from polyfuse.base.settings import Settings
from polyfuse.ir.graph import GraphInput, GraphOutput
from polyfuse.ir.nodes import Opaque, SymbolPath, View
from polyfuse.ir.types import DType
from polyfuse.program import bytes_moved, plan, python_text
from polyfuse.program.steps import ExternStep, LaunchKernel, Program, ProgramInput, Ref, Step
from polyfuse.runtime import load, set_observer
from polyfuse.runtime.frozen import checksums
from polyfuse.runtime.harness import random_inputs
from polyfuse.symbolic import maximum, symbol
from program_builder import Builder, add, add_one

close = torch.testing.assert_close


# Results.


def test_no_results_and_no_steps() -> None:
    b = Builder()
    b.tensor("x", (2,))
    assert b.module()([torch.ones(2)]) == ()


def test_no_inputs() -> None:
    b = Builder()
    b.launch(lambda o: o.fill_(3.0), [b.buffer("a", (2,))], [])
    b.output("a")
    close(b.module()([])[0], torch.full((2,), 3.0))


def test_results_of_every_kind() -> None:
    b = Builder(s0=6)
    s0 = symbol("s0")
    b.tensor("x", (s0,))
    b.inputs.append(GraphInput("thing", "object"))
    b.inputs.append(GraphInput("nothing", "none"))
    b.objects["key"] = host_object = object()
    b.launch(add_one, [b.buffer("a", (s0,))], ["x"])
    b.output("a", "x", "a", None, 2 * s0 + 1, 7, True, 1.5, float("inf"))
    b.outputs += [
        GraphOutput("thing", "object"),
        GraphOutput("key", "object"),
        GraphOutput(Opaque(key="key")),
    ]
    x, thing = torch.randn(5), object()
    a, same, again, *rest = b.module()([x, thing, None])
    close(a, x + 1)
    assert same is x and again is a
    assert rest == [None, 11, 7, True, 1.5, float("inf"), thing, host_object, host_object]


def test_results_that_are_views_of_one_buffer() -> None:
    b = Builder()
    b.tensor("x", (4, 6))
    b.launch(add_one, [b.buffer("a", (4, 6))], ["x"])
    b.output(View("a", (6, 4), (1, 6)), View("a", (2, 3), (6, 1), 7), View("a", (24,), (1,), 0, DType.i32))
    b.output(View("x", (6,), (1,), 18))
    x = torch.randn(4, 6)
    transposed, part, bits, row = b.module()([x])
    close(transposed, (x + 1).t())
    close(part, (x + 1)[1:3, 1:4])
    close(bits, (x + 1).view(torch.int32).reshape(-1))
    assert row.data_ptr() == x[3].data_ptr()
    assert part.data_ptr() == transposed.data_ptr() + 7 * 4


def test_a_view_that_is_returned_twice_is_one_tensor() -> None:
    b = Builder()
    b.tensor("x", (4, 6))
    b.launch(add_one, [b.buffer("a", (4, 6))], ["x"])
    view = View("a", (6, 4), (1, 6))
    b.output("a", view, view)
    b.outputs.append(GraphOutput(view, again=1))
    whole, first, other, again = b.module()([torch.randn(4, 6)])
    assert again is first and other is not first
    assert whole.data_ptr() == first.data_ptr() == other.data_ptr()


def test_names_of_one_tensor_are_one_result() -> None:
    """As in eager mode, where two results are one tensor or share no more than memory."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a = x.clone()
        b = a
        b += 1
        c = a.view(-1)
        c[::2] = 0
        return a, b, c

    for dynamic in (False, True):
        torch.compiler.reset()
        x = torch.randn(4, 6)
        a, b, c = torch.compile(function, backend="polyfuse", dynamic=dynamic)(x)
        assert a is b and c is not a and c.data_ptr() == a.data_ptr()
        close((a, c), function(x)[::2])


def test_a_mutated_input_is_written_in_place() -> None:
    b = Builder()
    b.tensor("x", (4,))
    b.launch(lambda o: o.add_(1), ["x"], [])
    x = torch.zeros(4)
    assert b.module()([x]) == ()
    close(x, torch.ones(4))


# Symbols.


def symbolic_case(size: Callable[[Any], tuple[Any, ...]], **hints: int) -> Builder:
    b = Builder(**hints)
    s0 = symbol("s0")
    b.tensor("x", size(s0))
    b.launch(lambda o, i, n: o.fill_(float(n)), [b.buffer("a", (s0,))], ["x"], s0)
    b.output("a")
    return b


@pytest.mark.parametrize(
    ("size", "shape"),
    [
        (lambda s: (3, s), (3, 5)),
        (lambda s: (2 * s,), (10,)),
        (lambda s: (3 * s + 1, 2), (16, 2)),
        (lambda s: (s * s,), (25,)),
    ],
)
def test_a_symbol_is_read_or_solved_for(size: Any, shape: tuple[int, ...]) -> None:
    b = symbolic_case(size, s0=4)
    close(b.module()([torch.randn(shape)])[0], torch.full((5,), 5.0))


def test_a_size_that_does_not_solve_evenly_is_refused() -> None:
    b = symbolic_case(lambda s: (2 * s,), s0=4)
    with pytest.raises(InputLayoutError, match=r"size \(11,\).*where size \(10,\)"):
        b.module()([torch.randn(11)])


def test_a_symbol_that_is_an_input_itself_is_unpacked_under_its_name() -> None:
    b = Builder(s0=4)
    s0 = symbol("s0")
    b.symint("arg0", s0)
    b.tensor("x", (s0,))
    b.launch(lambda o, i, n: torch.mul(i, n, out=o), [b.buffer("a", (s0,))], ["x"], s0)
    b.output("a")
    assert "s0, x = args" in b.text()
    close(b.module()([3, torch.ones(3)])[0], torch.full((3,), 3.0))


def test_a_symbol_that_is_only_a_stride() -> None:
    b = Builder(s0=8)
    s0 = symbol("s0")
    b.tensor("x", (3, 4), (s0, 1))
    b.launch(lambda o, i, n: torch.mul(i, n, out=o), [b.buffer("a", (3, 4))], ["x"], s0)
    b.output("a")
    x = torch.randn(3, 9)[:, :4]
    close(b.module()([x])[0], x * 9)


def test_solving_uses_other_symbols_and_binds_them_first() -> None:
    b = Builder(s0=3, s1=4)
    s0, s1 = symbol("s0"), symbol("s1")
    b.tensor("x", (s0 * s1, s1))
    b.launch(lambda o, i, n: o.fill_(float(n)), [b.buffer("a", (2,))], ["x"], s0)
    b.output("a")
    for options in ({}, {"size_asserts": False}):
        close(b.module(**options)([torch.randn(15, 5)])[0], torch.full((2,), 3.0))


def test_a_symbol_that_cannot_be_solved_for_is_named() -> None:
    b = symbolic_case(lambda s: (s // 2,), s0=4)
    with pytest.raises(UnsupportedError, match=r"s0 is needed.*cannot be solved for in .* \(size 0 of x\)"):
        b.program()
    b = Builder()
    b.output(symbol("s7"))
    with pytest.raises(UnsupportedError, match="no input of the graph tells its value"):
        b.program()


def test_functions_of_symbols_in_results() -> None:
    b = Builder(s0=4)
    s0 = symbol("s0", 2)
    b.tensor("x", (s0,))
    b.output(maximum(s0, 5), s0 // 3, -(s0 % 4) - 2)
    assert b.module()([torch.randn(7)]) == (7, 2, -5)


def test_symbols_that_an_operator_defines() -> None:
    b = Builder()
    u0, u1 = symbol("u0"), symbol("u1")
    b.tensor("x", (6,))
    b.tensor("n", (), dtype=DType.i64)
    found = (("u0", SymbolPath("size", 0, 0)),)
    b.call("aten.nonzero.default", [b.view("x")], [b.buffer("nz", (u0, 1))], symbols=found)
    b.call("aten._local_scalar_dense.default", [b.view("n")], [""], symbols=(("u1", SymbolPath("item", 0)),))
    b.launch(lambda o: o.fill_(1.0), [b.buffer("a", (u0, u1))], [])
    b.output("a", u0 + u1, "nz")
    x = torch.tensor([0.0, 1, 0, 2, 3, 0])
    a, total, nz = b.module()([x, torch.tensor(4)])
    assert a.shape == (3, 4) and total == 7
    close(nz, x.nonzero())


# Calls.


def test_several_results_of_which_some_are_unused() -> None:
    b = Builder()
    b.tensor("x", (5,))
    b.buffer("values", (5,))
    b.buffer("order", (5,), dtype=DType.i64)
    b.call("aten.sort.default", [b.view("x")], ["values", ""], out="tuple")
    b.call("aten.sort.default", [b.view("x")], ["", "order"], out="tuple")
    b.output("values", "order")
    x = torch.randn(5)
    values, order = b.module()([x])
    close(values, x.sort().values)
    close(order, x.sort().indices)


def test_a_list_of_tensors_may_hold_none() -> None:
    b = Builder()
    x, positions = b.tensor("x", (2, 3)), b.tensor("positions", (2,), dtype=DType.i64)
    values = b.tensor("values", (2, 2))
    arguments = [b.view(x), (None, b.view(positions)), b.view(values), True]
    b.call("aten.index_put.default", arguments, [b.buffer("y", (2, 3))])
    b.output("y")
    (y,) = b.module()([torch.zeros(2, 3), torch.tensor([2, 0]), torch.ones(2, 2)])
    close(y, torch.tensor([[1.0, 0.0, 1.0]] * 2))


def test_arguments_of_every_kind() -> None:
    b = Builder()
    b.tensor("x", (2, 3))
    b.buffer("a", (3, 2), (1, 3))
    b.buffer("c", (4, 3))
    b.buffer("r", (2, 2), dtype=DType.f64)
    b.objects["generator"] = torch.Generator().manual_seed(3)
    b.call("aten.permute.default", [b.view("x"), (1, 0)], ["a"], aliases=("x",))
    b.call("aten.cat.default", [(b.view("x"), b.view("x"))], ["c"])
    kwargs = [
        ("generator", Opaque(key="generator")),
        ("dtype", Opaque("torch.float64")),
        ("device", Opaque("torch.device('cpu')")),
        ("layout", torch.strided),
        ("pin_memory", False),
    ]
    b.call("aten.randn.generator", [(2, 2)], ["r"], kwargs=kwargs, ordered=True)
    b.output("a", "c", "r")
    x = torch.randn(2, 3)
    a, c, r = b.module()([x])
    close(a, x.t())
    close(c, torch.cat([x, x]))
    close(r, torch.randn(2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(3)))


def test_an_argument_without_text_is_refused() -> None:
    b = Builder()
    b.call("aten.relu.default", [object()], [b.buffer("a", (1,))])
    b.output("a")
    with pytest.raises(UnsupportedError, match="argument of type object"):
        b.text()


def test_effects_and_out_arguments() -> None:
    b = Builder()
    b.tensor("x", (2, 2))
    b.call("aten.add_.Scalar", [b.view("x"), 1], out="none", mutates=("x",))
    b.call("aten.mm.default", [b.view("x"), b.view("x")], [b.buffer("p", (2, 2))], out="out")
    b.call("aten.add.out", [b.view("p"), b.view("x")], [b.buffer("q", (2, 2))], out="out")
    b.output("q")
    x = torch.randn(2, 2)
    expected = (x + 1) @ (x + 1) + (x + 1)
    close(b.module()([x])[0], expected)


def test_a_view_needed_twice_is_made_once() -> None:
    b = Builder()
    b.tensor("x", (2, 3))
    transposed = View("x", (3, 2), (1, 3))
    b.call("aten.mm.out", [b.view("x"), transposed], [b.buffer("p", (2, 2))], out="out")
    b.call("aten.mm.out", [transposed, b.view("p")], [b.buffer("q", (3, 2))], out="out")
    b.launch(add_one, [b.buffer("r", (3, 2))], ["q"])
    b.output("r")
    text = b.text()
    assert text.count("reinterpret_tensor(") == 1 and "del x, p" not in text and "view_1" in text
    x = torch.randn(2, 3)
    close(b.module()([x])[0], x.t() @ (x @ x.t()) + 1)


def test_a_result_in_another_layout_than_announced_is_brought_into_it() -> None:
    b = Builder()
    b.tensor("x", (2, 3))
    b.call("aten.clone.default", [b.view("x", (3, 2), (1, 3))], [b.buffer("a", (3, 2))])
    b.launch(lambda o, i: torch.add(i.as_strided((3, 2), (2, 1)), 0, out=o), [b.buffer("b", (3, 2))], ["a"])
    b.output("b")
    x = torch.randn(2, 3)
    close(b.module()([x])[0], x.t())


def test_a_result_of_another_shape_than_announced_is_an_error() -> None:
    b = Builder()
    b.tensor("x", (2, 3))
    b.call("aten.clone.default", [b.view("x")], [b.buffer("a", (3, 3))], source="model.py:3")
    b.output("a")
    with pytest.raises(PolyfuseError, match="announced") as caught:
        b.module()([torch.randn(2, 3)])
    assert any("model.py:3" in note for note in caught.value.__notes__)


def test_a_result_of_another_type_than_announced_is_an_error() -> None:
    """Taken for what was announced, its memory would be too small."""
    with torch.library._scoped_library("polyfuse_announced", "DEF") as library:
        library.define("halved(Tensor x) -> Tensor")
        library.impl("halved", lambda x: x.half(), "CPU")
        library.impl("halved", torch.empty_like, "Meta")
        halved = torch.ops.polyfuse_announced.halved
        compiled = torch.compile(lambda x: halved(x) + 1, backend="polyfuse")
        with pytest.raises(PolyfuseError, match=r"elements of torch.float16 where torch.float32"):
            compiled(torch.randn(2, 3))


# Checks and errors.


def test_a_wrong_layout_names_both() -> None:
    b = Builder()
    b.tensor("x", (4, 4))
    b.output("x")
    module = b.module()
    module([torch.randn(4, 4)])
    with pytest.raises(
        InputLayoutError, match=r"x has size \(4, 4\) and stride \(1, 4\).*\(4, 1\) were expected"
    ):
        module([torch.randn(4, 4).t()])
    with pytest.raises(InputLayoutError, match="2 inputs where 1"):
        b.module()([torch.randn(4, 4), 1])
    with pytest.raises(InputLayoutError, match=r"float64 on cpu where torch\.float32"):
        b.module()([torch.randn(4, 4, dtype=torch.float64)])
    with pytest.raises(InputLayoutError, match="x is int"):
        b.module()([1])


def test_an_empty_tensor_may_have_any_strides() -> None:
    b = Builder()
    b.tensor("x", (0, 4))
    b.output("x")
    b.module()([torch.empty_strided((0, 4), (9, 7))])


def test_parameters_are_checked_at_the_first_call_only(monkeypatch: pytest.MonkeyPatch) -> None:
    # where Dynamo may skip guards, as that of torch 2.11 does once it is loaded, they are followed instead
    monkeypatch.setattr("polyfuse.runtime.module.may_skip_guards", lambda: False)
    b = Builder()
    b.tensor("w", (4, 4), static=True)
    b.output("w")
    assert "assert_size_stride(" not in b.text()
    with pytest.raises(InputLayoutError):
        b.module()([torch.randn(4, 4).t()])


def test_an_exception_names_the_line_of_the_model() -> None:
    def fail(*operands: Any) -> None:
        raise RuntimeError("boom")

    b = Builder()
    b.tensor("x", (4,))
    b.launch(add_one, [b.buffer("a", (4,))], ["x"], source="model.py:11")
    b.launch(fail, [b.buffer("b", (4,))], ["a"], source="model.py:12")
    b.output("b")
    module = b.module()
    with pytest.raises(RuntimeError, match="boom") as caught:
        module([torch.randn(4)])
    (note,) = caught.value.__notes__
    assert "aten.relu.default at model.py:12" in note and "model.py:11" not in note
    assert "k1_1(b, a)" in "".join(traceback.format_exception(caught.value))
    line = next(n for n, text in enumerate(module.text.splitlines(), 1) if "k1_1(" in text)
    assert module.lines[line] == "aten.relu.default at model.py:12"


def test_finite_checks() -> None:
    b = Builder()
    b.tensor("x", (4,))
    b.launch(lambda o, i: torch.log(i, out=o), [b.buffer("a", (4,))], ["x"])
    b.output("a")
    module = b.module(nan_asserts=True)
    module([torch.ones(4)])
    with pytest.raises(PolyfuseError, match="input x holds NaN"):
        module([torch.full((4,), float("nan"))])
    with pytest.raises(PolyfuseError, match="a holds infinity"):
        module([torch.zeros(4)])


def test_the_observer_sees_values() -> None:
    b = Builder()
    b.tensor("x", (4,))
    b.launch(add_one, [b.buffer("a", (4,))], ["x"], source="model.py:1")
    b.output("a")
    program = plan(b.schedule(), Settings(), observe=True)
    module = load(python_text(program), {"k0_0": add_one}, {})
    seen: list[tuple[str, float]] = []
    set_observer(lambda name, value: seen.append((name, value.sum().item())))
    try:
        module([torch.zeros(4)])
    finally:
        set_observer(None)
    assert seen == [("relu", 4.0)]


def test_profiler_ranges() -> None:
    b = Builder()
    b.tensor("x", (4,))
    b.launch(add_one, [b.buffer("a", (4,))], ["x"])
    b.output("a")
    module = b.module(profile=True)
    with torch.profiler.profile() as profile:
        module([torch.zeros(4)])
    names = [event.name for event in profile.events()]
    assert names.count("polyfuse g") == 1 and names.count("k0_0") == 1


def test_a_schedule_that_uses_a_dead_buffer_is_refused() -> None:
    b = Builder()
    b.tensor("x", (4,))
    b.launch(add_one, [b.buffer("a", (4,))], ["x"])
    b.launch(add_one, [b.buffer("b", (4,))], ["x"])
    b.output("b")
    schedule = b.schedule()
    with pytest.raises(IRError, match="uses x where it has no value"):
        plan(replace(schedule, last_use=(("x",), ())), Settings())


def test_tensors_without_strides_and_operators_of_the_object_table() -> None:
    b = Builder()
    b.tensor("x", (3, 3), (0, 0))
    b.objects["object_1"] = lambda x: x.to_dense()
    b.call("object.object_1", [b.view("x")], [b.buffer("a", (3, 3))])
    b.output("a")
    for _ in range(2):
        close(b.module()([torch.eye(3).to_sparse()])[0], torch.eye(3))
    with pytest.raises(InputLayoutError, match=r"stride \(0, 0\) were expected"):
        module = b.module()
        module([torch.eye(3).to_sparse()])
        module([torch.eye(3)])


def test_an_object_among_the_inputs_is_handed_on() -> None:
    """As a forward does with the device mesh that its backward needs."""
    b = Builder()
    b.inputs.append(GraphInput("mesh", "object"))
    b.tensor("x", (4,))
    b.launch(add_one, [b.buffer("a", (4,))], ["x"])
    b.output("a")
    b.outputs.append(GraphOutput(Opaque(key="mesh"), "object", saved=True))
    mesh = object()
    assert b.module()([mesh, torch.zeros(4)])[1] is mesh


# Kernels and loading.


def test_equal_kernels_are_one_function() -> None:
    b = Builder()
    previous = b.tensor("x", (4,))
    for i in range(4):
        b.launch(add_one, [b.buffer(f"b{i}", (4,))], [previous], kernel="inc")
        previous = f"b{i}"
    b.launch(add, [b.buffer("c", (4,))], [previous, "x"], kernel="sum")
    b.output("c")
    program = b.program()
    assert [(k.name, len(k.launches)) for k in program.kernels] == [("inc_0", 4), ("sum_1", 1)]


def test_kernels_still_being_built_are_waited_for_at_the_first_call() -> None:
    b = Builder()
    b.tensor("x", (4,))
    b.launch(add_one, [b.buffer("a", (4,))], ["x"])
    b.output("a")
    with ThreadPoolExecutor(1) as pool:
        module = load(b.text(), {"k0_0": pool.submit(lambda: add_one)}, {})
        close(module([torch.zeros(4)])[0], torch.ones(4))
    with pytest.raises(KernelLoadError, match="k0_0"):
        load(b.text(), {}, {})


def test_dumped_programs_can_be_run_and_timed() -> None:
    b = Builder(s0=4)
    s0 = symbol("s0")
    b.symint("n", s0)
    b.tensor("x", (s0, 2))
    b.launch(add_one, [b.buffer("a", (s0, 2))], ["x"])
    b.output("a")
    program = b.program()
    module = load(python_text(program, harness=True), {"k0_0": add_one}, {})
    inputs = random_inputs(module.namespace["INPUTS"])
    assert inputs[0] == 4 and inputs[1].shape == (4, 2)
    assert len(module(inputs)) == 1


def test_bytes_moved_counts_a_buffer_once_and_what_stays_inside_not_at_all() -> None:
    b = Builder()
    b.tensor("x", (4,))
    b.launch(add_one, [b.buffer("a", (4,))], ["x"])
    b.call("aten.mm.out", [b.view("a"), b.view("a")], [b.buffer("p", (4,))], out="out")
    b.output("p")
    assert bytes_moved(b.schedule()) == (64, 64)
    b.removed.append("a")
    assert bytes_moved(b.schedule())[1] == 48


def test_program_text(golden: Callable[[str, str], None]) -> None:
    """The whole text of a small program with most kinds of lines."""
    b = Builder(s0=8)
    s0 = symbol("s0", 2)
    b.symint("arg0_1", s0)
    b.tensor("arg1_1", (s0, 16))
    b.tensor("arg2_1", (16, 16), static=True)
    b.constant("scale", torch.ones(16))
    lines = [f"model.py:{n}, in forward" for n in (10, 11, 12, 13)]
    for name, size in (("buf0", (s0, 16)), ("buf1", (s0, 16)), ("buf2", (16, s0)), ("buf3", (16, s0))):
        b.buffer(name, size)
    b.launch(add, ["buf0"], ["arg1_1", "scale"], s0, kernel="add", source=lines[0])
    transposed = b.view("arg2_1", (16, 16), (1, 16))
    b.call("aten.mm.out", [b.view("buf0"), transposed], ["buf1"], out="out", source=lines[1])
    b.launch(add, ["buf2"], ["buf1", "scale"], s0, kernel="add", source=lines[2])
    b.call("aten.sort.default", [b.view("buf2")], ["buf3", ""], out="tuple", source=lines[3])
    b.output("buf3", View("buf3", (s0,), (1,), 2 * s0), s0)
    golden("program/small.py.txt", python_text(b.program(), harness=True))


def test_a_scalar_for_operators_alone_may_be_on_another_device() -> None:
    b = Builder()
    x, seed = b.tensor("x", (3,)), b.tensor("seed", ())
    b.buffers["seed"] = replace(b.buffers["seed"], device="meta")
    b.call("aten.add.Tensor", [b.view(x), b.view(seed)], [b.buffer("y", (3,))])
    b.output("y")
    inputs = [torch.ones(3), torch.tensor(2.0)]
    close(b.module()(list(inputs))[0], torch.full((3,), 3.0))
    b.launch(lambda wrote, read: None, [b.buffer("z", ())], ["seed"])
    with pytest.raises(InputLayoutError, match=r"input seed is torch.float32 on cpu where .* on meta"):
        b.module()(list(inputs))


def test_inputs_that_are_no_tensors_reach_the_operators_that_take_them():
    b = Builder()
    b.tensor("x", (3,))
    b.inputs.append(GraphInput("state", "object"))
    b.objects["draw"] = lambda x, generator: x + torch.rand(3, generator=generator)
    b.call("object.draw", [b.buffers["x"].view(), Opaque(key="state")], [b.buffer("a", (3,))])
    b.output("a")
    module = b.module()
    x, generator = torch.zeros(3), torch.Generator()
    for seed in (1, 2):
        (found,) = module([x, generator.manual_seed(seed)])
        assert torch.equal(found, torch.rand(3, generator=generator.manual_seed(seed)))
    assert "state" not in module.namespace["OBJECTS"].values()


@pytest.mark.parametrize(
    ("launches", "op", "size", "checksum", "alone"),
    [
        (10, "", 0, False, True),
        (9, "", 0, False, False),
        (10, "frozen.aten.clone.default", 1 << 20, False, True),
        (10, "checked.aten.clone.default", 1 << 15, False, True),
        (10, "checked.aten.clone.default", (1 << 15) + 1, False, False),
        (10, "checked.aten.clone.default", (1 << 15) + 1, True, True),
        (10, "aten.mm.default", 8, True, False),
    ],
)
def test_many_kernels_without_operators_compute_alone(
    launches: int, op: str, size: int, checksum: bool, alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a checksum, the kernels' own threads look whether a parameter changed."""
    monkeypatch.setattr(checksums, "_OFFERED", [lambda wait: None] if checksum else [])
    steps: tuple[Step, ...] = tuple(LaunchKernel("k", ("w", "y")) for _ in range(launches))
    if op:
        steps = (ExternStep(op, (Ref("w"),), (), ("v",), "single"), *steps)
    weight = ProgramInput("w", "tensor", (size,), (1,), "float32", "cpu")
    program = Program("graph", "inference", (weight,), (), steps, ())
    assert program.computes_alone is alone
    assert not replace(program, device="cuda:0").computes_alone
