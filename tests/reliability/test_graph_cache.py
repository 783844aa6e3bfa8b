"""Compiled graphs that an earlier process stored: found where they fit, and nowhere else."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import preforked
from called_functions import Twice
from graph_caching import (  # noqa: F401
    again,
    built_kernels,
    cache_of_its_own,
    check,
    compiled,
    differentiated,
)
from new_process import as_in_a_new_process
from polyfuse import cli
from polyfuse.base import code
from polyfuse.cache.graphs import GraphCounts, graph_counts
from polyfuse.cache.key_fields import KeyNotes, differences
from polyfuse.compiler.reports.explain import explain
from polyfuse.compiler.reports.report import GraphReport, last_reports
from polyfuse.torch_compat.tracing import global_state


def entries(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "cache" / "compiled").glob("[!.]*/*") if path.is_file()]


def soft(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * 3, -1)


def written(x: torch.Tensor) -> torch.Tensor:
    x.relu_()
    return x.flatten(0, 1)


@pytest.mark.parametrize("grad", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_view_of_a_written_input_is_found(grad):
    """Its strides are compared at each call, also where nothing is traced."""

    def given() -> torch.Tensor:
        return torch.linspace(-2, 2, 364).view(7, 4, 13).requires_grad_(grad)[1:, :, 2:12] * 1

    def strided() -> torch.Tensor:
        return torch.linspace(-2, 2, 364).requires_grad_(grad).mul(1).view(7, 4, 13)[1:, :, 2:12]

    for make in (given, strided):
        for found in (False, True):
            as_in_a_new_process()
            result, expected = compiled(written, make(), dynamic=True), written(make())
            assert (graph_counts().hits, graph_counts().misses) == (int(found), int(not found))
            assert result.stride() == expected.stride()
            torch.testing.assert_close(result, expected)
            if grad:
                result.sum().backward()  # what has gradients is stored when its backward is compiled


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "function",
    [
        soft,
        lambda x: (x.sin(), x, x.shape[0], None),
        lambda x: x.t().contiguous() @ x,
        lambda x: x + torch.tensor([1.0, 2.0, 3.0]).sum(),
        lambda x: torch.nn.functional.dropout(x, 0.5, training=False),
        lambda x: (x.view(-1)[1:], x.chunk(2, 0)[1]),
        lambda x: x.sort(0).values.cumsum(-1),
        lambda x: x.bfloat16() * 2,
    ],
)
@pytest.mark.usefixtures("built_kernels")
def test_results_are_those_of_a_compile(function):
    check(function, torch.randn(6, 30))


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "x", [torch.empty(0, 4), torch.ones(1, 1), torch.tensor([[float("nan"), -0.0, float("inf")]])]
)
def test_edges(x):
    check(lambda x: torch.relu(x) + x.abs(), x)


def test_a_strided_input():
    check(soft, torch.randn(30, 6).t())


def test_inputs_that_are_written_to():
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(y.exp())
        return x * 2

    for _ in range(2):
        as_in_a_new_process()
        x, y = torch.randn(4, 5), torch.randn(4, 5)
        mine, theirs = x.clone(), x.clone()
        torch.testing.assert_close(compiled(f, mine, y), f(theirs, y))
        torch.testing.assert_close(mine, theirs)
    assert graph_counts().hits == 1


def test_results_that_are_views_of_inputs():
    x = torch.randn(4, 5)
    for _ in range(2):
        as_in_a_new_process()
        view, other = compiled(lambda x: (x.view(-1), x * 2), x)
        assert view.data_ptr() == x.data_ptr() and view.shape == (20,)
        torch.testing.assert_close(other, x * 2)
    assert graph_counts().hits == 1


def trained(model: torch.nn.Module, x: torch.Tensor, **options: Any) -> list[torch.Tensor]:
    model.zero_grad()
    x = x.clone().requires_grad_()
    call = torch.compile(model, backend="polyfuse", options={"strict": True}) if options else model
    result = call(x)
    result.square().sum().backward()
    return [result.detach(), x.grad, *(p.grad.clone() for p in model.parameters())]


def test_training():
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.LayerNorm(8), torch.nn.GELU())
    x = torch.randn(5, 6)
    expected = trained(model, x)
    for hits in (0, 1):
        as_in_a_new_process()
        torch.testing.assert_close(trained(model, x, compiled=True), expected)
        assert graph_counts().hits == hits
    assert [r.kind for r in last_reports()] == ["forward", "backward"] and last_reports()[0].cached


def test_a_graph_whose_backward_never_ran_is_not_stored(tmp_path):
    x = torch.randn(5, 30, requires_grad=True)
    for _ in range(2):
        assert again(soft, x).misses == 1 and not entries(tmp_path)


@pytest.mark.quick(1)
@pytest.mark.parametrize("at_first", [False, True])
def test_a_backward_that_runs_twice(at_first):
    """What it may overwrite is needed again, whichever process met that first."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return (x.sin().exp() * x.cos().sigmoid()).softmax(-1).square()

    x = torch.randn(7, 33, requires_grad=True)
    for hits, repeated in ((0, at_first), (1, True), (1, False)):
        as_in_a_new_process()
        result, expected = compiled(f, x).sum(), f(x).sum()
        wanted = torch.autograd.grad(expected, x)
        for keep in (True, True, False) if repeated else (False,):
            torch.testing.assert_close(torch.autograd.grad(result, x, retain_graph=keep), wanted)
        assert graph_counts().hits == hits and graph_counts().errors == 0
    several = torch.autograd.grad(compiled(f, x).sum(), x, torch.tensor([1.0, 2.0]), is_grads_batched=True)[0]
    torch.testing.assert_close(several, torch.stack([wanted[0], 2 * wanted[0]]))


