"""Compiling ahead of timing, in processes side by side."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from polyfuse_bench import ahead, products
from polyfuse_bench.backends import CACHE_VARIABLES, EAGER, POLYFUSE
from polyfuse_bench.report import _products_section
from polyfuse_bench.results import write_results

SMALL = "512x512x512-gelu"


def task(name: str, backend: str) -> dict[str, object]:
    return {
        "kind": "products",
        "name": name,
        "backends": [EAGER, backend],
        "dtype": "float32",
        "device": "cpu",
    }


def test_rows_are_compiled_by_processes_whose_caches_become_one(tmp_path: Path) -> None:
    found = ahead.go_ahead([task(SMALL, POLYFUSE), task("no such row", POLYFUSE)], 2, 120.0, tmp_path)
    assert set(found) == {SMALL, "no such row"} and found["no such row"] == {}
    assert set(found[SMALL]) == {POLYFUSE} and found[SMALL][POLYFUSE] > 0
    own = sorted(path.name for path in tmp_path.iterdir() if path.name.startswith("polyfuse_cache_dir-"))
    assert own and any((tmp_path / "polyfuse_cache_dir").rglob("*"))


def test_what_is_not_done_in_time_is_left_out(tmp_path: Path) -> None:
    assert ahead.go_ahead([task(SMALL, POLYFUSE)], 1, 0.0, tmp_path) == {}


def test_caches_are_adopted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CACHE_VARIABLES:
        monkeypatch.setenv(name, "elsewhere")
    ahead.adopt(tmp_path)
    assert all(Path(os.environ[name]).parent == tmp_path for name in CACHE_VARIABLES)


def test_any_beginning_of_the_products_has_all_kinds() -> None:
    cases = list(products.CASES.values())
    assert len(products.SHAPES) == 40 and len(cases) == 36 * 3 + 4
    first = cases[:20]
    assert {case.then for case in first} == set(products.FUNCTIONS)
    assert any(case.batch > 1 for case in first) and any(case.rows == 1 for case in first)
    assert len({(c.batch, c.rows, c.inner, c.outer) for c in cases[:40]}) == 40


def test_the_page_says_how_the_races_were_run(tmp_path: Path) -> None:
    path = tmp_path / "products.json"
    write_results("products", [], path=path, device="cuda", device_name="some GPU", ahead=6)
    content = json.loads(path.read_text())
    assert any("6 processes" in line for line in _products_section(content))
