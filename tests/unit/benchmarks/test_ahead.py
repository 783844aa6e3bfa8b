"""Compiling ahead of timing, in processes side by side."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from polyfuse_bench import ahead, campaigns, gemm, gemm_cases
from polyfuse_bench.backends import EAGER, POLYFUSE
from polyfuse_bench.child import ChildFailed
from polyfuse_bench.report_gemm import gemm_section
from polyfuse_bench.results import finished_rows, write_results
from polyfuse_bench.timing import QUICK

SMALL = "512x512x512-gelu"


def task(name: str, backend: str) -> dict[str, object]:
    return {
        "kind": "gemm",
        "name": name,
        "backends": [EAGER, backend],
        "dtype": "float32",
        "device": "cpu",
        "effort": dataclasses.asdict(QUICK),
    }


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "_QUIET_SECONDS", 0.0)


@pytest.mark.slow
def test_rows_are_compiled_by_processes_that_keep_them(tmp_path: Path) -> None:
    with ahead.Ahead([task(SMALL, POLYFUSE), task("no such row", POLYFUSE)], 2, 900.0, tmp_path) as found:
        assert found.ready == [SMALL, "no such row"]
        assert any(path.name.startswith("polyfuse_cache_dir-") for path in tmp_path.iterdir())
        with pytest.raises(ChildFailed, match="KeyError"):
            found.measure("no such row")
        # the CPU has no clock of its own, which shows that the row was there
        with pytest.raises(ChildFailed, match="Event"):
            found.measure(SMALL)
    with pytest.raises(ChildFailed, match="gone"):
        found.measure(SMALL)


def test_what_is_not_done_in_time_is_left_out(tmp_path: Path) -> None:
    with ahead.Ahead([task(SMALL, POLYFUSE)], 1, 0.0, tmp_path) as found:
        assert found.ready == []


@pytest.mark.slow
def test_a_row_that_was_begun_in_time_may_take_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "_OVERTIME", 1000.0)
    with ahead.Ahead([task(SMALL, EAGER), task("16x16x16-none", EAGER)], 1, 0.9, tmp_path) as found:
        assert found.ready == [SMALL]


def test_a_row_knows_what_computes_it() -> None:
    row = gemm.prepared(task(SMALL, POLYFUSE))
    assert set(row.calls) == {EAGER, POLYFUSE} and not row.failures
    assert set(row.first_calls) == {POLYFUSE} and row.first_calls[POLYFUSE] > 0
    assert row.chosen


def test_rows_of_an_earlier_run_stay(tmp_path: Path) -> None:
    rows = [{"name": SMALL, "dtype": "float32", "timings": [{"median": 1.0}]}, {"name": "x", "timings": []}]
    path = write_results("gemm", rows, path=tmp_path / "products.json", device_name="some GPU", ahead=8)
    assert finished_rows(path, device_name="some GPU") == (rows[:1], 8)
    with pytest.raises(ValueError, match="measured otherwise: device_name"):
        finished_rows(path, device_name="another GPU")
    content = json.loads(path.read_text())
    content["machine"]["torch"] = "1.0"
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"another machine: torch was 1\.0"):
        finished_rows(path)


def test_measured_rows_are_not_planned_again() -> None:
    every = campaigns.Selection((EAGER,), device="cuda", only=(SMALL, "1x4096x4096-none"))
    known = frozenset([(SMALL, "float32")])
    assert len(campaigns.gemm(every)) == 2
    assert len(campaigns.gemm(dataclasses.replace(every, known=known))) == 1


def test_any_beginning_of_the_matmuls_has_all_kinds() -> None:
    cases = list(gemm_cases.CASES.values())
    assert len(gemm_cases.SHAPES) == 40 and len(cases) == 36 * 3 + 4
    first = cases[:20]
    assert {case.then for case in first} == set(gemm_cases.FUNCTIONS)
    assert any(case.batch > 1 for case in first) and any(case.rows == 1 for case in first)
    assert len({(c.batch, c.rows, c.inner, c.outer) for c in cases[:40]}) == 40


def test_the_page_says_how_the_trials_were_run(tmp_path: Path) -> None:
    path = tmp_path / "products.json"
    write_results("gemm", [], path=path, device="cuda", device_name="some GPU", ahead=6)
    content = json.loads(path.read_text())
    assert any("up to 6 processes side by side" in line for line in gemm_section(content))


def test_narrow_floats_have_scales_and_no_batches() -> None:
    names = gemm_cases.cases_of("float8_e4m3fn")
    assert len(names) == 36 * 3 and len(gemm_cases.cases_of("bfloat16")) == 36 * 3 + 4
    case = gemm_cases.CASES["512x4096x4096-residual"]
    (arguments,) = case.arguments("float8_e4m3fn", "cpu", 1)
    x, weight, bias, residual, rows, columns = arguments
    assert x.dtype == weight.dtype == torch.float8_e4m3fn and bias.dtype == residual.dtype == torch.bfloat16
    assert rows.shape == (512, 1) and columns.shape == (1, 4096)
    assert case.function("float8_e4m3fn") is not case.function("bfloat16")


def test_long_matmuls_stand_beside_the_rate(tmp_path: Path) -> None:
    rows = [
        {"name": name, "dtype": "float16", "flop": flop, "errors": {}, "failures": {}, "timings": timings}
        for name, flop, timings in (
            ("long", 1e12, [{"name": EAGER, "median": 2e-3}, {"name": f"{POLYFUSE}:x", "median": 1.25e-3}]),
            ("short", 1e9, [{"name": EAGER, "median": 2e-6}, {"name": f"{POLYFUSE}:x", "median": 2e-6}]),
        )
    ]
    path = tmp_path / "products.json"
    rates = {"float16": 1e15}
    write_results("gemm", rows, path=path, device="cuda", device_name="some GPU", matrix_rates=rates)
    lines = gemm_section(json.loads(path.read_text()))
    assert "| long | 500 | 800 | 80% |" in lines
    assert not any(line.startswith("| short | 500") for line in lines)
    assert any("reaches 1000 TFLOP/s" in line for line in lines)
