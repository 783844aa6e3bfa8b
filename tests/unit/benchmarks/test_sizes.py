"""The campaigns of graphs for any size and of many equal layers: what is measured, and the page's tables."""

from __future__ import annotations

import pytest
import torch
from polyfuse_bench import any_size, campaigns, child, layers, report, report_sizes
from polyfuse_bench.backends import DEFAULT_BACKENDS


def _call(dynamic: float, static: float, eager: float) -> dict[str, float]:
    return {"dynamic": dynamic, "static": static, "eager": eager, "rounds": 9, "error": 2e-7}


SIZES_ROW = {
    "name": "mlp",
    "mode": "default",
    "graphs": 2,
    "failures": {},
    "calls": {"1": _call(1.0, 1.0, 2.0), "2": _call(1.2, 1.0, 1.0), "3": _call(1.0, 1.25, 2.0)},
}
LAYERS_ROW = {
    "name": "bert",
    "mode": "train",
    "failures": {},
    "seconds": {"dynamo": {"4": [1.0], "32": [4.0]}, "polyfuse": {"4": [2.0, 4.0, 3.0], "32": [4.5]}},
}


def test_the_table_of_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_sizes, "facts", lambda content: [])
    text = "\n".join(report_sizes.any_size_section({"rows": [SIZES_ROW]}))
    worst = "1.20 at 2, 1.00 at 1, 0.80 at 3"
    over_eager = "1.20 at 2, 0.50 at 1, 0.50 at 3"
    assert f"| mlp | default | 2 | 3 | 1.00 | 1 | {worst} | 0.50 | {over_eager} | 2e-07 |" in text
    assert f"2 graphs, over static {worst}" in report.one_line("any_size", SIZES_ROW)


def test_the_table_of_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_sizes, "facts", lambda content: [])
    text = "\n".join(report_sizes.layers_section({"rows": [LAYERS_ROW]}))
    assert "| bert | train | Dynamo alone | 1 s | 4 s | 4.00 |" in text
    assert "| bert | train | Polyfuse | 3 s | 4.5 s | 1.50 |" in text
    assert "Polyfuse 4: 3.00 s, 32: 4.50 s" in report.one_line("layers", LAYERS_ROW)


def test_layers_alternate_and_a_failure_costs_its_backend_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []

    def answer(task, environment):
        asked.append((task["backend"], task["layers"]))
        if task["backend"] == "dynamo":
            raise child.ChildFailed("it cannot")
        return {"first": float(task["layers"])}

    monkeypatch.setattr(child, "run_child", answer)
    monkeypatch.setattr("polyfuse_bench.compile_time.keep_byte_code", lambda: None)
    plan = campaigns.layers(campaigns.Selection(backends=DEFAULT_BACKENDS, repeats=2, sizes=("4", "8")))
    assert len(plan) == len(layers.NETWORKS) * len(layers.MODES)
    row = plan[0]()
    others = [(name, count) for name in layers.CANDIDATES if name != "dynamo" for count in (4, 8)]
    assert asked == [("dynamo", 4), *others, *others]
    assert row["failures"] == {"dynamo": "it cannot"} and row["seconds"]["polyfuse"]["8"] == [8.0, 8.0]


@pytest.mark.slow
def test_one_function_serves_all_sizes_beside_static_twins() -> None:
    prepared = any_size.prepare("mlp", "default", (2, 8))
    assert prepared.graphs == 1 and set(prepared.calls) == {2, 8}
    x, sides = prepared.calls[2]
    assert x.shape == (2, 128) and max(prepared.errors.values()) < 1e-5
    with torch.no_grad():
        torch.testing.assert_close(sides["static"](x), sides["eager"](x))
    timed = {n: any_size.best_of(*found, seconds=0.0) for n, found in prepared.calls.items()}
    row = any_size.row({"name": "mlp", "mode": "default"}, prepared, timed)
    assert row["calls"]["8"]["rounds"] == 3 and 0 < any_size.ratio(row["calls"]["2"]) < 100
    assert len(campaigns.any_size(campaigns.Selection(backends=DEFAULT_BACKENDS))) == 6
