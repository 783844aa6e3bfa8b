"""Hand-built programs do in their native form what they do in Python: the same tests, and its own."""

from __future__ import annotations

import importlib.util
import itertools
import subprocess
import weakref
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from native_programs import native_module
from polyfuse.base.errors import InputLayoutError
from polyfuse.ir.nodes import View
from polyfuse.ir.types import DType
from polyfuse.plugin import HostCall
from polyfuse.program import python_text
from polyfuse.program.native.lowering import native_program
from polyfuse.symbolic import symbol
from polyfuse_cpp.native_host.text import host_header, host_text
from polyfuse_cpp.toolchain import find_toolchain
from program_builder import Builder, add, add_one


def _tests(name: str) -> ModuleType:
    """Tests of programs in Python."""
    path = Path(__file__).parents[2] / "unit" / "program" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"python_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


programs, devices = _tests("test_program"), _tests("test_devices")

# Those that are about the Python text, or about what only it does.
PYTHON_ALONE = {
    "test_a_symbol_that_cannot_be_solved_for_is_named",
    "test_an_argument_without_text_is_refused",
    "test_profiler_ranges",
    "test_a_schedule_that_uses_a_dead_buffer_is_refused",
    "test_equal_kernels_are_one_function",
    "test_kernels_still_being_built_are_waited_for_at_the_first_call",
    "test_dumped_programs_can_be_run_and_timed",
    "test_bytes_moved_counts_a_buffer_once_and_what_stays_inside_not_at_all",
    "test_program_text",
    "test_an_exception_names_the_line_of_the_model",
    "test_a_scalar_for_operators_alone_may_be_on_another_device",
}
# Of those with kernels that take addresses to be round ones.
ALIGNED = (
    "test_inputs_at_odd_addresses_are_copied_first",
    "test_a_parameter_at_an_odd_address_is_copied",
    "test_a_parameter_that_moves_to_an_odd_address_is_followed",
    "test_what_is_written_to_an_input_arrives_there",
    "test_what_is_written_to_a_parameter_that_moved_arrives_there",
    "test_an_expanded_input_is_copied_as_it_is",
    "test_results_of_operators_at_odd_addresses_are_copied",
)
# One of each kind of request and of memory. A library is compiled for each test.
QUICK = {
    "test_arguments_of_every_kind",
    "test_results_of_every_kind",
    "test_effects_and_out_arguments",
    "test_a_mutated_input_is_written_in_place",
    "test_results_that_are_views_of_one_buffer",
    "test_functions_of_symbols_in_results",
    "test_symbols_that_an_operator_defines",
    "test_a_symbol_is_read_or_solved_for",
    "test_inputs_at_odd_addresses_are_copied_first",
    "test_a_parameter_that_moves_to_an_odd_address_is_followed",
}


def _of_both() -> dict[str, Any]:
    found = {name: getattr(devices, name) for name in ALIGNED}
    found |= {name: test for name, test in vars(programs).items() if name.startswith("test_")}
    named = {name: test for name, test in found.items() if name not in PYTHON_ALONE}
    assert named.keys() >= QUICK
    return {name: test if name in QUICK else pytest.mark.slow(test) for name, test in named.items()}


globals().update(_of_both())


@pytest.fixture(autouse=True)
def native(monkeypatch, tmp_path):
    """Hand-built programs run in their native form."""
    count = itertools.count()

    def module(builder, **options):
        program = builder.program(**options)
        kernels = {k.name: builder.functions[k.launches[0]] for k in program.kernels}
        return native_module(program, kernels, builder.objects, tmp_path / f"program{next(count)}")

    def with_native(text, kernels, objects):
        return native_module(planned.pop(), kernels, objects, tmp_path / f"program{next(count)}")

    def keep(program):
        planned.append(program)
        return python_text(program)

    planned = []
    monkeypatch.setattr(Builder, "module", module)
    monkeypatch.setattr(devices, "python_text", keep)
    monkeypatch.setattr(devices, "load", with_native)


def two_adds() -> Builder:
    b = Builder()
    b.tensor("x", (4,))
    b.tensor("y", (4,))
    b.launch(add, [b.buffer("a", (4,))], ["x", "y"])
    b.launch(add_one, [b.buffer("b", (4,))], ["a"])
    b.output("b")
    return b