def test_statistics_of_a_model_are_updated():
    for hits in (0, 1):
        as_in_a_new_process()
        torch.manual_seed(0)
        mine, theirs = torch.nn.BatchNorm1d(6), torch.nn.BatchNorm1d(6)
        x = torch.randn(5, 6)
        found, expected = compiled(mine, x), theirs(x)
        torch.testing.assert_close(found, expected)
        found.sum().backward()
        torch.testing.assert_close(mine.running_var, theirs.running_var)
        assert mine.num_batches_tracked == 1 and graph_counts().hits == hits


def test_random_numbers_follow_the_seed():
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x, 0.5)

    results = []
    for _ in range(2):
        as_in_a_new_process()
        torch.manual_seed(3)
        results.append(compiled(f, torch.ones(100)))
    assert torch.equal(*results)
    torch.manual_seed(4)
    assert not torch.equal(compiled(f, torch.ones(100)), results[0])


def test_dynamic_sizes_and_the_guards_under_which_a_graph_was_made():
    def f(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > 8:
            return x.sin() + 1
        return x.sin() + 1 if x.shape[0] % 2 else x.cos()

    for rows in (4, 16, 17):
        first, second = (again(f, torch.randn(rows, 5), dynamic=True) for _ in range(2))
        assert second.hits == 1, (rows, first, second)
    torch._dynamo.mark_dynamic(x := torch.randn(12, 5), 0)
    function = torch.compile(f, backend="polyfuse")
    for rows in (12, 20, 6, 5):
        x = torch.randn(rows, 5)
        torch.testing.assert_close(function(x), f(x))


@pytest.mark.usefixtures("built_kernels")
def test_programs_for_classes_of_sizes_after_a_hit(monkeypatch):
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.square().sum(-1)

    def fail(*args: Any, **named: Any) -> Any:
        raise AssertionError("a graph is compiled")

    options = {"strict": True, "sizes": [300]}
    for hits in (0, 1):
        as_in_a_new_process()
        function = torch.compile(f, backend="polyfuse", options=options, dynamic=True)
        with monkeypatch.context() as context:
            if hits:  # neither the first program nor the one ahead is compiled again
                context.setattr("polyfuse.compiler.stages.compile_graph", fail)
            for columns in (5, 300):
                torch.testing.assert_close(function(torch.ones(3, columns)), torch.full((3,), float(columns)))
        assert graph_counts().hits == hits
        # what comes later is compiled from the stored graph
        torch.testing.assert_close(function(torch.ones(3, 5000)), torch.full((3,), 5000.0))
        (report,) = last_reports()
        assert report.sizes is not None and (3, 5000) in report.sizes.made


def test_a_guard_made_by_the_compiler_holds_after_a_hit():
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.view(2, -1).sum(0)

    for hits in (0, 1):
        as_in_a_new_process()
        function = torch.compile(f, backend="polyfuse", dynamic=True)
        for rows in (6, 8, 10):
            x = torch.randn(rows, 3)
            torch.testing.assert_close(function(x), f(x))
        assert graph_counts().hits >= hits
        with pytest.raises(RuntimeError):
            function(torch.randn(1, 3))


CHANGES: dict[str, Callable[[], Any]] = {
    "type": lambda: again(soft, torch.randn(5, 30, dtype=torch.float64)),
    "size": lambda: again(soft, torch.randn(5, 31)),
    "stride": lambda: again(soft, torch.randn(30, 5).t()),
    "constant": lambda: again(lambda x: torch.softmax(x * 4, -1), torch.randn(5, 30)),
    "kind of number": lambda: again(lambda x: torch.softmax(x * 3.0, -1), torch.randn(5, 30)),
    "option": lambda: again(soft, torch.randn(5, 30), numerics="eager"),
    "backend": lambda: again(soft, torch.randn(5, 30), backends=["cpp"]),
}


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", CHANGES)
def test_what_is_not_the_same_is_not_found(name):
    assert again(soft, torch.randn(5, 30)).misses == 1
    assert CHANGES[name]().hits == 0
    assert again(soft, torch.randn(5, 30)).hits == 1


SWITCHES = {
    "precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "high"),
    "precision of cuBLAS": (
        lambda: torch.backends.cuda.matmul.fp32_precision,
        partial(setattr, torch.backends.cuda.matmul, "fp32_precision"),
        "tf32",
    ),
    "deterministic": (
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
        True,
    ),
    "gradients": (torch.is_grad_enabled, torch.set_grad_enabled, False),
    "default type": (torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    "threads": (torch.get_num_threads, torch.set_num_threads, torch.get_num_threads() + 1),
}


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", SWITCHES)
def test_switches_of_torch_are_part_of_the_key(name):
    get, put, other = SWITCHES[name]
    before = get()
    assert again(soft, torch.randn(5, 30)).misses == 1
    try:
        put(other)
        assert again(soft, torch.randn(5, 30, dtype=torch.float32)).hits == 0
    finally:
        put(before)
    assert again(soft, torch.randn(5, 30)).hits == 1


def test_gradients_are_part_of_the_key():
    x = torch.randn(5, 30)
    assert again(soft, x).misses == 1
    assert again(soft, x.clone().requires_grad_()).hits == 0
    with torch.no_grad():
        assert again(soft, x).hits == 0
    assert again(soft, x).hits == 1


def test_autocast_is_part_of_the_key():
    layer = torch.nn.Linear(8, 8)
    x = torch.randn(4, 8)
    results = []
    for dtype in (None, torch.bfloat16, torch.float16, torch.bfloat16):
        as_in_a_new_process()
        with torch.no_grad(), torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
            results.append(compiled(layer, x).dtype)
    assert results == [torch.float32, torch.bfloat16, torch.float16, torch.bfloat16]
    assert graph_counts().hits == 1


def test_two_models_that_differ_in_a_constant_tensor():
    for value in (1.0, 2.0, 1.0):
        constant = torch.full((5,), value)
        assert again(lambda x, c=constant: x * 2 + c, torch.randn(4, 5)).errors == 0
        text = f"lambda x: x * 2 + torch.tensor([{value}, 3.0])"
        assert again(eval(text, {"torch": torch}), torch.randn(4, 2)).errors == 0


def test_a_kernel_that_is_gone_is_a_miss(tmp_path):
    check(soft, torch.randn(5, 30))
    shutil.rmtree(tmp_path / "cache" / "kernels")
    assert again(soft, torch.randn(5, 30)).misses == 1
    assert again(soft, torch.randn(5, 30)).hits == 1


def test_a_backend_that_describes_itself_otherwise_is_a_miss(monkeypatch):
    check(soft, torch.randn(5, 30), backends=["interpreter"])
    from polyfuse.reference.backend import InterpreterBackend

    monkeypatch.setattr(InterpreterBackend, "describe", lambda self: {"version": "another"})
    assert again(soft, torch.randn(5, 30), backends=["interpreter"]).misses == 1
    assert again(soft, torch.randn(5, 30), backends=["interpreter"]).hits == 1


@pytest.mark.quick(1)
@pytest.mark.parametrize("content", [b"", b"nothing", pickle.dumps({"an": "other"})])
def test_a_damaged_entry_is_a_miss(tmp_path, content):
    check(soft, torch.randn(5, 30))
    for path in entries(tmp_path):
        path.write_bytes(content)
    assert again(soft, torch.randn(5, 30)).misses == 1
    assert len(entries(tmp_path)) == 1, "the damaged one is gone"
    assert again(soft, torch.randn(5, 30)).hits == 1


def test_a_damaged_entry_does_not_hide_a_sound_one(tmp_path):
    check(soft, torch.randn(5, 30))
    (entry,) = entries(tmp_path)
    entry.with_name("0").write_bytes(b"damaged")
    assert again(soft, torch.randn(5, 30)).hits == 1
    assert entries(tmp_path) == [entry]


def test_entries_of_other_versions_are_not_read(monkeypatch):
    from polyfuse.cache import keys

    check(soft, torch.randn(5, 30))
    monkeypatch.setattr(keys, "version", lambda: "another")
    assert again(soft, torch.randn(5, 30)).misses == 1
    monkeypatch.setattr(global_state, "switches", lambda: ("another version of torch",))
    assert again(soft, torch.randn(5, 30)).misses == 1


@pytest.mark.slow
def test_an_entry_cut_short_is_a_miss(tmp_path):
    check(soft, torch.randn(5, 30))
    for path in entries(tmp_path):
        path.write_bytes(path.read_bytes()[:-100])
    assert again(soft, torch.randn(5, 30)).misses == 1


def test_a_folder_that_cannot_be_written_only_warns(tmp_path, warned):
    assert again(lambda x: x.sin(), torch.randn(3)).misses == 1
    shutil.rmtree(tmp_path / "cache" / "compiled")
    (tmp_path / "cache" / "compiled").write_text("in the way")
    assert again(soft, torch.randn(5, 30)).errors == 1
    assert len(warned) == 1 and "compiled" in warned[0]


MATRICES = torch.randn(16, 16), torch.randn(16, 16)


TAKING_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "function": Twice.apply,
    "checkpoint": lambda x: checkpoint(lambda x: x.sin().cos(), x, use_reentrant=False),
    "region": lambda x: torch.compiler.nested_compile_region(lambda x: x.sin().cos())(x) * 2,
}


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", TAKING_FUNCTIONS)
def test_operators_that_take_functions(name):
    for hits in (0, 1):
        counts = differentiated(TAKING_FUNCTIONS[name], torch.randn(4, requires_grad=True))
        assert (counts.hits, dict(counts.bypasses)) == (hits, {}), counts


def test_functions_that_differ_are_distinguished():
    x = torch.randn(4, requires_grad=True)
    for factor in (2.0, 3.0):
        counts = differentiated(
            lambda x, f=factor: checkpoint(lambda x: x.sin() * f, x, use_reentrant=False), x
        )
        assert (counts.hits, counts.misses) == (0, 1)


def test_autotuned_graphs_are_found_and_nothing_is_timed(monkeypatch):
    options = {"gemm": "fastest", "tune_in_process": True}
    assert again(torch.mm, *MATRICES, **options).misses == 1
    monkeypatch.setattr("polyfuse.autotune.tuner.Tuner.search", None)
    assert again(torch.mm, *MATRICES, **options).hits == 1


def test_a_graph_whose_search_was_cut_short_is_not_stored(monkeypatch, tmp_path):
    monkeypatch.setattr("polyfuse.autotune.tuner.Tuner.exhausted", True)
    counts = again(torch.mm, *MATRICES, gemm="fastest")
    assert not entries(tmp_path) and "ran out of time" in next(iter(counts.bypasses))


BYPASSES: dict[str, tuple[str, Callable[[], GraphCounts]]] = {
    "fuel": ("'fuel'", lambda: again(soft, torch.randn(4, 5), fuel=100)),
    "cache": ("'cache'", lambda: again(soft, torch.randn(4, 5), cache=False)),
}


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", BYPASSES)
def test_what_bypasses_the_cache_and_why(name, tmp_path):
    reason, run = BYPASSES[name]
    counts = run()
    assert counts.hits == 0 and not entries(tmp_path)
    assert [reason in key for key in counts.bypasses] == [True], counts


def test_code_that_changed_since_it_was_loaded_bypasses_the_cache(monkeypatch):
    monkeypatch.setattr(code, "_BEGUN", 0.0)
    code.code_stamp.cache_clear()
    counts = again(soft, torch.randn(5, 30))
    code.code_stamp.cache_clear()
    assert "changed" in next(iter(counts.bypasses))


def test_a_key_that_cannot_be_computed_costs_nobody_the_result(monkeypatch):
    def broken() -> tuple[str, ...]:
        raise AttributeError("no such switch")

    monkeypatch.setattr(global_state, "switches", broken)
    assert "AttributeError" in next(iter(again(soft, torch.randn(5, 30)).bypasses))


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "function", [lambda x: x[x > 0] * 2, lambda x: x.nonzero().sum(), lambda x: x.sum().item() + x]
)
def test_sizes_and_numbers_that_depend_on_data(function):
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        for seed in range(3):
            torch.manual_seed(seed)
            counts = again(function, torch.randn(20), strict=False)
        assert counts.hits == 1, counts


