"""The campaign over engines: peers that are missing or installed, its tables and its chart."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from polyfuse_bench import campaigns
from polyfuse_bench.backends import EAGER, ONNXRUNTIME, OPENVINO
from polyfuse_bench.engines import NETWORKS, PEERS, Flat, measure, versions
from polyfuse_bench.machine import machine
from polyfuse_bench.models import Size, flatten_outputs, prepare
from polyfuse_bench.models.convolutions import CONVOLUTION_NETWORKS
from polyfuse_bench.packaged import FORMS
from polyfuse_bench.report_engines import (
    best_own,
    engines_chart,
    engines_readme,
    engines_section,
    engines_slower,
)
from polyfuse_bench.run import main
from polyfuse_bench.timing import Effort

ONCE = dataclasses.asdict(Effort(rounds=1, min_sample_seconds=0, warmup_seconds=0))


def task(name: str, backends: tuple[str, ...]) -> dict:
    shape = {"size": "tiny", "batch": 2, "dtype": "float32"}
    return {"kind": "engines", "name": name, "backends": backends, "effort": ONCE, **shape}


def test_a_peer_that_is_not_installed_is_named_and_costs_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PEERS:
        monkeypatch.setitem(sys.modules, name, None)
    row = measure(task("wave_net", (EAGER, *PEERS)))
    assert [timing["name"] for timing in row["timings"]] == [EAGER]
    assert set(row["failures"]) == set(PEERS) and "openvino" in row["failures"][OPENVINO]
    assert row["batch"] == 2 and row["threads"] == torch.get_num_threads()


@pytest.mark.quick(5)
@pytest.mark.parametrize("name", CONVOLUTION_NETWORKS)
def test_a_network_takes_any_batch_and_its_values_neither_grow_nor_vanish(name: str) -> None:
    for batch in (1, 3):
        prepared = prepare(CONVOLUTION_NETWORKS[name], Size.TINY, batch=batch)
        for output in flatten_outputs(prepared.model(**prepared.inputs)):
            assert output.shape[0] == batch and 1e-30 < output.abs().max() < 1e6


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n == "wave_net" else pytest.mark.slow) for n in CONVOLUTION_NETWORKS],
)
def test_compiled_convolutions_agree_with_eager_mode(name: str) -> None:
    row = measure(task(name, (EAGER, "polyfuse")))
    assert not row["failures"] and row["errors"]["polyfuse"] < 1e-4


def test_packages_agree_with_eager_mode() -> None:
    forms = tuple(f"polyfuse:{form}" for form in FORMS)
    row = measure(task("wave_net", (EAGER, "polyfuse", *forms)))
    assert not row["failures"] and all(row["errors"][form] < 1e-4 for form in forms)


# neither converts the choice of experts
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "mixtral"])
def test_peers_agree_with_eager_mode(name: str) -> None:
    missing = [peer for peer in PEERS if importlib.util.find_spec(peer) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)}: not installed; pip install 'polyfuse[peers]'")
    row = measure(task(name, (EAGER, *PEERS)))
    assert not row["failures"] and all(row["errors"][peer] < 1e-4 for peer in PEERS)
    assert set(PEERS) <= set(versions())


def test_a_network_by_position_gives_what_it_gives_by_name() -> None:
    prepared = prepare(NETWORKS["resnet50"], Size.TINY, batch=1)
    flat = Flat(prepared.model, list(prepared.inputs))
    (logits,) = flat(*prepared.inputs.values())
    torch.testing.assert_close(logits, prepared.model(**prepared.inputs).logits)


def test_networks_that_were_measured_are_not_planned_again() -> None:
    every = campaigns.Selection(backends=(EAGER,), only=("yolo", "unet"))
    assert len(campaigns.engines(every)) == 2
    known = frozenset([("yolo", "float32")])
    (left,) = campaigns.engines(dataclasses.replace(every, known=known))
    (planned,) = left.args
    assert planned["name"] == "unet" and planned["effort"]["rest_seconds"] > 0


@pytest.mark.slow
def test_rows_of_an_earlier_run_stay_and_each_candidate_has_the_rounds_asked_for(tmp_path: Path) -> None:
    words = ["engines", "--tiny", "--batch", "1", "--backends", "eager", "--quick", "--rounds", "2"]
    words += ["--together", "2", "--out", str(tmp_path / "rows.json")]
    assert main([*words, "--only", "wave_net"]) == 0
    first = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert main([*words, "--only", "wave_net,espcn", "--resume", str(tmp_path / "rows.json")]) == 0
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert [row["name"] for row in rows] == ["wave_net", "espcn"] and rows[:1] == first
    assert all(timing["rounds"] == 2 for row in rows for timing in row["timings"])


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Two networks: one where Polyfuse is fastest, one where ONNX Runtime is."""
    backends = (EAGER, "inductor", OPENVINO, ONNXRUNTIME, "polyfuse", "polyfuse:freezing")
    medians = {"bert": (4.0, 3.0, 2.0, 2.5, 2.0, 1.0), "resnet50": (4.0, 4.0, 1.0, 0.5, 2.0, 1.0)}
    rows = [
        {
            "name": name,
            "dtype": "float32",
            "batch": 4,
            "threads": 2,
            "timings": [{"name": n, "median": m} for n, m in zip(backends, seconds, strict=True)],
            "errors": {"polyfuse": 1e-6},
            "failures": {},
        }
        for name, seconds in medians.items()
    ]
    facts = {"kind": "engines", "taken": "2026-01-01", "machine": dataclasses.asdict(machine())}
    content = {**facts, "engines": {OPENVINO: "1.2"}, "rows": rows}
    (tmp_path / "engines.json").write_text(json.dumps(content))
    return tmp_path


