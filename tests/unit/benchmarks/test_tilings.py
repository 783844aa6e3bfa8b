"""The search among all tilings: what it compares, on what kernels, and how it is shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from polyfuse_bench import report, tilings
from polyfuse_bench.gemm_cases import CASES, Case
from polyfuse_bench.results import write_results
from polyfuse_bench.timing import Effort, Timing

from polyfuse.ir.interpreter.interpret import run_kernel
from polyfuse.ir.types import DType
from polyfuse_cutlass.space import configs, every_config
from polyfuse_cutlass.target import Target


@pytest.mark.parametrize("batch", (1, 3))
def test_the_kernel_is_the_matmul(batch: int) -> None:
    case = Case(4, 8, 6, "none", batch)
    x, y, z = torch.randn(batch, 4, 8), torch.randn(batch, 6, 8), torch.empty(batch, 4, 6)
    flat = [t.bfloat16().flatten() for t in (x, y, z)]
    run_kernel(tilings.gemm_kernel(case, DType.bf16), flat)
    wanted = (x.bfloat16().float() @ y.bfloat16().float().mT).flatten()
    torch.testing.assert_close(flat[2].float(), wanted, rtol=1e-2, atol=1e-2)


def test_the_short_list_is_a_part_of_all_tilings() -> None:
    kernel = tilings.gemm_kernel(CASES["96x512x512x64-none"], DType.bf16)
    short, every = configs(kernel, Target()), every_config(kernel, Target())
    assert set(short) < set(every) and short[0] == every[0]


def test_the_fastest_that_is_offered_is_timed_with_care_however_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {"other": 1.0, "near": 1.1, "slow": 9.0, "first": 3.0, "second": 2.0}
    timed: list[set[str]] = []

    def times(
        calls: Mapping[str, Callable[..., Any]], _: Sequence[Any], __: str, ___: Effort
    ) -> list[Timing]:
        timed.append(set(calls))
        return [Timing(n, seconds[n], seconds[n], seconds[n], seconds[n], 1, 1) for n in calls]

    monkeypatch.setattr(tilings, "device_times", times)
    found = tilings.least_times(dict.fromkeys(seconds, print), ["first", "second", "lost"], [], "cuda")
    assert timed[1] == {"other", "near", "first", "second"}
    assert (found["best"], found["offered"], found["first"]) == (1.0, 2.0, 3.0)
    assert (found["best_tiling"], found["offered_tiling"]) == ("other", "second")


def test_what_the_list_loses_is_shown(tmp_path: Path) -> None:
    row = {"name": "1x2x3-none", "dtype": "bfloat16", "tilings": 7, "failures": {}}
    row |= {"best": 1e-5, "offered": 1.01e-5, "first": 1.2e-5}
    write_results("tilings-cuda", [row], path=tmp_path / "tilings-cuda.json", device_name="G")
    text = report.write_pages(tmp_path / "docs", tmp_path)[0].read_text()
    assert "## Tilings of matmuls, bfloat16 on G" in text
    assert "| 1x2x3-none | 7 | 10 µs | 10.1 µs | 12 µs | 1.010 | 1.200 |" in text
    assert "first 12 µs" in report.one_line("tilings", row)


def test_a_row_in_which_the_first_guess_fails_has_no_times(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    name = "512x512x512-none"

    class Unable:
        target = Target()

        def configs(self, kernel: Any) -> tuple[Any, ...]:
            return configs(kernel, self.target)

        def emit(self, kernel: Any, config: Any) -> Any:
            raise ValueError("cannot")

    monkeypatch.setattr(tilings, "CutlassBackend", lambda _: Unable())
    search = tilings.Search([name], "bfloat16", "cpu", tmp_path)
    row = search.measure(name)
    search.close()
    assert row["tilings"] == 0 and set(row["failures"].values()) == {"ValueError: cannot"}
    assert "best" not in row
    write_results("tilings-cuda", [row], path=tmp_path / "tilings-cuda.json", device_name="G")
    assert name not in report.write_pages(tmp_path / "docs", tmp_path)[0].read_text()