FRACTIONS = [
    (False, lambda x, factor: x * factor),
    (True, lambda x, factor: (x * factor, factor * 2)),
    (True, lambda x, factor: torch.where(x > factor, factor, x)),
]


@pytest.mark.quick(1)
@pytest.mark.parametrize(("assumed", "function"), FRACTIONS)
def test_floating_point_arguments_that_vary(assumed, function):
    """torch compiles some in, under a guard that is Dynamo's: such a graph served other values."""
    for turn in range(2):
        as_in_a_new_process()
        run = torch.compile(function, backend="polyfuse", options={"strict": True})
        x = torch.tensor([0.5, 1.0, 2.0])
        for factor in (0.3, 0.5, 0.7):
            torch.testing.assert_close(run(x, factor), function(x, factor))
        if turn:
            assert (graph_counts().hits, bool(graph_counts().bypasses)) == (
                (1, True) if assumed else (2, False)
            )


def test_off_means_off(monkeypatch, tmp_path):
    monkeypatch.setenv("POLYFUSE_GRAPH_CACHE", "0")
    for _ in range(2):
        assert again(soft, torch.randn(5, 30)) == GraphCounts()
    assert not entries(tmp_path)


def test_reports_name_cached_graphs():
    again(soft, torch.randn(5, 30))
    (first,) = last_reports()
    again(soft, torch.randn(5, 30))
    (second,) = last_reports()
    assert not first.cached and second.cached
    assert second.launches == first.launches and second.decisions == first.decisions
    assert "compiled before" in explain() and isinstance(second, GraphReport)


