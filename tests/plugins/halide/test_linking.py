"""Object files in this process, launchers made of a few instructions, and threads that are torch's."""

from __future__ import annotations

import ctypes
import threading

import pytest
import torch

from polyfuse.base.errors import KernelBuildError, KernelLoadError
from polyfuse.base.settings import Settings
from polyfuse.ir.expr import apply, cast, const, index_value, load
from polyfuse.ir.kernel import KernelArg
from polyfuse.ir.types import DType
from polyfuse.plugin import Launchable, Source
from polyfuse.symbolic import axis, symbol
from polyfuse.testing.cases.builder import Builder, Store
from requirements import HALIDE

pytest.importorskip("halide", reason=HALIDE)

from polyfuse_halide.backend import HalideBackend
from polyfuse_halide.launch import executable_memory, objects
from polyfuse_halide.toolchain import build_in_worker

F32, I64 = DType.f32, DType.i64


@pytest.fixture(scope="module")
def backend() -> HalideBackend:
    return HalideBackend(Settings.resolve())


def doubled(count) -> Builder:
    """out0 = in0 + in0; `count` may be a symbol."""
    i = axis("i0", count)
    args = [KernelArg("in0", "in", F32, count), KernelArg("out0", "out", F32, count)]
    if not isinstance(count, int):
        args.append(KernelArg("s0", "size", I64, hint=100))
    builder = Builder("doubled", (i,), (), tuple(args))
    value = load("in0", i, F32)
    return builder.once(Store("out0", i, apply("add", value, value)))


def built(backend: HalideBackend, builder: Builder, folder) -> Launchable:
    source = backend.emit(builder.kernel((100,)))
    backend.build([source], folder)
    return backend.load(folder)[source.key]


def test_a_launcher_takes_tensors_and_addresses(backend, tmp_path):
    launch = built(backend, doubled(37), tmp_path)
    x, y = torch.randn(37), torch.zeros(37)
    launch(x, y)
    assert torch.equal(y, x + x)
    y.zero_()
    launch(x.data_ptr(), y.data_ptr())
    assert torch.equal(y, x + x)


def test_a_launcher_says_how_many_arguments_it_takes(backend, tmp_path):
    launch = built(backend, doubled(5), tmp_path)
    for wrong in ((), (torch.zeros(5),), (torch.zeros(5),) * 3):
        with pytest.raises(TypeError, match="takes 2 arguments"):
            launch(*wrong)


def test_sizes_that_change_from_call_to_call(backend, tmp_path):
    launch = built(backend, doubled(symbol("s0")), tmp_path)
    for count in (0, 1, 70_001, 16, 3, 70_001):
        x, y = torch.randn(count), torch.full((count + 1,), 7.0)
        launch(x, y, count)
        assert torch.equal(y[:count], x + x) and y[count] == 7.0


def test_sizes_beyond_32_bits_are_refused(backend, tmp_path):
    launch = built(backend, doubled(symbol("s0")), tmp_path)
    x = torch.zeros(4)
    with pytest.raises(KernelLoadError, match="32-bit"):
        launch(x, x, 1 << 31)
    y = torch.zeros(4)
    launch(x + 1, y, 4)
    assert torch.equal(y, torch.full((4,), 2.0))


def test_many_arguments_go_over_the_stack(backend, tmp_path):
    count, i = 20, axis("i0", 20)
    args = [KernelArg(f"in{k}", "in", F32, count) for k in range(9)]
    args += [KernelArg(f"out{k}", "out", F32, count) for k in range(3)]
    builder = Builder("many", (i,), (), tuple(args))
    total = load("in0", i, F32)
    for k in range(1, 9):
        total = apply("add", total, load(f"in{k}", i, F32))
    stores = [Store(f"out{k}", i, apply("mul", total, const(k + 1.0, F32))) for k in range(3)]
    launch = built(backend, builder.once(*stores), tmp_path)
    inputs, outputs = [torch.randn(count) for _ in range(9)], [torch.zeros(count) for _ in range(3)]
    launch(*inputs, *outputs)
    for k, found in enumerate(outputs):
        torch.testing.assert_close(found, sum(inputs) * (k + 1.0))


def test_threads_with_sizes_of_their_own(backend, tmp_path):
    launch = built(backend, doubled(symbol("s0")), tmp_path)
    wrong: list[int] = []

    def work(count: int) -> None:
        x = torch.randn(count)
        for _ in range(50):
            y = torch.zeros(count)
            launch(x, y, count)
            if not torch.equal(y, x + x):
                wrong.append(count)

    threads = [threading.Thread(target=work, args=(n,)) for n in (3, 1000, 70_000, 17)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_nothing_to_read_where_a_mask_says_so(backend, tmp_path):
    """An empty tensor has no address; what stands in for masked elements must come from somewhere."""
    i = axis("i0", 40)
    builder = Builder("empty", (i,), (), (KernelArg("in0", "in", F32, 0), KernelArg("out0", "out", F32, 40)))
    never = apply("lt", index_value(i), const(0, I64))
    builder.once(Store("out0", i, load("in0", i, F32, (), never, const(3.0, F32))))
    launch = built(backend, builder, tmp_path)
    y = torch.zeros(40)
    launch(torch.empty(0), y)
    assert torch.equal(y, torch.full((40,), 3.0))


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_the_parallel_loop_takes_every_step_once(count):
    """Called as kernels call it: every number once, on whatever threads torch has."""
    task_type = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
    steps: list[int] = []

    @task_type
    def task(_context, number, _closure):
        steps.append(number)
        return 0

    loop = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.c_void_p, task_type, ctypes.c_int, ctypes.c_int, ctypes.c_void_p
    )(executable_memory.runtime_symbols()["halide_do_par_for"])
    assert loop(None, task, 10, count, None) == 0
    assert sorted(steps) == list(range(10, 10 + count))