def test_wrong_inputs_are_errors_at_any_call():
    module = two_adds().module()
    x, y = torch.randn(4), torch.randn(4)
    for _ in range(2):
        assert torch.equal(module([x, y])[0], x + y + 1)
        for wrong in ([x], [x, y, y], [], [x, 3], [x, None], [torch.randn(5), y], [x.double(), "y"]):
            with pytest.raises((InputLayoutError, TypeError, ValueError)):
                module(list(wrong))
        with pytest.raises(InputLayoutError, match="input y is int where a tensor was expected"):
            module([x, 3])
    with pytest.raises(TypeError, match="takes a list"):
        module((x, y))


def test_inputs_die_at_their_last_use():
    b = Builder()
    b.tensor("x", (4,))
    b.tensor("y", (4,))
    alive = []
    b.launch(lambda out, x: out.copy_(x), [b.buffer("a", (4,))], ["x"])
    b.launch(lambda out, a, y: alive.append(seen() is not None), [b.buffer("b", (4,))], ["a", "y"])
    b.output("b")
    module = b.module()
    for _ in range(2):
        x = torch.randn(4)
        seen = weakref.ref(x)
        args = [x, torch.randn(4)]
        del x
        module(args)
        assert args == []
    assert alive == [False, False]


def test_an_error_lets_go_of_everything():
    def fail(*operands):
        raise KeyError("no")

    b = Builder()
    b.tensor("x", (4,))
    b.launch(add_one, [b.buffer("a", (4,))], ["x"])
    b.launch(fail, [b.buffer("b", (4,))], ["a"])
    b.output("a", "b")
    module = b.module()
    for _ in range(3):
        x = torch.randn(4)
        seen = weakref.ref(x)
        with pytest.raises(KeyError, match="no"):
            module([x])
        del x
        assert seen() is None


def test_results_that_are_not_as_many_as_announced():
    b = Builder()
    b.tensor("x", (4,))
    b.objects["split"] = lambda x: [x + 1, x + 2, x + 3][: count[0]]
    b.call("object.split", [b.view("x")], [b.buffer("a", (4,)), b.buffer("b", (4,))], out="tuple")
    b.output("a", "b")
    module, x, count = b.module(), torch.randn(4), [2]
    assert torch.equal(module([x])[1], x + 2)
    for count[0] in (1, 3):
        with pytest.raises(ValueError, match=f"{count[0]} results came back where 2 were expected"):
            module([x])


def test_an_exception_names_its_operator():
    b = Builder()
    b.tensor("x", (4,))
    b.call("aten.view.default", [b.view("x"), (3,)], [b.buffer("a", (3,))], source="model.py:7")
    b.output("a")
    with pytest.raises(RuntimeError, match="is invalid for input of size 4") as caught:
        b.module()([torch.randn(4)])
    assert "was running aten.view.default at model.py:7" in caught.value.__notes__[0]


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", [DType.f64, DType.i16])
def test_memory_that_is_taken_over_in_another_layout(dtype):
    b = Builder()
    b.tensor("x", (4, 6), dtype=dtype)
    b.launch(lambda o, x: o.copy_(x), [b.buffer("a", (4, 6), dtype=dtype)], ["x"])
    b.launch(
        lambda o, a: o.copy_(a.reshape(6, 4).clone()),
        [b.buffer("b", (6, 4), dtype=dtype)],
        ["a"],
        inplace=[("b", "a")],
    )
    b.output("b")
    x = torch.randint(0, 9, (4, 6)).to(dtype.torch)
    assert torch.equal(b.module()([x])[0], x.reshape(6, 4))


def printed(builder: Builder, **options) -> str:
    """The text of a program whose kernels are all called directly."""
    program = builder.program(**options)
    calls = {
        launch.kernel: HostCall(
            "kernels.so",
            launch.kernel,
            tuple("ptr" if isinstance(o, str) else "i64" for o in launch.operands),
        )
        for launch in program.launches()
    }
    return host_text(native_program(program, calls))