SCRIPT = """
import json, sys, torch
from polyfuse.cache.graphs import graph_counts
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.LayerNorm(8))
x = torch.randn(5, 6)
compiled = torch.compile(model, backend="polyfuse", options={"strict": True})
with torch.no_grad():
    torch.testing.assert_close(compiled(x), model(x))
result, expected = compiled(x), model(x)
torch.testing.assert_close(
    torch.autograd.grad(result.sum(), model[0].weight), torch.autograd.grad(expected.sum(), model[0].weight)
)
counts = graph_counts()
print(json.dumps([counts.hits, counts.misses, counts.bypasses, counts.errors, sorted(sys.modules)]))
"""


def start(bare: bool = False) -> preforked.Started:
    return preforked.start(SCRIPT, bare=bare)


def outcome(process: preforked.Started) -> list[Any]:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err[-2000:]
    found: list[Any] = json.loads(out.splitlines()[-1])
    return found


@pytest.mark.usefixtures("built_kernels")
def test_another_process_compiles_nothing_and_loads_no_part_that_compiles():
    assert outcome(start())[:4] == [0, 2, {}, 0]
    *counts, modules = outcome(start(bare=True))
    assert counts == [2, 0, {}, 0]
    parts = ("ir", "graph", "lowering", "scheduler", "compile_fx", "codegen.wrapper")
    assert not {f"torch._inductor.{part}" for part in parts} & set(modules)
    own = {"polyfuse.lowering.lower", "polyfuse.program.planning.planner", "polyfuse.compiler.stages"}
    own |= {"polyfuse.frontend.traced", "polyfuse.frontend.rewrites.passes"}
    own |= {"polyfuse.compiler.offered_rewrites", "polyfuse.compiler.guarding", "polyfuse.ir.kernel"}
    own |= {"polyfuse.schedule.claims", "polyfuse.frontend.python_code", "polyfuse.compiler.ranks"}
    own |= {"polyfuse_cpp.generator", "polyfuse_cpp.loops.kernel", "polyfuse_cpp.native_host.program"}
    assert not own & set(modules)


