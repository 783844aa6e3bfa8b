"""Random programs agree with float64, as eager mode does, however they are fused, stored and generated.

The programs are those of `python -m polyfuse_bench fuzz` (docs/correctness.md); that search takes thousands.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from polyfuse_bench.fuzz import campaign, command
from polyfuse_bench.fuzz.building import Sessions
from polyfuse_bench.fuzz.command import summary
from polyfuse_bench.fuzz.generator import random_program
from polyfuse_bench.fuzz.maker import Scale
from polyfuse_bench.fuzz.program import Input, Program, Statement
from polyfuse_bench.fuzz.shrink import shrink
from polyfuse_bench.fuzz.trial import GRADIENTS, Trial, outcome, trial_of
from polyfuse_bench.fuzz.truth import truth_of
from polyfuse_bench.fuzz.worker import faults

from triton_interpreted import in_interpreter

OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"fusion": False},
    {"aggressive_fusion": True, "horizontal_fusion": True},
    {"memory_pools": True},
    {"inplace": False, "reuse_buffers": False},
    {"loop_ordering": False, "max_inlined_reads": 1, "max_inlined_ops": 1},
    {"max_fusion_size": 3, "memory_pools": True, "aggressive_fusion": True},
    {"graph_rewrites": False, "fuel": 5},
)

SMALL = Scale((3, 9), 1 << 10)


@pytest.mark.quick(2)
@pytest.mark.parametrize("seed", range(8))
def test_small_programs(seed: int) -> None:
    trial = Trial(random_program(seed, SMALL), {"verify": 2, **OPTIONS[seed % len(OPTIONS)]})
    assert not outcome(trial, Sessions("interpreter")), trial.program.body


@pytest.mark.parametrize("count", [3, pytest.param(6, marks=pytest.mark.slow)])
def test_built_programs(count: int) -> None:
    assert not faults("cpp", 100, count)


def test_programs_by_triton() -> None:
    assert not in_interpreter(faults, "interpreted", 100, 4)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["cpp", "halide"])
@pytest.mark.parametrize("first", range(200, 600, 50))
def test_many_built_programs(backend: str, first: int) -> None:
    if backend == "halide":
        pytest.importorskip("halide")
    assert not faults(backend, first, 50)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(200, 400, 50))
def test_many_programs_by_triton(first: int) -> None:
    assert not in_interpreter(faults, "interpreted", first, 50)


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: ",".join(o) or "default")
def test_many_interpreted_programs(options: dict[str, Any]) -> None:
    sessions = Sessions("interpreter")
    for seed in range(1000, 1040):
        trial = Trial(random_program(seed, SMALL), {"verify": 2, **options})
        assert not outcome(trial, sessions), f"seed {seed}:\n{trial.program.body}"


@pytest.mark.slow
def test_gradients() -> None:
    """What the search takes of them, by the interpreter: with as many options as there are."""
    sessions = Sessions("interpreter")
    trials = (trial_of(seed, "interpreter", "cpu") for seed in range(3000, 3300))
    for trial in [trial for trial in trials if trial.route == GRADIENTS]:
        assert not outcome(trial, sessions), trial.program.body


# The search itself.


def test_a_seed_always_gives_the_same() -> None:
    for seed in range(5):
        program = random_program(seed)
        assert program == random_program(seed)
        once, again = (program.function()(*program.arguments()) for _ in range(2))
        assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))


def test_rounding_is_no_finding_and_a_wrong_element_is() -> None:
    """Also where a difference of nearly equal values makes much of a rounding."""
    statements = (
        Statement("v0 = a0 + 30", ("v0",)),
        Statement("v1 = v0 - 30", ("v1",)),
        Statement("v2 = v1.sum(1)", ("v2",), ("v1",)),
    )
    program = Program((Input("a0", "normal('bf16', 40, 30)"),), statements, ("v1", "v2"))
    truth = truth_of(program)
    assert not truth.differences(truth.eager)
    narrower = program.arguments()[0].float()
    half = narrower.bfloat16()
    assert not truth.differences([half, half.float().sum(1).bfloat16(), half])
    wrong = [t.clone() for t in truth.eager]
    wrong[0][3, 4] = wrong[0][3, 5] + 2
    (different,) = truth.differences(wrong)
    assert different.what == "result v1" and "1 of 1200 elements" in str(different)


def test_rounding_inside_a_statement_and_in_its_backward_is_no_finding() -> None:
    """A mean is rounded before it is subtracted, so that the sum of what is left is not quite zero; gradients
    that cancel where they meet leave what rounding their sums left. A wrong mean is still found.
    """
    centred = (
        Statement("v0 = a0 - a0.mean(1, keepdim=True)", ("v0",), ("a0",)),
        Statement("v1 = v0.sum(1)", ("v1",), ("v0",)),
    )
    program = Program((Input("a0", "normal('f32', 64, 97) + 60"),), centred, ("v1",))
    truth, a0 = truth_of(program), program.arguments()[0]
    for dtype in (torch.float32, torch.float64):
        mean = torch.stack(list(a0.to(dtype).unbind(1))).cumsum(0)[-1].float() / 97
        assert not truth.differences([(a0 - mean[:, None]).sum(1), a0]), dtype
    assert truth.differences([(a0 - a0[:, 1:].mean(1, keepdim=True)).sum(1), a0])
    meeting = (
        Statement("v0 = a0 * 7", ("v0",)),
        Statement("v1 = a0 * 8", ("v1",)),
        Statement("v2 = torch.softmax(a0, 0)", ("v2",), ("a0",)),
    )
    program = Program((Input("a0", "normal('f32', 4096)"),), meeting, ("v0", "v1", "v2"))
    truth, (a0,) = truth_of(program, gradients=True), program.arguments()
    *results, grad = truth.eager
    inexact = (truth.exact[-1] + 3.0).float() - 3.0  # as when it was added to a larger one first
    assert not truth.differences([*results, inexact])
    assert truth.differences([*results, grad + 1e-3])


def test_the_rounding_of_a_mean_is_no_finding_where_a_layer_norm_magnifies_it() -> None:
    inputs = (Input("a0", "normal('f32', 17, 1).expand(17, 17)"), Input("a1", "normal('f32', 17)"))
    program = Program(
        inputs, (Statement("v0 = F.layer_norm(a0, (17,), a1, a1)", ("v0",), ("a0", "a1")),), ("v0",)
    )
    truth, (a0, a1) = truth_of(program), program.arguments()

    def normalised(mean: torch.Tensor) -> torch.Tensor:
        centred = a0 - mean
        scale = torch.rsqrt(centred.square().mean(1, keepdim=True) + 1e-5)
        return centred * scale * a1 + a1

    near = a0[:, :1] * (1 + 1.2e-7)
    assert not truth.differences([normalised(near), a0, a1])
    assert truth.differences([normalised(a0[:, :1] * 1.00001), a0, a1])


def test_a_type_of_its_own_inside_a_statement_is_no_finding() -> None:
    """What a statement in float64 computes in float32 is as exact as float32."""
    joined = Statement("v0 = torch.cat((torch.tanh(a0), a1), 0)", ("v0",))
    inputs = (Input("a0", "normal('f32', 500)"), Input("a1", "normal('f64', 500)"))
    program = Program(inputs, (joined,), ("v0",))
    truth, (a0, a1) = truth_of(program), program.arguments()
    near = torch.nextafter(torch.tanh(a0), torch.zeros(()))
    assert not truth.differences([torch.cat((near.double(), a1)), a0, a1])
    assert truth.differences([torch.cat((torch.tanh(a0).double(), a1 * 1.00001)), a0, a1])


def test_shrinking_keeps_what_is_at_fault() -> None:
    for seed in range(30, 60):
        program = random_program(seed)
        if any("softmax" in s.text for s in program.statements) and len(program.statements) > 6:
            break
    trial = Trial(program, {"fusion": False}, "dynamo", draw=3)
    small = shrink(trial, lambda t: any("softmax" in s.text for s in t.program.statements), 10.0)
    assert len(small.program.statements) == 1 and len(small.program.results) == 1
    assert (small.options, small.route, small.draw) == ({}, "traced", None)
    small.program.function()(*small.program.arguments())


def test_a_campaign_goes_on_after_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that ends costs its own seed alone, and a second run has nothing left to do."""
    (tmp_path / "polyfuse_bench" / "fuzz").mkdir(parents=True)
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    monkeypatch.setattr(campaign, "WORKER", [str(script)])
    wanted = campaign.Campaign("cpp", seed=10, count=9, jobs=2, batch=3, out=tmp_path / "found.json")
    lines: list[str] = []
    tally, path = campaign.search(wanted, lambda _, line: lines.append(line))
    assert path is not None and tally.done == set(range(10, 19))
    content = json.loads(path.read_text())
    assert content["outcomes"] == {"crashed": 1, "right": 7, "wrong": 1}
    assert [row["seed"] for row in content["rows"]] == [13, 17] and content["done"] == [[10, 18]]
    assert "seed 13: crashed with 7 in phase run" in lines
    again, _ = campaign.search(wanted, lambda *_: None)
    assert again.facts()["graphs"] == 9 and len(again.findings) == 2
    counts, *findings = summary(wanted, again)
    assert "9 programs (1 crashed, 7 right, 1 wrong)" in counts and counts.endswith("2 findings; 0 left")
    assert findings == ["  13: crashed with 7 in phase run", "  17: result v1: it is wrong"]
    # the findings alone, into another file
    arguments = ["--again", str(path), "--out", str(tmp_path / "again.json")]
    assert command.main(arguments) == 1
    assert json.loads((tmp_path / "again.json").read_text())["done"] == [[13, 13], [17, 17]]


def test_a_campaign_ends_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is in the middle of a batch is stopped, which is no finding."""
    script = tmp_path / "worker.py"
    script.write_text(WORKER.replace("os._exit(7)", "import time; time.sleep(600)"))
    monkeypatch.setattr(campaign, "WORKER", [str(script)])
    now, note = [0.0], campaign._Work._note

    def noted(work: Any, facts: dict[str, Any]) -> None:
        note(work, facts)
        if facts.get("seed") == 12:
            now[0] = 1e6

    monkeypatch.setattr(campaign, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(campaign._Work, "_note", noted)
    wanted = campaign.Campaign("cpp", seed=11, count=9, batch=3, minutes=1, out=tmp_path / "found.json")
    tally, _ = campaign.search(wanted, lambda *_: None)
    assert not tally.findings and tally.done == {11, 12}


WORKER = """
import json, os, sys
def say(**facts): print(json.dumps(facts), flush=True)
for line in sys.stdin:
    seeds = json.loads(line)
    for seed in seeds:
        say(at=seed, phase="run")
        if seed == 13:
            os._exit(7)
        say(seed=seed, outcome="result v1: it is wrong" if seed == 17 else "", route="traced", configs=1)
    say(done=seeds, kernels=2, cpu=1.0)
"""
