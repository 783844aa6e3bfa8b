"""The measuring tools themselves: ratios, errors, and pages made from results."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from polyfuse_bench import fusion_rules, host, linear, report
from polyfuse_bench.child import child_environment
from polyfuse_bench.compile_time import keep_byte_code
from polyfuse_bench.kernels import KernelCase, runner
from polyfuse_bench.opdb.compare import difference
from polyfuse_bench.opdb.gate import GATE_OPERATORS
from polyfuse_bench.report_text import other_threads
from polyfuse_bench.results import read_results, write_results
from polyfuse_bench.tensors import bytes_moved, clone_tree, relative_error
from polyfuse_bench.timing import Effort, compare, geometric_mean

SHORT = Effort(rounds=3, min_sample_seconds=1e-4, warmup_seconds=1e-3)


def no_better_judge() -> None:
    return None


@pytest.mark.slow
def test_compare_tells_slow_from_fast() -> None:
    now = [0.0]

    def taking(seconds: float) -> None:
        now[0] += seconds

    calls = {"slow": lambda: taking(0.02), "fast": lambda: taking(0.0005)}
    outcome = compare(calls, SHORT, clock=lambda: now[0])
    assert outcome.speedup("fast", over="slow") == pytest.approx(40)
    assert [timing.rounds for timing in outcome.timings] == [3, 3]
    assert outcome.speedup("fast", over="absent") is None


def test_calls_behind_a_rest_are_not_counted() -> None:
    now, calls = [0.0], []

    def call() -> None:
        calls.append(now[0])
        now[0] += 1.0 if len(calls) % 3 else 0.25  # of three calls, two wake its threads

    resting = Effort(rounds=3, min_sample_seconds=0, warmup_seconds=0, rest_seconds=1e-4)
    (timing,) = compare({"one": call}, resting, clock=lambda: now[0]).timings
    assert timing.best == timing.high == 0.25


def test_a_first_call_that_compiles_does_not_say_how_often_to_call() -> None:
    first = [0.02]

    def call() -> None:
        if first:
            time.sleep(first.pop())

    effort = Effort(rounds=1, min_sample_seconds=0.01, warmup_seconds=0, max_seconds=0.1)
    (timing,) = compare({"one": call}, effort).timings
    assert timing.calls_per_sample > 1


def test_geometric_mean() -> None:
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)
    assert geometric_mean([]) is None


def test_relative_error_is_a_part_of_the_scale() -> None:
    expected = torch.tensor([100.0, 1.0])
    assert relative_error(expected + torch.tensor([1.0, 0.0]), expected) == pytest.approx(0.01)
    assert relative_error(torch.tensor([float("nan"), 1.0]), expected) == float("inf")
    assert relative_error(expected.double(), expected) == float("inf")
    same_special = torch.tensor([float("inf"), 2.0])
    assert relative_error(same_special.clone(), same_special) == 0.0


def test_clones_are_leaves_that_keep_gradients() -> None:
    source = {"a": torch.ones(2, requires_grad=True), "b": [torch.ones(2), 3]}
    copy = clone_tree(source)
    assert copy["a"].requires_grad and copy["a"].is_leaf and copy["a"] is not source["a"]
    assert copy["b"][1] == 3 and not copy["b"][0].requires_grad


def test_no_gradient_flows_from_where_rounding_decides_its_side_of_a_kink() -> None:
    def rounded_otherwise(x: torch.Tensor) -> torch.Tensor:
        return (x - 1e-6).relu()

    case = KernelCase("relu", "kinks", torch.relu, lambda size: (), backward=True, kinked=True)
    x = torch.tensor([5e-7, 1.0, -1.0, 2e-6])
    found = []
    for function in (torch.relu, rounded_otherwise):
        torch.manual_seed(1)
        found.append(runner(case, function, (x.clone(),))()[1])
    assert torch.equal(*found) and found[0][1] != 0 and found[0][[0, 2, 3]].eq(0).all()


def test_difference_names_the_problem() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    assert difference(x.clone(), x, no_better_judge).problem == ""
    assert "shape" in difference(x[:1], x, no_better_judge).problem
    assert "dtype" in difference(x.double(), x, no_better_judge).problem
    assert "1 of 6" in difference(x + (x == 4), x, no_better_judge).problem
    assert difference(x.t().contiguous().t(), x, no_better_judge).strides


def test_half_precision_may_be_one_rounding_farther_from_the_truth() -> None:
    truth = torch.tensor([1.0, 100.2])
    eager = torch.tensor([1.03125, 100.0]).bfloat16()
    assert difference(truth.bfloat16(), eager, lambda: truth).problem == ""
    assert difference(torch.tensor([1.0, 100.5]).bfloat16(), eager, lambda: truth).problem == ""
    assert "values" in difference(torch.tensor([1.0, 101.0]).bfloat16(), eager, lambda: truth).problem


def test_difference_accepts_what_is_as_close_to_the_truth_as_eager() -> None:
    truth = torch.tensor([1.0], dtype=torch.float64)
    eager, compiled = torch.tensor([1.001]), torch.tensor([0.999])
    assert "values" in difference(compiled, eager, no_better_judge).problem
    assert difference(compiled, eager, lambda: truth).problem == ""
    assert "values" in difference(torch.tensor([1.1]), eager, lambda: truth).problem


def test_gate_has_no_duplicates() -> None:
    assert len(set(GATE_OPERATORS)) == len(GATE_OPERATORS)


def test_pages_come_from_results(tmp_path: Path) -> None:
    row = {
        "name": "softmax",
        "size": "small",
        "timings": [{"name": name, "median": median} for name, median in _MEDIANS.items()],
        "errors": {"polyfuse": float("inf")},
        "failures": {},
    }
    write_results("kernels", [row], path=tmp_path / "kernels.json")
    content = read_results("kernels", tmp_path)
    assert content is not None and content["rows"][0]["errors"] == {"polyfuse": "inf"}
    pages = report.write_pages(tmp_path / "docs", tmp_path)
    assert [page.name for page in pages] == ["performance.md"]
    text = pages[0].read_text()
    assert "| softmax | 4 ms | 2 ms | 1 ms | 4.00× | 2.00× |" in text
    assert "**2.00×**" in text


def test_what_a_call_writes_of_its_arguments_counts_twice() -> None:
    read, changed = torch.ones(8), torch.ones(4, dtype=torch.float64)

    def call(read: torch.Tensor, changed: list[torch.Tensor]) -> torch.Tensor:
        changed[0].add_(1)
        return read[:2] + 1

    assert bytes_moved(call, (read, [changed])) == 32 + 2 * 32 + 8


def test_headings_name_type_and_batch_where_all_rows_share_them(tmp_path: Path) -> None:
    timings = [{"name": name, "median": median} for name, median in _MEDIANS.items()]
    row = {"name": "bert", "mode": "forward", "timings": timings, "errors": {}, "failures": {}}
    usual = {**row, "dtype": "float32", "batch": None}
    wide = {**row, "dtype": "bfloat16", "batch": 16}
    for label, rows in (("", [usual]), ("-bf16", [wide]), ("-both", [usual, wide])):
        write_results("models", rows, path=tmp_path / f"models{label}.json", device_name="G")
    text = report.write_pages(tmp_path / "docs", tmp_path)[0].read_text()
    assert text.count("## Models on G\n") == 2 and text.count("## Models, bfloat16, batch 16 on G\n") == 1


def test_bandwidth_is_shown_of_sizes_that_move_data(tmp_path: Path) -> None:
    timings = [{"name": name, "median": median} for name, median in _MEDIANS.items()]
    row = {
        "name": "softmax",
        "size": "huge",
        "moved_bytes": 3e9,
        "timings": timings,
        "errors": {},
        "failures": {},
    }
    write_results("kernels", [row], path=tmp_path / "kernels.json", copy_rate=4e12)
    write_results("kernels", [{**row, "size": "small"}], path=tmp_path / "kernels-few.json", copy_rate=4e12)
    text = report.write_pages(tmp_path / "docs", tmp_path)[0].read_text()
    assert text.count("of the copy") == 1 and "| softmax | 3.00 TB/s | 75% |" in text


@pytest.mark.parametrize(
    ("threads", "device", "words"),
    [(8, "cpu", ", 8 threads"), (1, "cpu", ", one thread"), (2, "cpu", ""), (16, "cuda", "")],
)
def test_headings_say_how_many_threads(threads: int, device: str, words: str) -> None:
    assert other_threads({"machine": {"threads": threads}, "device": device}) == words


def test_linear_layers_are_shown_beside_the_best_of_the_others(tmp_path: Path) -> None:
    assert len(linear.CASES) == 30
    medians = {"eager": 2e-3, "inductor:max-autotune": 4e-3, "polyfuse:max-autotune": 1e-3}
    timings = [{"name": name, "median": median} for name, median in medians.items()]
    row = {"name": "1x768x768-bias", "timings": timings, "errors": {}, "failures": {}}
    write_results("linear", [row, {**row, "timings": timings[:2]}], path=tmp_path / "linear.json")
    text = report.write_pages(tmp_path / "docs", tmp_path)[0].read_text()
    assert "| 1x768x768-bias | 2 ms | 4 ms | 1 ms | 2.00× | 4.00× | 2.00× |" in text
    assert text.count("**2.00×**") == 2 and "over the best" in text


def test_building_a_kernel_is_shown_without_what_dynamo_takes(tmp_path: Path) -> None:
    seconds = {"dynamo": 1.0, "inductor": 5.0, "polyfuse@halide": 2.0}
    row = {"name": "kernel:softmax", "mode": "forward", "cold": seconds, "warm": seconds, "failures": {}}
    write_results("build", [row], path=tmp_path / "build.json")
    text = report.write_pages(tmp_path / "docs", tmp_path)[0].read_text()
    assert "| kernel | Inductor | Polyfuse (halide) |" in text
    assert "| softmax | 4 s | 1 s |" in text and "**0.25×**" in text


@pytest.mark.quick(1)
@pytest.mark.parametrize("then", sorted(linear.FUNCTIONS))
def test_a_linear_layer_is_measured(then: str) -> None:
    name = next(name for name, case in linear.CASES.items() if case.then == then)
    effort = {"rounds": 1, "min_sample_seconds": 1e-4, "warmup_seconds": 1e-4, "max_seconds": 1.0}
    task = {"name": name, "dtype": "float32", "backends": ("eager", "dynamo"), "effort": effort}
    row = linear.measure(task)
    assert [timing["name"] for timing in row["timings"]] == ["eager", "dynamo"]
    assert row["errors"] == {"dynamo": 0.0} and not row["failures"]


def test_calls_of_small_kernels_are_measured() -> None:
    backends = ("eager", "polyfuse", "polyfuse:native")
    effort = {"rounds": 1, "min_sample_seconds": 1e-4, "warmup_seconds": 1e-4, "max_seconds": 1.0}
    row = host.measure({"name": "kernels-10-matmuls-5", "backends": backends, "effort": effort})
    assert [timing["name"] for timing in row["timings"]] == list(backends) and not row["failures"]
    assert max(row["errors"].values()) < 1e-5


@pytest.mark.slow
def test_fusion_rules_are_measured_on_and_off(monkeypatch) -> None:
    asked: list[object] = []
    real = torch.compile

    def noting(function: Any, **named: Any) -> Any:
        asked.append(named["options"])
        return real(function, backend="eager")

    monkeypatch.setattr(torch, "compile", noting)
    effort = {"rounds": 1, "min_sample_seconds": 1e-4, "warmup_seconds": 1e-4, "max_seconds": 1.0}
    for name, case in fusion_rules.CASES.items():
        shapes = [(8,) * len(shape) for shape in case.shapes]
        task = {"name": name, "backends": fusion_rules.CANDIDATES, "effort": effort, "shapes": shapes}
        row = fusion_rules.measure(task)
        assert [timing["name"] for timing in row["timings"]] == list(fusion_rules.CANDIDATES)
        assert not row["failures"] and row["rule"] == case.rule
        here = {"backends": (case.rule.partition(".")[0],)} if case.device == "cpu" else {}
        assert asked == [here, {**here, "disable_fusion_rules": (case.rule,)}]
        asked.clear()
    fusion_rules.compiled(case, fusion_rules.OFF, "cuda:0")
    assert asked == [{"backends": ("triton",), "disable_fusion_rules": (case.rule,)}]


def test_what_rules_win_is_shown_by_rule(tmp_path: Path) -> None:
    def row(rule: str, on: float, off: float) -> dict[str, Any]:
        timings = [
            {"name": name, "median": value} for name, value in (("polyfuse", on), ("polyfuse:without", off))
        ]
        return {"name": "a", "rule": rule, "words": "sums", "timings": timings, "failures": {}, "errors": {}}

    rows = [row("cpp.one", 1e-3, 2e-3), row("cpp.one", 1e-3, 8e-3), row("halide.two", 2e-3, 1e-3)]
    write_results("fusion_rules", rows, path=tmp_path / "fusion_rules.json", device="cpu")
    page = report.performance_page(tmp_path)
    assert page is not None and "## Fusion rules" in page and "CPU time" in page
    assert "| **`cpp.one`** | geometric mean |  |  | **4.00×** |" in page
    assert "| `halide.two` | sums | 1 ms | 2 ms | 0.50× |" in page


def test_operator_results_go_between_their_marks(tmp_path: Path) -> None:
    page = tmp_path / "parity.md"
    begin, end = "<!-- operator results -->", "<!-- end of operator results -->"
    page.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
    report._put(page, "new\n", "operator")
    assert page.read_text() == f"before\n{begin}\nnew\n{end}\nafter\n"


def test_the_table_of_random_programs(tmp_path: Path) -> None:
    from polyfuse_bench.fuzz.campaign import Campaign, Tally
    from polyfuse_bench.report_fuzz import fuzz_table
    from polyfuse_bench.results import write_results

    assert fuzz_table(tmp_path) is None
    tally = Tally(kernels=12, configured=7, cpu_seconds=2.0, done={1, 2, 3})
    tally.outcomes.update(("right", "right", "crashed"))
    tally.findings.append({"seed": 3, "outcome": "crashed with -11 in phase run"})
    name = Campaign("triton").name
    facts = {"backend": "triton", "device": "cpu", "device_name": "", **tally.facts()}
    write_results(name, tally.findings, path=tmp_path / f"{name}.json", **facts)
    page = fuzz_table(tmp_path) or ""
    assert "| triton | Triton's interpreter | 3 | 12 | 7 | 1 | 0 |" in page
    assert "| `triton` on `cpu` | 3 | crashed with -11 in phase run |" in page


_MEDIANS = {"eager": 4e-3, "inductor": 2e-3, "polyfuse": 1e-3}


def test_a_sweep_that_runs_out_of_time_says_what_is_missing() -> None:
    # only here: the database of operators takes half a second to import
    from polyfuse_bench.opdb import sweep

    settings = sweep.SweepSettings("eager", ("float32",), only=("sin", "cos", "tan"), limit=0.1)
    outcomes = sweep.run_sweep(settings)
    assert [outcome.op for outcome in outcomes] == ["cos", "sin", "tan"]
    assert {outcome.detail for outcome in outcomes} == {sweep.OUT_OF_TIME}
    assert {outcome.status for outcome in outcomes} == {"skip"}


def test_children_find_byte_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    assert "PYTHONDONTWRITEBYTECODE" not in child_environment()
    keep_byte_code()
    import polyfuse.compiler.stages as stages
    import polyfuse_cpp.loops.kernel as kernel

    for module in (stages, kernel):
        assert module.__cached__ is not None and Path(module.__cached__).stat().st_size > 0