def test_processes_that_write_at_once():
    together = [start() for _ in range(3)]
    for process in together:
        hits, misses, bypasses, errors, _ = outcome(process)
        assert hits + misses == 2 and not bypasses and not errors
    assert outcome(start())[:2] == [2, 0]


@pytest.fixture
def secret(monkeypatch, tmp_path):
    path = tmp_path / "secret"
    path.write_text("a secret of these machines")
    monkeypatch.setenv("POLYFUSE_REMOTE_KEY", str(path))
    return path


def test_what_one_machine_made_serves_another(monkeypatch, tmp_path, secret):
    from polyfuse import cli

    assert outcome(start())[:4] == [0, 2, {}, 0]
    assert cli.main(["cache", "export", str(tmp_path / "bundle")]) == 0
    monkeypatch.setenv("POLYFUSE_CACHE_DIR", str(tmp_path / "elsewhere"))
    assert cli.main(["cache", "import", str(tmp_path / "bundle")]) == 0
    assert outcome(start())[:4] == [2, 0, {}, 0]


def test_machines_that_share_a_remote_store(monkeypatch, tmp_path, secret):
    monkeypatch.setenv("POLYFUSE_REMOTE_CACHE", str(tmp_path / "remote"))
    assert outcome(start())[:4] == [0, 2, {}, 0]
    monkeypatch.setenv("POLYFUSE_CACHE_DIR", str(tmp_path / "elsewhere"))
    assert outcome(start())[:4] == [2, 0, {}, 0]
    for archive in (tmp_path / "remote").glob("*/*"):
        archive.write_bytes(archive.read_bytes()[:-40])
    monkeypatch.setenv("POLYFUSE_CACHE_DIR", str(tmp_path / "third"))
    assert outcome(start())[:4] == [0, 2, {}, 0], "what is damaged is made here"
    monkeypatch.setenv("POLYFUSE_CACHE_DIR", str(tmp_path / "fourth"))
    assert outcome(start())[:4] == [2, 0, {}, 0], "and mended there"


