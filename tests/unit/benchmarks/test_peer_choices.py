"""Inductor's CUTLASS choices as a candidate."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from polyfuse_bench import backends, inductor_cutlass, report
from polyfuse_bench.results import write_results

CANDIDATE = "inductor:max-autotune-no-cudagraphs+cutlass"


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder where the wheel's packages are, and no folder named in the environment."""
    for name in ("cutlass_library", "cutlass_cppgen", "pycute"):
        (tmp_path / "site" / name).mkdir(parents=True)
        (tmp_path / "site" / name / "__init__.py").touch()
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    monkeypatch.setattr(inductor_cutlass.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setenv(inductor_cutlass.FOLDER_VARIABLE, "")
    return tmp_path / "site"


def test_sources_are_laid_out_as_inductor_wants_them(sources: Path) -> None:
    (sources / "cutlass_library" / "source" / "include").mkdir(parents=True)
    for _ in range(2):
        os.environ[inductor_cutlass.FOLDER_VARIABLE] = ""
        inductor_cutlass.offer_sources()
    folder = Path(os.environ[inductor_cutlass.FOLDER_VARIABLE])
    assert (folder / "include").is_dir()
    assert (folder / "python" / "pycute" / "__init__.py").is_file()


def test_missing_sources_say_what_to_install(sources: Path) -> None:
    (sources / "pycute" / "__init__.py").unlink()
    (sources / "pycute").rmdir()
    with pytest.raises(SystemExit, match="need pycute: install nvidia-cutlass"):
        inductor_cutlass.offer_sources()


def test_a_folder_that_is_named_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(inductor_cutlass.FOLDER_VARIABLE, "/elsewhere")
    inductor_cutlass.offer_sources()
    assert os.environ[inductor_cutlass.FOLDER_VARIABLE] == "/elsewhere"


def test_the_candidate_asks_for_the_mode_and_the_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def compile_(function: Any, **options: Any) -> Any:
        asked.update(options)
        return function

    monkeypatch.setattr(torch, "compile", compile_)
    monkeypatch.setenv(inductor_cutlass.FOLDER_VARIABLE, "/elsewhere")
    backends.compiled(lambda x: x, CANDIDATE)
    assert "mode" not in asked
    assert asked["options"]["max_autotune"]
    assert "CUTLASS" in asked["options"]["max_autotune_gemm_backends"]


def test_the_page_says_how_often_it_chose_what(tmp_path: Path) -> None:
    timing = {"low": 1e-5, "high": 1e-5, "best": 1e-5, "rounds": 3, "calls_per_sample": 1}
    names = ("eager", CANDIDATE, "polyfuse:max-autotune-no-cudagraphs")
    rows = [
        {
            "name": f"{chosen}-{number}",
            "dtype": "bfloat16",
            "flop": 1,
            "timings": [{"name": name, "median": 1e-5, **timing} for name in names],
            "chosen": [],
            "peer_chosen": chosen,
            "errors": {},
            "failures": {},
        }
        for number, chosen in enumerate(("cutlass", "library", "cutlass"))
    ]
    # a row that nobody could compute
    failed = {"timings": [], "failures": {"all": "it went wrong"}, "peer_chosen": ""}
    rows.append({key: value for key, value in {**rows[0], **failed}.items() if key != "flop"})
    write_results(
        "gemm",
        rows,
        path=tmp_path / "gemm-cuda.json",
        backends=names,
        matrix_rates={"bfloat16": 1e12},
    )
    page = report.performance_page(tmp_path)
    assert page is not None
    assert "## GEMM, with CUTLASS among Inductor's choices" in page
    assert "in Inductor's code, by rows: cutlass 2, library 1." in page