def test_a_failing_step_is_reported():
    task_type = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
    task = task_type(lambda _context, number, _closure: 7 if number == 2 else 0)
    loop = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.c_void_p, task_type, ctypes.c_int, ctypes.c_int, ctypes.c_void_p
    )(executable_memory.runtime_symbols()["halide_do_par_for"])
    assert loop(None, task, 0, 4, None) == 7


def test_temporary_memory_is_aligned():
    symbols = executable_memory.runtime_symbols()
    take = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)(symbols["halide_malloc"])
    give = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(symbols["halide_free"])
    for size in (1, 100, 1 << 20):
        address = take(None, size)
        assert address and address % 128 == 0
        ctypes.memset(address, 1, size)
        give(None, address)


def test_libraries_of_the_system_are_found():
    sine = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(objects.resolve("sin"))
    assert sine(0.5) == pytest.approx(0.479425538604203)
    with pytest.raises(KernelLoadError, match="nowhere to be found"):
        objects.resolve("no_such_function_anywhere")


def test_what_is_no_object_is_refused(backend, tmp_path):
    with pytest.raises(KernelLoadError, match="no x86-64 object"):
        objects.link([b"not an object"], [])
    source = backend.emit(doubled(9).kernel())
    backend.build([source], tmp_path)
    data = (tmp_path / f"{source.key}.o").read_bytes()
    with pytest.raises(KernelLoadError, match="lacks the kernel"):
        objects.link([data], ["another_kernel"])
    (tmp_path / f"{source.key}.o").unlink()
    with pytest.raises(KernelLoadError, match="incomplete"):
        backend.load(tmp_path)


def test_functions_of_the_c_library_are_called(backend, tmp_path):
    """A kernel with calls outside: the sine of each element, in 64 bits."""
    i = axis("i0", 33)
    args = (KernelArg("in0", "in", F32, 33), KernelArg("out0", "out", F32, 33))
    builder = Builder("sines", (i,), (), args)
    wide = cast(load("in0", i, F32), DType.f64)
    builder.once(Store("out0", i, cast(apply("sin", wide), F32)))
    launch = built(backend, builder, tmp_path)
    x, y = torch.randn(33) * 100, torch.zeros(33)
    launch(x, y)
    torch.testing.assert_close(y, x.double().sin().float())


def test_a_malformed_program_fails_with_its_text(tmp_path):
    with pytest.raises(KernelBuildError) as caught:
        build_in_worker(
            [Source("broken", f"def {Source.SYMBOL}(p):\n    nonsense(p)\n", "halide")], tmp_path, {}
        )
    assert "broken" in caught.value.cause and "nonsense" in caught.value.output


DOUBLED = f"""def {Source.SYMBOL}(p):
    in0 = p.input("in0", "f32")
    p.axis("i0", 64)
    p.store("points", False, [[1]], lambda i0: (in0(i0) * 2, ))
"""
TOO_SMALL = """    import halide as hl
    x, wide, small = hl.Var("x"), hl.Func("wide"), hl.Func("small")
    small[x] = hl.f32(x)
    small.compute_root().bound(x, 0, 10)
    wide[x] = small[x + 1]
    wide.bound(x, 0, 20)
    files = {hl.OutputFileType.object: "OBJECT"}
    hl.Pipeline(wide).compile_to(files, [], "wide", hl.Target("host-no_asserts"))
"""


def test_a_pipeline_that_cannot_be_right_is_refused(tmp_path):
    """Halide only warns of bounds that are too small, and the kernel would write outside of a stage."""
    wrong = TOO_SMALL.replace("OBJECT", str(tmp_path / "wide.o"))
    sources = [Source("doubled", DOUBLED, "halide"), Source("wide", DOUBLED + wrong, "halide")]
    with pytest.raises(KernelBuildError) as caught:
        build_in_worker(sources, tmp_path, {})
    assert "kernel wide" in caught.value.cause and "guaranteed to fail" in caught.value.cause
    assert "explicit_bounds_too_small" in caught.value.output
    build_in_worker(sources[:1], tmp_path, {})
    with pytest.raises(KernelBuildError):
        build_in_worker(sources[::-1], tmp_path, {})