@pytest.mark.slow
def test_machines_that_give_to_a_remote_store_at_once(monkeypatch, tmp_path, secret):
    monkeypatch.setenv("POLYFUSE_REMOTE_CACHE", str(tmp_path / "remote"))
    together = []
    for name in ("one", "two"):
        monkeypatch.setenv("POLYFUSE_CACHE_DIR", str(tmp_path / name))
        together.append(start())
    for process in together:
        hits, misses, bypasses, errors, _ = outcome(process)
        assert hits + misses == 2 and not bypasses and not errors
    monkeypatch.setenv("POLYFUSE_CACHE_DIR", str(tmp_path / "three"))
    assert outcome(start())[:4] == [2, 0, {}, 0]


@pytest.mark.slow
@pytest.mark.usefixtures("built_kernels")
def test_native_host_programs_are_cached(tmp_path: Path) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax((x @ x).sum(0) + x, -1)

    x = torch.randn(4, 4)
    check(function, x, native_host=True)
    (report,) = last_reports()
    assert report.cached and report.host is not None and report.host.text() == "native, by cpp"
    assert again(function, x).misses == 1, "without the option it is another graph"
    kernels = tmp_path / "cache" / "kernels"
    (host,) = (path for path in kernels.glob("*/*/*.cpp") if "pf_runtime" in path.read_text())
    shutil.rmtree(host.parent)
    assert again(function, x, native_host=True).misses == 1
    assert again(function, x, native_host=True).hits == 1


