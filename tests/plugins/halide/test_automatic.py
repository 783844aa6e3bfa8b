"""Halide's own schedulers: of which kernels they are asked, and that what they decide is right or refused."""

from __future__ import annotations

import os
import time

import pytest
import torch

from gemm_kernels import kernels_of
from halide_code import over_its_inputs
from polyfuse.base.errors import BackendUnavailableError, UnsupportedError
from polyfuse.base.settings import Settings
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.text.parse import parse
from polyfuse.plugin import Config
from requirements import HALIDE

pytest.importorskip("halide", reason=HALIDE)

from polyfuse_halide.backend import HalideBackend
from polyfuse_halide.schedules.automatic import SCHEDULERS, automatic_fault
from polyfuse_halide.schedules.autoschedule import apart, check_touched, uneven

ON_PROCESSORS = SCHEDULERS[:3]


def backend(**options: str) -> HalideBackend:
    return HalideBackend(Settings.resolve(options={f"halide.{name}": v for name, v in options.items()}))


def bias(rows: int, columns: int) -> Kernel:
    (found,) = kernels_of(lambda x, b: torch.sin(x) + b, torch.randn(rows, columns), torch.randn(columns))
    return found


@pytest.mark.quick(2)
@pytest.mark.parametrize("scheduler", ON_PROCESSORS)
@pytest.mark.parametrize(
    "name", ["sum of rows", "sum of columns", "transposed", "largest", "joined", "broadcast"]
)
def test_kernels_by_each_scheduler_are_right(scheduler, name, tmp_path):
    x, w = torch.randn(64, 224), torch.randn(224)
    function, args = {
        "sum of rows": (lambda x: x.sum(1), (x,)),
        "sum of columns": (lambda x: x.sum(0), (x,)),
        "transposed": (lambda x: x.t().contiguous() + 1, (x,)),
        "largest": (lambda x: x.argmax(1), (x,)),
        "joined": (lambda x, w: torch.cat([x, x * w], 1), (x, w)),
        "broadcast": (lambda x: x[:, None] * x[None] + 1, (w,)),
    }[name]
    made = backend(autoscheduler=scheduler)
    for kernel in kernels_of(function, *args):
        assert automatic_fault(kernel) == ""
        config, plain = made.configs(kernel)
        assert plain == Config()
        source = made.emit(kernel)
        assert source == made.emit(kernel, config) and source.note == f"scheduled by {scheduler}"
        made.build([source], tmp_path)
    options = {"backends": ["halide"], "halide.autoscheduler": scheduler, "strict": True}
    torch._dynamo.reset()
    found = torch.compile(function, backend="polyfuse", options=options)(*args)
    torch.testing.assert_close(found, function(*args), rtol=1e-4, atol=1e-4)


@pytest.mark.quick(2)
@pytest.mark.parametrize("scheduler", ON_PROCESSORS)
@pytest.mark.parametrize("shape", [(3, 3), (5, 7), (33, 517), (128, 256)])
def test_nothing_beside_a_result_is_written(scheduler, shape, tmp_path):
    """Whatever the size: either the schedule is refused, or it stays within the buffers."""
    made, kernel = backend(), over_its_inputs(bias(*shape))
    (config,) = [c for c in made.configs(kernel) if c.get("auto") == SCHEDULERS.index(scheduler) + 1]
    source = made.emit(kernel, config)
    try:
        made.build([source], tmp_path)
    except UnsupportedError as error:
        assert "touches" in str(error) or "computed twice" in str(error)
        assert shape != (128, 256) or scheduler == "Li2018", "this size can be divided evenly"
        return
    x, b, around = torch.randn(shape), torch.randn(shape[1]), torch.full((shape[0] + 2, shape[1]), 7.0)
    given = x.clone()
    made.load(tmp_path)[source.key](given, b, around[1:-1])
    torch.testing.assert_close(around[1:-1], x.sin() + b, rtol=1e-5, atol=1e-5)
    assert bool((around[0] == 7).all() and (around[-1] == 7).all())
    made.load(tmp_path)[source.key](given, b, given)
    torch.testing.assert_close(given, x.sin() + b, rtol=1e-5, atol=1e-5)


def test_a_schedule_that_is_refused_leaves_the_kernel_to_this_backend():
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * 2

    x = torch.randn(3, 3)
    torch._dynamo.reset()
    options = {"backends": ["halide"], "halide.autoscheduler": "adams2019", "strict": True, "cache": False}
    torch.testing.assert_close(torch.compile(function, backend="polyfuse", options=options)(x), function(x))


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("computed reads", "reads at computed indices"),
        ("computed stores", "stores at computed indices"),
        ("changing sizes", "sizes change"),
        ("a point", "one point"),
    ],
)
def test_kernels_of_which_no_scheduler_is_asked(name, words):
    x, i = torch.randn(40, 20), torch.randint(0, 40, (70,))
    function, args = {
        "computed reads": (lambda x, i: x[i] * 2, (x, i)),
        "computed stores": (lambda x, i: x.index_add(0, i, torch.ones(70, 20)), (x, i)),
        "changing sizes": (lambda x: x.sin(), (x,)),
        "a point": (lambda x: x.sum(), (x,)),
    }[name]
    kernels = kernels_of(function, *args, dynamic=name == "changing sizes", index_asserts=False)
    (kernel,) = [k for k in kernels if words in automatic_fault(k)]
    made = backend(autoscheduler="Adams2019")
    assert list(made.configs(kernel)) == [Config()] and "scheduled by" not in made.emit(kernel).note
    with pytest.raises(UnsupportedError, match=words):
        made.emit(kernel, Config.of(auto=2))


