"""Host programs of models that run without Python, as text, and as a program without Python and torch."""

from __future__ import annotations

import subprocess

import pytest
import torch

from polyfuse.ir.nodes import View
from polyfuse.plugin import HostCall
from polyfuse.program.native.lowering import native_program
from polyfuse.symbolic import symbol
from polyfuse_cpp.native_host.text import host_header, host_text
from polyfuse_cpp.toolchain import find_toolchain
from program_builder import Builder, add, add_one


def two_adds() -> Builder:
    b = Builder()
    b.tensor("x", (4,))
    b.tensor("y", (4,))
    b.launch(add, [b.buffer("a", (4,))], ["x", "y"])
    b.launch(add_one, [b.buffer("b", (4,))], ["a"])
    b.output("b")
    return b


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
  pf_runtime runtime = {PF_HOST_ABI, nullptr, kernels, nullptr, request, data, release};
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