def stepped(name: str) -> tuple[list[torch.Tensor], GraphCounts]:
    """Parameters after three compiled steps of an optimizer, and what became of its graphs."""
    as_in_a_new_process()
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 3)
    optimizer = getattr(torch.optim, name)(net.parameters(), lr=0.1)
    step = torch.compile(optimizer.step, backend="polyfuse")
    for _ in range(3):
        optimizer.zero_grad()
        net(torch.ones(2, 4)).square().sum().backward()
        step()
    return [parameter.detach().clone() for parameter in net.parameters()], graph_counts()


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", ["AdamW", "SGD"])
def test_steps_of_an_optimizer_are_found(name, monkeypatch):
    first, counts = stepped(name)
    assert counts.misses and not counts.bypasses
    second, counts = stepped(name)
    assert counts.hits and not counts.misses and not counts.bypasses
    monkeypatch.setattr(torch, "compile", lambda step, **_: step)
    torch.testing.assert_close(second, stepped(name)[0])
    torch.testing.assert_close(second, first)


def test_the_field_in_which_two_keys_differ_is_named(tmp_path, capsys):
    root, x = tmp_path / "cache", torch.randn(5, 30)
    assert again(soft, x).misses and again(soft, x, numerics="eager").misses and again(soft, x[:3]).misses
    assert again(soft, x, fuel=9).bypasses and again(soft, x, fuel=9).bypasses
    keys = [key for key, _ in KeyNotes(root).noted()]
    assert len(keys) == 3
    found = {
        item.field
        for n in range(3)
        for item in differences(KeyNotes(root).find(keys[n])[1], KeyNotes(root).find(keys[n - 1])[1])
    }
    assert found == {"option numerics", "graph"}
    assert cli.main(["cache", "why", keys[0][:20], keys[2][:20]]) == 0
    assert cli.main(["cache", "graphs"]) == 0 and cli.main(["cache", "info"]) == 0
    out = capsys.readouterr().out
    assert keys[1][:12] in out and "    2  the option 'fuel' is set" in out
    assert cli.main(["cache", "why", keys[0], keys[0]]) == 1
    assert cli.main(["cache", "clear", "--kind", "compiled"]) == 0
    assert not KeyNotes(root).noted() and not KeyNotes(root).bypasses()
