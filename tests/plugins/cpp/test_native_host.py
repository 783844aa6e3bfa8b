"""Native host programs compute what Python programs do, with the same kernels."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch

import polyfuse  # noqa: F401 - registers the backend
from native_programs import assert_same, both, compare
from polyfuse.compiler.kernels import PendingKernel
from polyfuse.compiler.reports.report import last_reports, reset_reports
from polyfuse.plugin import No
from polyfuse_cpp.backend import CppBackend

NATIVE = "native, by cpp"


def chain(x, y):
    a = torch.relu(x) + y
    b = torch.softmax(a, -1)
    return b.sum(0), (b * 2 + a).cumsum(1), a.argmax(-1)


def with_matmuls(x, w, bias):
    h = torch.nn.functional.gelu(x @ w + bias)
    return torch.cat([h, h * 2], 1) @ torch.cat([w.t(), w.t()], 0)


def several_results(x):
    values, indices = torch.sort(x * 2, dim=1)
    return values + 1, indices * 2


def mutated(x, y):
    x.mul_(2).add_(y.sum())
    return y.t(), x, x.view(-1)


def odd_results(x):
    return None, x.shape[0], x[1:], (x + 1).t()


def with_constant(x):
    return x + torch.arange(4) * torch.tensor([1.0, 2.0, -0.0, float("inf")])


def test_programs_of_kernels_alone(tmp_path):
    x = torch.randn(7, 33)
    x[0, 0], x[1, 1], x[2, 2] = float("nan"), float("inf"), -0.0
    assert compare(chain, tmp_path, (x, torch.randn(7, 33))) == [NATIVE]


@pytest.mark.slow
@pytest.mark.parametrize("size", [(0, 4), (1, 1), (4, 1)])
def test_empty_and_tiny_inputs(tmp_path, size):
    def f(x):
        return x.sum(0), (x * 2).t(), x.sum()

    assert compare(f, tmp_path, (torch.randn(size),)) == [NATIVE]


def test_operators_of_the_library(tmp_path):
    """Some have several results; and constants."""

    def f(x, w, bias, y):
        return with_matmuls(x, w, bias), several_results(y), with_constant(y[:, :4])

    args = torch.randn(5, 8), torch.randn(8, 6), torch.randn(6), torch.randn(4, 9)
    assert compare(f, tmp_path, args) == [NATIVE]


def test_mutated_inputs_and_aliases(tmp_path):
    python, native = both(mutated, tmp_path)
    for x, y in [(torch.randn(3, 4), torch.randn(2, 5)), (torch.randn(3, 4), torch.randn(2, 5))]:
        torch._dynamo.reset()
        one, other = x.clone(), x.clone()
        want, got = python(one, y), native(other, y)
        assert_same(got, want)
        assert_same(other, one)
        assert got[1] is other and got[2].data_ptr() == other.data_ptr()


@pytest.mark.slow
def test_results_that_are_no_new_tensors(tmp_path):
    assert compare(odd_results, tmp_path, (torch.randn(4, 3),), dynamic=True) == [NATIVE]


@pytest.mark.slow
def test_strided_and_misaligned_inputs(tmp_path):
    memory = torch.randn(200)
    x, y = memory[1:101].view(10, 10).t(), memory[3:103].view(10, 10)
    assert compare(chain, tmp_path, (x, y), (x.contiguous(), y.t())) == [NATIVE] * 2


def test_dynamic_sizes(tmp_path):
    def f(x, w):
        h = (x * 2).view(x.shape[0] // 2, -1)
        return torch.softmax(h, -1), h @ w[: h.shape[1]], h.sum() / x.shape[0]

    calls = [(torch.randn(n, 6), torch.randn(20, 3)) for n in (4, 6, 10, 4)]
    assert compare(f, tmp_path, *calls, dynamic=True)[-1] == NATIVE


@pytest.mark.slow
def test_sizes_that_only_python_computes(tmp_path):
    def f(x):
        return torch.nn.functional.interpolate(x, scale_factor=1.5, mode="nearest") * 2

    calls = [(torch.randn(1, 2, n, n),) for n in (4, 5)]
    reports = compare(f, tmp_path, *calls, dynamic=True)
    assert all(text == NATIVE or text.startswith("Python: ") for text in reports) and reports


@pytest.mark.slow
def test_sizes_that_data_decide(tmp_path):
    def f(x):
        where = torch.nonzero(x > 0)
        return where * 2, where.float().sum(0)

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        calls = [(torch.randn(5, 4),), (-torch.ones(5, 4),)]
        assert compare(f, tmp_path, *calls, fullgraph=True) == [NATIVE]


@pytest.mark.slow
def test_numbers_read_from_data(tmp_path):
    def f(x, n):
        count = n.item()
        torch._check(count >= 0)
        torch._check(count <= 8)
        return x.narrow(0, 0, count) * 2, count

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        calls = [(torch.randn(8, 3), torch.tensor(k)) for k in (3, 8, 0)]
        assert set(compare(f, tmp_path, *calls, fullgraph=True)) == {NATIVE}


@pytest.mark.slow
def test_a_fraction_read_from_data_leaves_the_program_to_python(tmp_path):
    def f(x, n):
        return x * n.item()

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        calls = [(torch.randn(8), torch.tensor(k)) for k in (0.5, 2.0)]
        (text,) = compare(f, tmp_path, *calls, fullgraph=True)
    assert text == NATIVE or ("Python: " in text and "is read from data" in text)


@pytest.mark.slow
def test_lengths_of_ragged_tensors_leave_the_program_to_python(tmp_path):
    options = {"cache_dir": str(tmp_path), "native_host": True, "graph_cache": False}

    def function(x):
        return torch.sin(x) * 2, x.size(1)

    compiled = torch.compile(function, backend="polyfuse", options=options)
    reset_reports()
    for lengths in ((3, 5, 2), (4, 1)):
        rows = [torch.randn(n, 8) for n in lengths]
        x = torch.nested.nested_tensor(rows, layout=torch.jagged)
        result, length = compiled(x)
        torch.testing.assert_close(result.values(), torch.sin(x.values()) * 2)
        assert length == x.size(1)
    assert {"length of ragged tensors" in report.host.text() for report in last_reports()} == {True}


def test_branches(tmp_path):
    def branch(x):
        return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x,)) + 1

    assert NATIVE in compare(branch, tmp_path, (torch.ones(4),), (-torch.ones(4),), fullgraph=True)


@pytest.mark.slow
def test_loops(tmp_path):
    def loop(x):
        from torch._higher_order_ops import while_loop

        return while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, x * 2), (torch.tensor(0), x))

    assert NATIVE in compare(loop, tmp_path, (torch.randn(4),), fullgraph=True)


def test_training(tmp_path):
    def f(x, w):
        return torch.tanh(x @ w).square().mean()

    python, native = both(f, tmp_path)
    x, w = torch.randn(6, 4), torch.randn(4, 5)
    grads = []
    for compiled in (python, native):
        torch._dynamo.reset()
        reset_reports()
        one, other = x.clone().requires_grad_(), w.clone().requires_grad_()
        for _ in range(2):
            compiled(one, other).backward()
        grads.append((one.grad, other.grad))
    assert [report.host.text() for report in last_reports()] == [NATIVE] * 2
    assert_same(grads[1], grads[0])


@pytest.mark.slow
def test_memory_pools(tmp_path):
    def f(x, w):
        for _ in range(3):
            x = torch.softmax((x + 1).sum(0, keepdim=True) + x, -1).cumsum(0)
        return x @ w

    options = {"memory_pools": True, "max_fusion_size": 2}
    assert compare(f, tmp_path, (torch.randn(6, 6), torch.randn(6, 6)), options=options) == [NATIVE]


def test_errors_are_those_of_python_programs(tmp_path):
    def f(table, indices):
        return torch.nn.functional.embedding(indices * 1, table) * 2

    said = []
    for compiled in both(f, tmp_path, options={"force_fallback": ("aten.embedding",)}):
        torch._dynamo.reset()
        compiled(torch.randn(4, 3), torch.tensor([0, 3]))
        with pytest.raises(IndexError) as caught:
            compiled(torch.randn(4, 3), torch.tensor([0, 7]))
        said.append((str(caught.value), caught.value.__notes__[0].splitlines()[0]))
    assert said[0] == said[1] and "aten.embedding" in said[1][1]


@pytest.mark.slow
def test_memory_that_cannot_be_had_is_an_error(tmp_path):
    def f(x):
        return x.cumsum(0).sum()

    for compiled in both(f, tmp_path, options={"max_fusion_size": 1}, dynamic=True):
        torch._dynamo.reset()
        x = torch.ones(1)
        assert compiled(x.expand(20)) == 210
        with pytest.raises(RuntimeError, match="can't allocate memory"):
            compiled(x.expand(1 << 45))
        assert compiled(x.expand(30)) == 465


def test_nan_asserts(tmp_path):
    for compiled in both(torch.log, tmp_path, options={"nan_asserts": True}):
        torch._dynamo.reset()
        compiled(torch.ones(3))
        with pytest.raises(Exception, match="holds NaN"):
            compiled(-torch.ones(3))


def test_nothing_is_leaked(tmp_path):
    _, native = both(with_matmuls, tmp_path)
    args = torch.randn(5, 8), torch.randn(8, 6), torch.randn(6)
    native(*args)
    gc.collect()
    before = len(gc.get_objects()), sum(isinstance(o, torch.Tensor) for o in gc.get_objects())
    results = [weakref.ref(native(*args)) for _ in range(50)]
    assert all(result() is None for result in results)
    gc.collect()
    after = len(gc.get_objects()), sum(isinstance(o, torch.Tensor) for o in gc.get_objects())
    assert after[1] <= before[1] and after[0] - before[0] < 50


def test_several_threads(tmp_path):
    _, native = both(chain, tmp_path)
    inputs = [(torch.randn(7, 33), torch.randn(7, 33)) for _ in range(4)]
    wanted = [native(*args) for args in inputs]
    wrong: list[int] = []

    def work(number):
        for _ in range(50):
            got = native(*inputs[number])
            if not all(map(torch.equal, got, wanted[number])):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_what_stands_in_the_way_is_reported(tmp_path, monkeypatch):
    def report(**options):
        torch._dynamo.reset()
        reset_reports()
        x = torch.randn(4)
        shared = {"cache_dir": str(tmp_path), "native_host": True, "graph_cache": False, **options}
        assert torch.equal(torch.compile(torch.neg, backend="polyfuse", options=shared)(x), -x)
        (found,) = last_reports()
        return found.host.text()

    assert report(profile=True) == "Python: the option profile looks at every launch"
    with monkeypatch.context() as patch:
        patch.setattr(CppBackend, "host_program", lambda self, program: No("not today"))
        assert report() == "Python: no backend prints host programs"
    with monkeypatch.context() as patch:
        patch.setattr(PendingKernel, "folder", lambda self: None)
        assert "another kernel replaced" in report()
    with monkeypatch.context() as patch:
        patch.setattr("polyfuse_cpp.native_host.program.host_unit", lambda source: "#error no")
        assert "#error no" in report(cache_dir=str(tmp_path / "another"))


@pytest.mark.slow
def test_kernels_without_a_c_symbol_are_launched_from_python(tmp_path, monkeypatch):
    monkeypatch.setattr(CppBackend, "host", lambda self, source: None)
    assert compare(chain, tmp_path, (torch.randn(7, 9), torch.randn(7, 9))) == [NATIVE]


@pytest.mark.slow
def test_small_memory_lies_on_the_stack(tmp_path):
    def f(x):
        return torch.softmax((x * 2).sum(0, keepdim=True) + x, -1).cumsum(0)

    def printed(rows, dynamic=False):
        torch._dynamo.reset()
        dump = tmp_path / f"dump{rows}{dynamic}"
        shared = {"cache_dir": str(tmp_path), "native_host": True, "dump": str(dump), "max_fusion_size": 1}
        x = torch.randn(rows, 64)
        got = torch.compile(f, backend="polyfuse", options=shared, dynamic=dynamic)(x)
        # exponents of sums of many numbers: other orders of summation show in more digits than usual
        torch.testing.assert_close(got, f(x), rtol=1e-3, atol=1e-4)
        (path,) = dump.glob("*/host.c++")
        return path.read_text()

    small, large, dynamic = printed(8), printed(30_000), printed(8, dynamic=True)
    assert "alignas(64) char" in small and ".reserve(" not in small
    assert "alignas(64) char" not in large and ".reserve(" in large
    assert "s->pause" in large and "s->pause" not in small
    assert ".reserve(" in dynamic