def test_the_table_compares_the_faster_form_with_the_fastest_peer(results: Path) -> None:
    content = json.loads((results / "engines.json").read_text())
    text = "\n".join(engines_section(content))
    bert = "| bert | 4 s | 3 s | 2 s | 2.5 s | 2 s | 1 s | 1.50× | 2.00× | 2.00× | 1e-06 |"
    assert bert in text and "OpenVINO 1.2" in text and "## Engines with" in text
    labelled = engines_section({**content, "kind": "engines-transformers-batch1"})
    assert labelled[0].startswith("## Engines, transformers with")
    assert "PYTHONPATH=benchmarks OMP_NUM_THREADS=2 python -m polyfuse_bench engines --batch 4" in text
    assert "| resnet50, engines | ONNX Runtime | 1 s | 0.50× |" in "\n".join(engines_slower(results))


def test_packages_have_their_time_over_that_of_the_default_form(results: Path) -> None:
    content = json.loads((results / "engines.json").read_text())
    for row in content["rows"]:
        row["timings"] = [{"name": n, "median": m} for n, m in (("polyfuse", 2.0), ("polyfuse:package", 2.5))]
    text = engines_section({**content, "kind": "engines-packages"})
    assert text[0].startswith("## Engines, packages with")
    assert "| bert | 2 s | 2.5 s | 1.25× | 1e-06 |" in text and "OpenVINO |" not in "\n".join(text)


def test_reasons_of_failures_have_no_colours(results: Path) -> None:
    content = json.loads((results / "engines.json").read_text())
    content["rows"][0]["failures"] = {"onnxruntime": "ConversionError: \x1b[96mstep 3/3\x1b[0m of 3"}
    assert any(
        line.endswith("ONNX Runtime: ConversionError: step 3/3 of 3") for line in engines_section(content)
    )


def test_the_chart_has_a_bar_for_each_engine(results: Path) -> None:
    drawing = ElementTree.fromstring(str(engines_chart(results)))
    texts = [item.text for item in drawing.findall(".//{*}text")]
    assert {"OpenVINO", "ONNX Runtime", "Inductor", "bert", "8.00"} <= set(texts)
    assert "Polyfuse (freezing) 4.00×" in str(engines_readme(results))


def test_the_file_of_most_engines_then_networks_then_the_newest_is_shown(results: Path) -> None:
    content = json.loads((results / "engines.json").read_text())
    for row in content["rows"]:
        row["batch"] = 1
    other = {**content, "kind": "engines-other", "taken": "2026-01-02"}
    few = {**other, "kind": "engines-some", "taken": "2026-01-03", "rows": other["rows"][:1]}
    without = json.loads(json.dumps({**content, "kind": "engines-peers", "taken": "2026-01-04"}))
    for row in without["rows"]:
        row["batch"] = 2
        row["timings"] = [timing for timing in row["timings"] if timing["name"] != "inductor"]
    partly = json.loads(json.dumps({**content, "kind": "engines-partly", "taken": "2026-01-05"}))
    for row in partly["rows"][1:]:
        row["timings"] = [timing for timing in row["timings"] if timing["name"] != "inductor"]
    for row in partly["rows"]:
        row["batch"] = 4
    for written in (other, few, without, partly):
        (results / f"{written['kind']}.json").write_text(json.dumps(written))
    shown = str(engines_readme(results))
    assert "Inductor" in shown and "batch 1" in shown and "f32, batch 1" in str(engines_chart(results))
    assert "resnet50" in str(engines_chart(results))


def test_nothing_is_drawn_of_nothing(tmp_path: Path) -> None:
    assert engines_chart(tmp_path) is None and engines_readme(tmp_path) is None
    assert engines_slower(tmp_path) == []


def test_peers_are_compared_with_compiled_forms_alone() -> None:
    assert best_own({"eager": 0.5, "polyfuse": 2.0, "polyfuse:package": 1.0, "polyfuse:freezing": 1.5}) == 1.5
