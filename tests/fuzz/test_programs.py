"""Random programs agree with float64, as eager mode does, however they are fused, stored and generated.

The programs are those of `python -m polyfuse_bench fuzz` (docs/correctness.md); that search takes thousands.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from polyfuse_bench.fuzz.building import Sessions
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


@pytest.mark.parametrize("seed", range(8))
def test_small_programs(seed: int) -> None:
    trial = Trial(random_program(seed, SMALL), {"verify": 2, **OPTIONS[seed % len(OPTIONS)]})
    assert not outcome(trial, Sessions("interpreter")), trial.program.body


def test_built_programs() -> None:
    assert not faults("cpp", 100, 6)


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
    kept = narrower.bfloat16()
    assert not truth.differences([kept, kept.float().sum(1).bfloat16(), kept])
    wrong = [t.clone() for t in truth.eager]
    wrong[0][3, 4] = wrong[0][3, 5] + 2
    (different,) = truth.differences(wrong)
    assert different.what == "result v1" and "1 of 1200 elements" in str(different)


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
    from polyfuse_bench.fuzz import campaign

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