def test_schedulers_take_part_in_trials():
    kernel = bias(128, 256)
    assert [c.get("auto") for c in backend().configs(kernel) if c.get("auto")] == [1, 2, 3]
    assert backend().estimate(kernel, Config.of(auto=1)) == backend().estimate(kernel, Config())
    assert not any(c.get("auto") for c in backend(schedule="lanes=8").configs(kernel))


@pytest.mark.slow  # in processes of their own; that they take part is tested above
def test_trials_with_schedulers(tmp_path):
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.tanh().sum(0)

    x = torch.randn(64, 128)
    options = {"backends": ["halide"], "tune_kernels": True, "strict": True, "tune_seconds": 1}
    options["tune_log"] = str(tmp_path / "trials.jsonl")
    options["cache_dir"] = str(tmp_path / "cache")
    torch._dynamo.reset()
    found = torch.compile(function, backend="polyfuse", options=options)(x)
    torch.testing.assert_close(found, function(x), rtol=1e-4, atol=1e-4)
    assert "auto=" in (tmp_path / "trials.jsonl").read_text()


POINTS = """kernel points on cuda {
  numerics fast
  axes i0{512} ~ 512, i1{1024} ~ 1024
  in in0: f32[524288] aligned
  out out0: f32[524288] aligned
  once {
    v0 = load f32 in0[1024*i0 + i1]
    v1 = exp f32 (v0)
    store f32 set out0[1024*i0 + i1] = v1
  }
}
"""


def test_a_scheduler_for_devices(tmp_path):
    made = backend(gpu="80", autoscheduler="Anderson2021")
    kernel = parse(POINTS)
    source = made.emit(kernel)
    assert source.note == "scheduled by Anderson2021"
    made.build([source], tmp_path)
    assert b".target sm_80" in (tmp_path / f"{source.key}.o").read_bytes()
    assert [c.get("auto") for c in backend(gpu="80").configs(kernel)] == [0, 4]


@pytest.mark.parametrize("name", ["Adams", "2019"])
def test_a_scheduler_that_does_not_exist(name):
    with pytest.raises(BackendUnavailableError, match="Mullapudi2016"):
        backend(autoscheduler=name)


def test_what_is_touched_must_be_known():
    line = 'assert(x, halide_error_access_out_of_bounds("Input buffer in0_in", 0, {}, {}, in0_in.min.0, 9))\n'
    check_touched(line.format(0, 9), {"in0_in": [10]})
    for low, high, words in ((-3, 9, "-3 to 9"), (0, 10, "0 to 10"), (0, "x", "not known")):
        with pytest.raises(UnsupportedError, match=words):
            check_touched(line.format(low, high), {"in0_in": [10]})
    with pytest.raises(UnsupportedError, match="out0"):
        check_touched(line.format(0, 9), {"in0_in": [10], "out0": [4]})


def test_loops_that_are_not_divided_evenly():
    text = "other\n    .split(i0, a, b, 7);\nout\n    .split(i0, i0, i0i, 16, TailStrategy::ShiftInwards)\n"
    text += "    .split(i0i, u, v, 8)\n    .vectorize(v, 4)\n    .parallel(i0);\n"
    assert uneven(text, "out", {"i0": 64}) == ""
    assert uneven(text, "out", {"i0": 40}) == "the loop i0 of 40 is divided by 16"
    assert "v of 8 is divided by 3" in uneven(text.replace("(v, 4)", "(v, 3)"), "out", {"i0": 64})
    text = "out$2.compute_root()\n    .split(i1,v1,v2,8,ShiftInwards)\n    .fuse(v1,i0,v1)\n"
    text += "    .parallel(v1,16,ShiftInwards)\n"
    assert uneven(text, "out$2", {"i0": 4, "i1": 32}) == ""
    assert "v1 of 12 is divided by 16" in uneven(text, "out$2", {"i0": 3, "i1": 32})
    assert "nothing is said" in uneven(text, "absent", {"i0": 64})


def test_what_crashes_or_does_not_end_costs_only_itself():
    apart(lambda: None, 60)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        apart(lambda: 1 // 0 and None, 60)
    with pytest.raises(RuntimeError, match="died of signal 9"):
        apart(lambda: os.kill(os.getpid(), 9), 60)
    with pytest.raises(TimeoutError):
        apart(lambda: time.sleep(600), 0.2)


def test_a_refusal_elsewhere_is_a_refusal_here():
    def refusing() -> None:
        raise UnsupportedError("this schedule is no good", "take another")

    with pytest.raises(UnsupportedError, match="no good"):
        apart(refusing, 60)


def test_a_result_over_what_is_still_read_is_refused_not_the_schedule():
    (kernel,) = kernels_of(lambda x: x - x.sum(1, keepdim=True), torch.randn(40, 20))
    kernel, made = over_its_inputs(kernel), backend(autoscheduler="Adams2019")
    config = made.configs(kernel)[0]
    assert kernel.aliases and config.get("auto")
    assert made.emit(kernel, config).refused_aliases == kernel.aliases
