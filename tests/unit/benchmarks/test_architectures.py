"""The campaign over whole architectures: its rule, its small configurations, its workers."""

from __future__ import annotations

import dataclasses
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from polyfuse_bench.architectures import campaign, catalogue, measure
from polyfuse_bench.architectures.built import Built, Entry, small_first
from polyfuse_bench.architectures.campaign import Plan, run_campaign
from polyfuse_bench.architectures.measure import Row, Settings
from polyfuse_bench.architectures.outcome import (
    AGREE,
    CRASH,
    FELL_BACK,
    NO_TRUTH,
    NOT_BUILDABLE,
    TIMED_OUT,
    UNSTEADY,
    WRONG,
    Errors,
    error,
    scales,
)
from polyfuse_bench.report_architectures import architectures_page
from polyfuse_bench.results import write_results


def plan(folder: Path, **changes: Any) -> Plan:
    settings = Settings(dtypes=("float32",))
    usual = Plan(settings, ("transformers",), ("gpt2", "vit"), 1, math.inf, 120.0, folder / "log.jsonl")
    return dataclasses.replace(usual, **changes)


@pytest.mark.slow
def test_architectures_agree_and_are_not_measured_twice(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    rows = run_campaign(plan(tmp_path))
    assert [(row["name"], row["outcome"], row["detail"]) for row in rows] == [
        ("gpt2", AGREE, ""),
        ("vit", AGREE, ""),
    ]
    assert all(row["kernels"] > 10 and row["judged"] == row["tensors"] > 10 for row in rows)
    shown: list[dict[str, Any]] = []
    again = run_campaign(plan(tmp_path, resume=True), lambda row, done, total: shown.append(row))
    assert again == rows and not shown


# ---- the rule ------------------------------------------------------------------------------------


def test_a_tensor_is_wrong_beyond_what_eager_and_a_perturbation_err() -> None:
    assert not Errors("a", own=1e-3, perturbed=2e-3, found=7e-3).wrong("float32")
    assert Errors("a", own=1e-3, perturbed=2e-3, found=3e-2).wrong("float32")
    assert Errors("a", own=1e-2, perturbed=2e-2, found=0.11).wrong("bfloat16")
    assert Errors("a", own=0.0, perturbed=0.0, found=1e-5).wrong("float32")
    assert not Errors("a", own=0.0, perturbed=0.0, found=1e-2).wrong("bfloat16")
    assert Errors("a", own=0.0, perturbed=0.0, found=math.inf).wrong("bfloat16")
    assert Errors("a", own=0.0, perturbed=0.0, found=math.nan).wrong("bfloat16")
    assert not Errors("a", own=0.9, perturbed=0.0, found=math.inf).wrong("float32")


def test_what_is_zero_but_for_rounding_is_measured_by_the_rounding_of_its_kind() -> None:
    truth = {
        "grad:a": torch.ones(4),
        "grad:b": torch.zeros(4),
        "grad:c": torch.ones(4),
        "out:0": 5 * torch.ones(1),
    }
    found = scales(truth, "float32")
    assert found["grad:a"] == pytest.approx(2.0) and found["out:0"] == pytest.approx(5.0)
    # an error of four units in the last place of what gradients typically hold is within the floor
    allowed = Errors("grad:b", own=0.0, perturbed=0.0, found=0.0).allowed("float32") * found["grad:b"]
    assert allowed == pytest.approx(2.0 * 4 * torch.finfo(torch.float32).eps)


def test_shapes_dtypes_and_positions_of_what_is_not_finite_must_be_eagers() -> None:
    truth = torch.tensor([1.0, math.inf], dtype=torch.float64)
    eager = truth.float()
    assert error(eager, truth, eager, 1.0) == 0.0
    assert error(eager[:1], truth, eager, 1.0) == math.inf
    assert error(truth, truth, eager, 1.0) == math.inf
    assert error(torch.tensor([1.0, 2.0]), truth, eager, 1.0) == math.inf
    assert error(torch.tensor([1.5, math.inf]), truth, eager, 2.0) == pytest.approx(0.25)


class Small(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(torch.relu(self.first(x))))


class Draws(Small):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * torch.randn_like(x[:, :1])


def measured(monkeypatch: pytest.MonkeyPatch, model: type[Small], defect: Any) -> Row:
    """The outcome where the compiler's output is changed by `defect`, a function of it and of the seed."""
    built: list[int] = []

    def build(entry: Entry, seed: int) -> Built:
        built.append(seed)
        torch.manual_seed(seed)
        return Built(model().eval(), {"x": torch.randn(5, 8)})

    def compiled(model: torch.nn.Module, backend: str) -> torch.nn.Module:
        model.register_forward_hook(lambda module, args, output: defect(output, built[-1]))
        return model

    monkeypatch.setattr(catalogue, "build", build)
    monkeypatch.setattr(measure, "compiled", compiled)
    rows: list[dict[str, Any]] = []
    measure.measure(Entry("own", "small", "small"), Settings(dtypes=("float32",)), rows.append)
    return Row(**rows[0])


def off(output: torch.Tensor, seed: int) -> torch.Tensor:
    return torch.cat([output[:1], output[1:] * 1.001])


def test_what_is_wrong_with_all_weights_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    row = measured(monkeypatch, Small, off)
    assert row.outcome == WRONG and "first out:0" in row.detail


def test_what_is_wrong_with_some_weights_only_is_unsteady(monkeypatch: pytest.MonkeyPatch) -> None:
    row = measured(monkeypatch, Small, lambda output, seed: output if seed else off(output, seed))
    assert row.outcome == UNSTEADY


def test_agreement_without_a_compiled_graph_is_no_agreement(monkeypatch: pytest.MonkeyPatch) -> None:
    row = measured(monkeypatch, Small, lambda output, seed: output)
    assert (row.outcome, row.kernels) == (FELL_BACK, 0)


def test_random_numbers_have_no_truth(monkeypatch: pytest.MonkeyPatch) -> None:
    assert measured(monkeypatch, Draws, off).outcome == NO_TRUTH


# ---- configurations ------------------------------------------------------------------------------


def test_small_configurations_keep_a_layer_of_each_kind() -> None:
    transformers = pytest.importorskip("transformers")
    from polyfuse_bench.architectures.shrink import Shrinking, small_config

    gemma = small_config(transformers.Gemma3TextConfig, Shrinking())
    assert sorted(set(gemma.layer_types)) == ["full_attention", "sliding_attention"]
    assert len(gemma.layer_types) == gemma.num_hidden_layers == 2
    assert gemma.hidden_size <= 64 and gemma.vocab_size <= 128 and gemma.pad_token_id < gemma.vocab_size
    clip = small_config(transformers.CLIPConfig, Shrinking(exceptions={"vision_config.patch_size": 16}))
    assert clip.vision_config.patch_size == 16 and clip.text_config.num_hidden_layers == 2
    assert len({clip.text_config.bos_token_id, clip.text_config.eos_token_id}) == 2


def test_families_come_before_their_second_members() -> None:
    names = [("a1", "a"), ("a2", "a"), ("a3", "a"), ("b1", "b"), ("c1", "c")]
    ordered = catalogue._families_first([Entry("x", name, family) for name, family in names])
    assert [entry.name for entry in ordered] == ["a1", "b1", "c1", "a2", "a3"]
    known = [
        Row("x", "a1", "a", "float32", NOT_BUILDABLE),
        Row("x", "b1", "b", "float32", AGREE, kernels=500),
    ]
    later = campaign.costly_last(ordered, [dataclasses.asdict(row) for row in known])
    assert [entry.name for entry in later] == ["c1", "a2", "a3", "b1", "a1"]
    assert sorted(["vit_large", "vit_tiny", "test_vit"], key=small_first) == [
        "test_vit",
        "vit_tiny",
        "vit_large",
    ]


# ---- workers -------------------------------------------------------------------------------------

STUB = """
import json, os, sys, time
json.loads(sys.stdin.readline())
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    entry = json.loads(line)
    if entry["name"] == "dies":
        print("last words", file=sys.stderr, flush=True)
        os._exit(3)
    if entry["name"] == "late":
        print(json.dumps({"late": True}), flush=True)
        os.abort()
    if entry["name"] == "sleeps":
        time.sleep(60)
    row = {"library": "own", "name": entry["name"], "family": "", "dtype": "float32", "outcome": "agree"}
    print(json.dumps({"row": row}), flush=True)
    print(json.dumps({"done": True, "full": entry["name"] == "full", "cpu": 0}), flush=True)
"""


def test_a_worker_that_dies_or_sleeps_costs_one_architecture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = [Entry("own", name, name) for name in ("first", "dies", "full", "late", "sleeps", "last")]
    monkeypatch.setattr(catalogue, "entries", lambda libraries, only: everything)
    monkeypatch.setattr(campaign, "COMMAND", (sys.executable, "-c", STUB))
    ask = campaign._Worker.ask

    def asked(worker: campaign._Worker, entry: Entry) -> None:
        # on a busy machine the others may take any time
        monkeypatch.setattr(campaign, "GRACE_SECONDS", 0.0 if entry.name == "sleeps" else 60.0)
        ask(worker, entry)

    monkeypatch.setattr(campaign._Worker, "ask", asked)
    rows = run_campaign(plan(tmp_path, limit=1.0))
    found = {row["name"]: (row["outcome"], row.get("detail", "")) for row in rows}
    assert found["dies"] == (CRASH, "the process ended with status 3: last words")
    assert found["sleeps"][0] == found["late"][0] == TIMED_OUT
    assert [found[name][0] for name in ("first", "full", "last")] == [AGREE] * 3
    assert [row["name"] for row in campaign.read_log(tmp_path / "log.jsonl")] == [
        entry.name for entry in everything
    ]


def test_the_page_is_made_from_results(tmp_path: Path) -> None:
    row = Row("own", "small", "small", "float32", AGREE, error=1e-7, own=2e-7, allowed=4e-7)
    row = dataclasses.replace(row, outputs=1e-7, own_outputs=2e-7, graphs=2, kernels=9, calls=4)
    other = dataclasses.replace(row, name="other", outcome=WRONG, detail="1 of 3 tensors")
    facts = {
        "settings": {"device": "cpu"},
        "libraries": {"own": "1.0"},
        "jobs": 1,
        "limit": 9.0,
        "seconds": 5,
    }
    write_results("architectures-cpu", [row, other], path=tmp_path / "architectures-cpu.json", **facts)
    page = architectures_page(tmp_path)
    assert page is not None
    assert "| own: small | 1e-07 (2e-07) | 25% | 2 | 9 | 4 | 0 |" in page
    assert "| own: other | f32 | wrong | 1 of 3 tensors |" in page
