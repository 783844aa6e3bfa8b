"""Two checkouts against each other: their processes alternate, and the ratio is that of medians."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from polyfuse_bench import checkouts
from polyfuse_bench.child import ChildFailed


def tree(folder: Path) -> Path:
    for name in ("core/polyfuse", "plugins/cpp/polyfuse_cpp"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text("")
    return folder


def test_checkouts_alternate_and_ratios_are_of_medians(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    seconds = {"before": iter([4.0, 2.0, 3.0]), "after": iter([6.0, 6.0, 1.0])}

    def run_child(task: Mapping[str, Any], environment: Mapping[str, str], timeout: float) -> Any:
        first = Path(environment["PYTHONPATH"].split(os.pathsep)[0])
        label = first.parent.name
        assert first.name == "core" and label in environment["POLYFUSE_CACHE_DIR"]
        (part,) = task["tasks"]
        order.append(label)
        if part["name"] == "gelu":
            raise ChildFailed("it crashed")
        return [{"timings": [{"name": "polyfuse", "median": next(seconds[label])}], "failures": {}}]

    monkeypatch.setattr(checkouts, "run_child", run_child)
    monkeypatch.setattr(
        checkouts, "_tasks", lambda options, campaign: [{"kind": "model", "name": n} for n in options.only]
    )
    trees = [str(tree(tmp_path / label)) for label in ("before", "after")]
    out = tmp_path / "out.json"
    arguments = ["--campaigns", "models", "--only", "bert,gelu", "--rounds", "3", "--out", str(out)]
    assert checkouts.main([*trees, *arguments]) == 0
    assert order[:6] == ["before", "after", "after", "before", "before", "after"]
    content = json.loads(out.read_text())
    bert, gelu = content["rows"]
    assert bert["ratio"] == 2.0 and bert["eager_ratio"] is None
    assert gelu["ratio"] is None and gelu["failures"] == {"before": "it crashed", "after": "it crashed"}
    assert content["summary"]["models"] == {
        "rows": 2, "compared": 1, "geometric_mean": pytest.approx(2.0), "worst": 2.0,
        "eager_geometric_mean": None,
    }  # fmt: skip


def test_a_folder_without_polyfuse_is_named(tmp_path: Path) -> None:
    (tmp_path / "plugins").mkdir()
    with pytest.raises(SystemExit, match="no core/polyfuse"):
        checkouts.main([str(tmp_path), str(tmp_path)])


def test_sizes_and_caches_can_be_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, set[str]] = {"kernels": set(), "compile": set()}
    sizes = set()

    def run_child(task: Mapping[str, Any], environment: Mapping[str, str], timeout: float) -> Any:
        for part in task["tasks"]:
            campaign = "compile" if part["kind"] == "compile" else "kernels"
            seen[campaign].add(str(Path(environment["POLYFUSE_CACHE_DIR"]).parent.parent))
            sizes.update({part["size"]} if campaign == "kernels" else ())
        return [{} for _ in task["tasks"]]

    monkeypatch.setattr(checkouts, "run_child", run_child)
    trees = [str(tree(tmp_path / label)) for label in ("before", "after")]
    out, cache = tmp_path / "out.json", tmp_path / "caches"
    arguments = ["--campaigns", "kernels,compile", "--only", "softmax,bert", "--sizes", "large"]
    assert checkouts.main([*trees, *arguments, "--cache", str(cache), "--out", str(out)]) == 0
    assert sizes == {"large"}
    assert seen["kernels"] == {str(cache)} and str(cache) not in seen["compile"]
