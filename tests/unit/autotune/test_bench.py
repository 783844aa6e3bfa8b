"""Operands of tried, runs of candidates, and how results are compared."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from ir_samples import gather_kernel, softmax_kernel
from polyfuse.autotune import benchmark as benchmark_module
from polyfuse.autotune.benchmark import Benchmark
from polyfuse.autotune.candidate import (
    BuiltProgram,
    CallStep,
    Fault,
    Problem,
    Slot,
    Storage,
    TorchName,
    Window,
)
from polyfuse.autotune.kernels import _operands
from polyfuse.autotune.segments import tolerance
from polyfuse.autotune.worker import InProcessRunner
from polyfuse.base.errors import InvalidOptionError
from polyfuse.plugin import Backend, Device, HostTimer, Timer
from polyfuse.plugin import timing as timing_module
from polyfuse.runtime.devices.registry import use_device


def no_backend(name: str) -> Backend:
    class Plain(Backend):
        claims = emit = build = load = None  # type: ignore[assignment]

    Plain.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]
    return Plain(None)  # type: ignore[arg-type]


def storage(count: int, dtype: str = "float32", **more: object) -> Storage:
    return Storage(dtype, "cpu", count, **more)  # type: ignore[arg-type]


def square(number: int, n: int = 4, offset: int = 0) -> Window:
    return Window(number, (n, n), (n, 1), offset, "float32")


def call(op: str, *args: object, into: int = 2, out: bool = True) -> BuiltProgram:
    return BuiltProgram(op, (CallStep(op, args, (), square(into), out),))


PROBLEM = Problem("a product", "cpu", "any", (storage(16), storage(16), storage(16)), (2,), 1e-3)
MM = call("aten.mm.out", square(0), square(1))


def test_tolerances_are_those_asked_for_an_operator_or_those_of_the_type():
    both = (storage(1), storage(1, "bfloat16"))
    by_type, asked = tolerance(both), ("aten.mm=0.5", "aten.exp.default = 0.25")
    assert tolerance(both, ["aten.add.Tensor"], asked) == by_type
    assert tolerance(both, ["aten.mm.default"], asked) == 0.5
    assert tolerance(both, ["aten.mm.default", "aten.exp.default"], asked) == 0.5
    assert tolerance(both, ["aten.exp.default"], asked) == 0.25
    for wrong in ("aten.mm", "aten.mm=much", "aten.mm=0"):
        with pytest.raises(InvalidOptionError, match="write operator=number"):
            tolerance(both, ["aten.mm.default"], [wrong])


class TestOperands:
    def test_buffers_have_their_extent_and_type(self):
        kernel = softmax_kernel()
        storages, operands = _operands(kernel)
        assert len(operands) == len(kernel.args)
        for arg, value in zip(kernel.args, operands, strict=True):
            if isinstance(value, Slot):
                made = storages[value.number]
                assert f"torch.{made.dtype}" == str(arg.dtype.torch)
                assert made.fill == ("normal" if arg.dtype.is_float and arg.kind != "out" else "zero")
            else:
                assert value == arg.hint

    def test_integers_may_be_indices(self):
        storages, _ = _operands(gather_kernel())
        whole = [s for s in storages if not s.dtype.startswith(("float", "bfloat"))]
        assert whole and all(s.fill == "zero" for s in whole)

    def test_the_users_random_numbers_stay_what_they_are(self):
        torch.manual_seed(3)
        expected = torch.rand(4)
        torch.manual_seed(3)
        first, second = Benchmark(no_backend), Benchmark(no_backend)
        first.prepare(PROBLEM)
        assert torch.equal(torch.rand(4), expected)
        second.prepare(PROBLEM)
        for a, b in zip(first._sets[0], second._sets[0], strict=True):
            assert torch.equal(a, b) and a.any()

    @pytest.mark.parametrize("dtype", ["float8_e4m3fn", "bfloat16", "float16", "float64"])
    def test_narrow_and_wide_numbers(self, dtype):
        bench = Benchmark(no_backend)
        bench.prepare(Problem("", "cpu", "any", (storage(50, dtype), storage(9, "int8", fill="small"))))
        numbers, small = bench._sets[0]
        assert numbers.float().std() > 0.3
        assert small.min() >= 0 and small.max() <= 7 and small.any()

    def test_large_operands_repeat_what_was_drawn(self):
        bench = Benchmark(no_backend)
        bench.prepare(Problem("", "cpu", "any", (storage(150_000, "bfloat16"), storage(70_000, "float64"))))
        for held in bench._sets[0]:
            again = held[65537:131074]
            assert held[:65537].unique().numel() > 200 and torch.equal(again, held[: len(again)])
            assert held[-1] != 0

    def test_what_is_cold_has_copies_that_take_turns(self):
        bench = Benchmark(no_backend, lambda backend, device_type: HostTimer(cold_bytes=1536))
        cold = (storage(64, cold=True), storage(16), storage(16))
        bench.prepare(Problem("", "cpu", "any", cold, (2,), 1e-3))
        assert len(bench._sets) == 6  # 256 bytes each, 1.5 times the cache
        assert len({held[0].data_ptr() for held in bench._sets}) == 6
        assert len({held[1].data_ptr() for held in bench._sets}) == 1
        bench.prepare(Problem("", "cpu", "any", (storage(1, cold=True),)))
        assert len(bench._sets) == 64


class TestRuns:
    def test_a_candidate_is_timed(self):
        bench = Benchmark(no_backend)
        bench.prepare(PROBLEM)
        assert 0 < bench.first(MM) < 1000 and 0 < bench.sample(MM) < 1000

    def test_what_takes_long_is_run_once_less_at_first(self, monkeypatch):
        bench = Benchmark(no_backend)
        bench.prepare(PROBLEM)
        runs: list[int] = []
        monkeypatch.setattr(bench, "_runs", lambda candidate: [lambda: runs.append(1)])
        for limit, count in ((0.0, 2), (1000.0, 3)):
            monkeypatch.setattr(benchmark_module, "_LONG_SECONDS", limit)
            runs.clear()
            bench.first(MM)
            assert len(runs) == count

    def test_a_timer_of_a_plugin_takes_the_time(self):
        class Clock(Timer):
            one_by_one = True

            def milliseconds(self, launches):
                launches[0]()
                return next(clock)

        bench = Benchmark(no_backend, lambda backend, device_type: Clock())
        bench.prepare(PROBLEM)
        clock = iter([3.0])
        assert bench.sample(MM) == 3.0
        # steps together, or one by one, whichever is less
        both = BuiltProgram("both", (*MM.steps, *call("aten.add.out", square(0), square(1)).steps))
        clock = iter([5.0, 1.0, 2.0])
        assert bench.sample(both) == 3.0
        clock = iter([2.5, 1.0, 2.0])
        assert bench.sample(both) == 2.5

    def test_one_run_in_which_the_machine_did_something_else_says_nothing(self, monkeypatch):
        clock, taken = [0.0], [0.02, *[0.001] * 20]
        monkeypatch.setattr(timing_module, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
        bench = Benchmark(no_backend)
        bench.prepare(PROBLEM)

        def run() -> None:
            clock[0] += taken.pop(0)

        bench._loaded[MM.name] = [run]
        assert bench.sample(MM) == pytest.approx(1.0) and len(taken) == 18
        taken[:] = [0.04, 0.04]
        assert bench.sample(MM) == pytest.approx(40.0) and len(taken) == 1

    def test_what_is_updated_in_place_is_put_back_before_each_sample(self):
        bench = Benchmark(no_backend)
        bench.prepare(Problem("in place", "cpu", "any", (storage(16, updated=True),), (0,), 1e-3))
        (held,) = bench._sets[0]
        began, seen = held.clone(), []

        def run() -> None:
            seen.append(held.clone())
            held.add_(1)

        doubled = call("aten.add.out", square(0), square(0), into=0)
        bench._loaded[doubled.name] = [run]
        for measured in (bench.first, bench.sample, bench.sample):
            seen.clear()
            measured(doubled)
            assert torch.equal(seen[0], began) and len(seen) > 1

    def test_results_are_compared_on_fresh_operands(self):
        bench = Benchmark(no_backend)
        bench.prepare(PROBLEM)
        bench.first(MM)
        assert bench.check(call("aten.matmul.out", square(0), square(1)), MM) < 1
        assert bench.check(call("aten.mm.default", square(0), square(1), out=False), MM) < 1
        assert bench.check(call("aten.add.out", square(0), square(1)), MM) > 1

    def test_a_result_that_is_no_number(self):
        a, b = torch.ones(4), torch.ones(4)
        b[2] = torch.nan
        assert benchmark_module._distance(a, b, 1e-3) == float("inf")
        assert benchmark_module._distance(b, b.clone(), 1e-3) == 0
        assert benchmark_module._distance(torch.zeros(2), torch.zeros(2), 1e-3) == 0
        assert benchmark_module._distance(torch.ones(2).int(), torch.zeros(2).int(), 1.0) == float("inf")

    def test_arguments_of_all_kinds(self):
        bench = Benchmark(no_backend)
        bench.prepare(PROBLEM)
        step = CallStep("aten.sum.dim_IntList", (square(0), (1,), True), (("dtype", TorchName("float64")),))
        bench.first(BuiltProgram("sum", (step,)))
        view = Window(0, (2, 2), (4, 1), 5, "int32")
        assert benchmark_module._value(view, bench._sets[0]).dtype is torch.int32

    def test_what_raises_is_a_fault(self):
        runner = InProcessRunner(no_backend)
        with pytest.raises(Fault, match="no problem"):
            runner.sample(MM)
        runner.prepare(PROBLEM)
        with pytest.raises(Fault, match="RuntimeError"):
            runner.first(call("aten.mm.out", square(0), Window(1, (3, 3), (3, 1), 0, "float32")))
        runner.close()


class Rounding(Device):
    """A device whose libraries round the operands of convolutions."""

    def rounds(self, what: str) -> bool:
        return what == "convolutions"


def test_the_narrowest_type_says_how_far_results_may_be_apart():
    assert tolerance([storage(1, "float64")]) < tolerance([storage(1)]) < tolerance([storage(1, "bfloat16")])
    assert tolerance([storage(1), storage(1, "int8")]) == tolerance([storage(1)])
    use_device("cuda", Rounding("cuda"))
    try:
        assert tolerance([Storage("float32", "cuda:0", 1)]) > tolerance([storage(1)])
    finally:
        use_device("cuda", None)
    assert tolerance([storage(1, "float8_e5m2")]) > 0.1