def test_text_of_known_sizes(golden):
    b = Builder()
    b.tensor("x", (4, 6))
    b.constant("scale", torch.ones(6))
    b.launch(add_one, [b.buffer("a", (4, 6))], ["x"], kernel="add_one")
    b.launch(add, [b.buffer("b", (6, 4))], ["a", "scale"], kernel="add", inplace=[("b", "a")])
    b.launch(add_one, [b.buffer("c", (24,))], ["b"], kernel="add_one")
    b.call("aten.sort.default", [View("c", (6, 4), (1, 6))], [b.buffer("d", (6, 4)), ""], out="tuple")
    b.launch(add_one, [b.buffer("e", (6, 4))], ["d"], kernel="add_one")
    b.output("e", "x", None, View("e", (2,), (1,), 3))
    golden("program/native_static.cpp.txt", printed(b))


def test_text_of_dynamic_sizes(golden):
    b = Builder(s0=6)
    s0 = symbol("s0", 2)
    b.tensor("x", (2 * s0 + 1, 4))
    b.launch(add_one, [b.buffer("a", (s0, s0 // 2))], ["x"], s0, kernel="add_one")
    b.launch(add_one, [b.buffer("b", (s0,))], ["a"], s0 % 3, kernel="add_one")
    b.call(
        "aten.mm.out", [b.view("x"), View("x", (4, s0), (1, 4))], [b.buffer("c", (2 * s0 + 1, s0))], out="out"
    )
    b.output("b", "c", s0 * 3)
    golden("program/native_dynamic.cpp.txt", printed(b))


_MAIN = """
#include <stdio.h>
struct value { float* data; };
static int alive = 0;
static pf_ref make() { ++alive; return (pf_ref) new value{new float[4]}; }
static int request(void*, int32_t which, const pf_word*, pf_word* results) {
  if (ALLOCATES[which] == FAIL) return 1;
  if (ALLOCATES[which]) results[0].ref = make();
  return 0;
}
static int data(void*, pf_ref v, void** at) { *at = ((value*)v)->data; return 0; }
static void release(void*, pf_ref v) { delete[] ((value*)v)->data; delete (value*)v; --alive; }
static void add(float* out, const float* x, const float* y) {
  for (int i = 0; i < 4; ++i) out[i] = x[i] + y[i];
}
static void add_one(float* out, const float* x) {
  for (int i = 0; i < 4; ++i) out[i] = x[i] + 1;
}
int main() {
  void* kernels[] = {(void*)add, (void*)add_one};
  pf_runtime runtime = {PF_HOST_ABI, nullptr, kernels, nullptr, request, data, release, nullptr, nullptr};
  pf_word in[2], out[1];
  for (pf_word& word : in) {
    word.ref = make();
    for (int i = 0; i < 4; ++i) ((value*)word.ref)->data[i] = i;
  }
  const int status = POLYFUSE_KERNEL(&runtime, in, out);
  if (status == PF_OK) {
    for (int i = 0; i < 4; ++i) printf("%g ", ((value*)out[0].ref)->data[i]);
    release(nullptr, out[0].ref);
  }
  printf("%d %d\\n", status, alive);
}
"""


@pytest.mark.quick(1)
@pytest.mark.parametrize(("failing", "said"), [("", "1 3 5 7 0 0"), ("empty_strided_cpu", "1 0")])
def test_programs_need_neither_python_nor_torch(tmp_path, failing, said):
    program = two_adds().program()
    native = native_program(program, {k.name: _direct(k.kernel.args) for k in program.kernels})
    allocates = [2 * (r.name == failing) or int(r.name == "empty_strided_cpu") for r in native.requests]
    table = f"enum {{ FAIL = 2 }};\nstatic const int ALLOCATES[] = {{{', '.join(map(str, allocates))}}};"
    text = "\n".join((host_header("host"), host_header("program"), host_text(native), table, _MAIN))
    (tmp_path / "main.cpp").write_text(text)
    command = [find_toolchain().path, "-Wall", "-Wextra", "-Werror", str(tmp_path / "main.cpp"), "-o"]
    subprocess.run([*command, str(tmp_path / "main")], check=True, timeout=600)
    done = subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=True, timeout=600)
    assert done.stdout.strip() == said


def _direct(arguments) -> HostCall:
    return HostCall("kernels.so", "k", tuple("i64" if a.kind == "size" else "ptr" for a in arguments))
