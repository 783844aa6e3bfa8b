"""The summary of docs/performance.md, and the README's table and chart: made of result files alone."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

from polyfuse_bench.report_autotuning import autotuning_table
from polyfuse_bench.report_chart import CHARTS, KERNEL_CHARTS, kernels_chart, speed_chart
from polyfuse_bench.report_summary import groups, readme_table, summary


def content(eager: float, inductor: float, polyfuse: float, name: str = "bert") -> dict:
    medians = {"eager": eager, "inductor:freezing": inductor, "polyfuse:freezing": polyfuse}
    timings = [{"name": key, "median": value} for key, value in medians.items()]
    return {"rows": [{"name": name, "mode": "forward", "timings": timings}]}


def test_ratios_are_of_the_others_times_to_ours():
    (group,) = groups([("Models", content(4.0, 3.0, 2.0))])
    assert (group.section, group.part) == ("Models", "forward")
    assert group.mean("over_eager") == 2.0 and group.mean("over_inductor") == 1.5
    assert "| [Models](#models), forward | 1 | 2.00× | 1.50× | 0 |" in summary([group])


def test_what_is_slower_is_named():
    found = groups([("Models", content(1.0, 1.5, 2.0)), ("Models, freezing", content(4.0, 1.99, 2.0, "vit"))])
    text = "\n".join(summary(found))
    assert "| bert, forward | Models | 2 s | 0.75× |" in text and "vit, forward" not in text
    assert "| Models, forward | 1 of 1 | 2 s |" in text


def test_several_plugins_of_one_run_are_no_comparison():
    row = {"name": "a", "timings": [{"name": n, "median": 1.0} for n in ("polyfuse@cpp", "eager")]}
    assert groups([("Kernels", {"rows": [row]})]) == []


def test_the_chart_is_a_drawing_with_a_bar_for_each_candidate():
    found = groups([(section, content(4.0, 2.0, 1.0, "<a>")) for section, _, _ in CHARTS])
    drawing = speed_chart(found)
    assert drawing is not None
    texts = [item.text for item in ElementTree.fromstring(drawing).findall(".//{*}text")]
    assert texts.count("4.00") == len(CHARTS) and texts.count("2.00") == len(CHARTS) and "<a>" in texts
    assert speed_chart(found[:1]) is None
    assert "4.00×" in str(readme_table(found)) and readme_table([]) is None


def test_the_chart_of_fused_functions_has_a_dot_for_each():
    rows = [content(4.0, ratio, 1.0, name)["rows"][0] for ratio, name in ((0.5, "a"), (1.0, "b"), (6.0, "c"))]
    rows = [{"name": row["name"], "size": "large", "timings": row["timings"]} for row in rows]
    (section, part, _), *_ = KERNEL_CHARTS
    drawing = kernels_chart(groups([(section, {"rows": rows})]))
    assert drawing is not None and part == "large"
    dots = ElementTree.fromstring(drawing).findall(".//{*}circle")
    assert len(dots) == 3 and dots[0].get("fill") != dots[1].get("fill") == dots[2].get("fill")
    assert float(dots[0].get("cy", 0)) > float(dots[1].get("cy", 0)) > float(dots[2].get("cy", 0))
    assert kernels_chart([]) is None


def test_what_autotuning_costs_and_gains(tmp_path: Path):
    mode = "polyfuse:max-autotune-no-cudagraphs"
    start = {"cold": {"polyfuse": 2.0, mode: 5.0}, "warm": {"polyfuse": 1.0, mode: 1.0}}
    (tmp_path / "tuning.json").write_text(json.dumps({"rows": [{"name": "bert", **start}]}))
    found = groups([("Linear layers", content(4.0, 2.0, 2.0, "1x8x8"))])
    text = str(autotuning_table(found, tmp_path))
    assert "cold start: bert](performance.md#tuning-time) | 3 s |" in text and "| 0 s |" in text
    assert "(performance.md#linear-layers) | 2.00× |" in text
    assert autotuning_table([], tmp_path / "none") is None
