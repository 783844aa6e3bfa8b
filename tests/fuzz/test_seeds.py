"""Programs that the search found (docs/correctness.md), shrunk, each with what was wrong.

`python -m polyfuse_bench fuzz --shrink SEED` writes a failure as a file; its program goes here with the mend.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from polyfuse_bench.fuzz.building import Sessions
from polyfuse_bench.fuzz.program import Input, Program, Statement
from polyfuse_bench.fuzz.trial import Trial, fault_of, is_wrong_before, prepare
from polyfuse_bench.fuzz.worker import outcome_by
from torch import Tensor


@dataclass(frozen=True)
class Found:
    """A program as text, the backend that was wrong, and how its kernels were generated."""

    backend: str
    inputs: dict[str, str]
    lines: tuple[str, ...]
    results: tuple[str, ...]
    configs: tuple[dict[str, int] | None, ...] = ()
    options: tuple[tuple[str, Any], ...] = ()
    route: str = "traced"

    def trial(self) -> Trial:
        inputs = tuple(Input(name, text) for name, text in self.inputs.items())
        statements = tuple(map(_statement, self.lines))
        program = Program(inputs, statements, self.results)
        return Trial(program, dict(self.options), self.route, configs=self.configs)


def _statement(line: str) -> Statement:
    target, equals, _ = line.partition(" = ")
    return Statement(line, tuple(target.split(", ")) if equals and target.isidentifier() else ())


SEEDS: dict[str, Found] = {
    # sums of a block of columns were held in registers for fewer columns than another output needs of them
    "halide-30154: a reduction of columns, beside an output with its loop and one without": Found(
        "halide",
        {"a0": "normal('f16', 3, 3, 33, 3)"},
        (
            "v0 = a0.amax(1, keepdim=True)",
            "v1 = a0 + F.silu(a0) * a0",
            "v2 = v0.sum(1, keepdim=True)",
            "v3 = v0 / (v2.abs() + 0.5)",
        ),
        ("v1", "v3"),
    ),
    # of two outputs computed together, blocks of columns read the sums of more columns than a block has
    "halide-32000077: a reduction of columns, beside two outputs with its loop": Found(
        "halide",
        {"a1": "normal('f16', 6, 127, 3)[::2, :, :]", "a2": "normal('f16', 3)", "a4": "normal('f16', 4)"},
        (
            "v12 = a1 + torch.relu(a1 - 0.5)",
            "v15 = v12 * torch.rsqrt(v12.to(f32).square().mean(-1, keepdim=True) + 1e-5).to(f16) * a2",
            "v12.select(0, 0).zero_()",
            "v18 = F.pad(v15, (1, 0))",
            "v20 = v18 * torch.rsqrt(v18.to(f32).square().mean(-1, keepdim=True) + 1e-5).to(f16) * a4",
            "v21 = a2 / (v15.abs() + 0.5)",
            "v22 = 1 - v20",
            "v23 = v22 + F.silu(v22) * v22",
            "v24 = torch.tril(v15)",
        ),
        ("v18", "v20", "v21", "v23", "v24"),
    ),
    # where a kernel contracts, its sums are strict, and Halide lets no strict sums be reordered
    "halide-32001399: a sum at computed rows, whose loops may not be reordered": Found(
        "halide",
        {
            "a0": "normal('f32', 1, 15, 15)",
            "a1": "below(1, 8)",
            "a2": "normal('f32', 8, 15, 15)",
        },
        ("a0.index_add_(0, a1, a2)", "F.silu(a2, inplace=True)"),
        ("a0",),
    ),
    # a result took the storage of an input that a second pass over the rows read again
    "triton-20310: a result in the memory of an input whose rows are read twice": Found(
        "interpreted",
        {
            "a0": "normal('bf16', 5, 5)",
            "a1": "normal('bf16', 5, 17).permute(1, 0)",
            "a2": "normal('bf16', 5)",
        },
        (
            "v0 = (a1 @ a0) * 0.313",
            "v1 = F.gelu(v0)",
            "v2 = v1 + a2",
            "v3 = v1.logsumexp(1, keepdim=True)",
        ),
        ("v2", "v3"),
    ),
    # an update of Halide runs over those loops alone that occur in it: the value was added once
    "halide-6: a sum over an expanded dimension": Found(
        "halide",
        {"a0": "normal('f32', 2, 1, 1, 2).expand(2, 2, 1, 2)"},
        ("v0 = a0.sum(1, keepdim=True)",),
        ("v0",),
    ),
    "halide: a value that is scattered to one index, again and again": Found(
        "halide",
        {"a0": "normal('f32', 5)", "a1": "normal('f32', 1)", "a2": "below(5, 1)"},
        ("v0 = a0.index_add(0, a2.expand(6), a1.expand(6))",),
        ("v0",),
    ),
    # results of reductions were counted with those of the scans before them
    "halide-1062: a reduction beside a scan": Found(
        "halide",
        {"a0": "normal('f32', 1, 97)", "a1": "normal('f32', 1, 194)[:, ::2]"},
        ("v0 = torch.cumprod(a0.abs() * 0.1 + 0.9, 1)", "v1 = F.layer_norm(v0 + a1, (97,))"),
        ("v1",),
    ),
    # Halide lets loops be reordered only where it knows that the order of the stores does not matter
    "halide-1074: a scatter whose lanes are not along the innermost loop": Found(
        "halide",
        {"a0": "normal('f32', 16, 32)[:, ::2]", "a1": "normal('f32', 16, 16)", "a2": "order(16)"},
        ("v0 = a1.index_copy(1, a2, a0)",),
        ("v0",),
    ),
    # Halide cannot compile a tail of lanes that read backwards where it knows where the buffer begins
    "halide-1004: a flip of a size that no vector divides": Found(
        "halide",
        {"a0": "normal('bf16', 1025)"},
        ("v0 = a0.flip(0)",),
        ("v0",),
        ({"unroll": 4},),
    ),
    # what a loop read, the same all along it, was loaded before the loop, but after it was overwritten
    "cpp-4000963: an input that is read along a loop and overwritten beside it": Found(
        "cpp",
        {"a0": "normal('f32', 12, 12)", "a1": "normal('f32', 12)", "a2": "normal('f16', 12, 12)"},
        ("v12 = a1 + a0", "a1.fill_(0.5)", "v14 = torch.logcumsumexp(v12, 0)", "a0.add_(a2)"),
        ("v12", "v14"),
    ),
    "cpp-1005606: one that a sum of exponentials and a result read": Found(
        "cpp",
        {
            "a0": "normal('bf16', 35, 47)[1:-2, :]",
            "a1": "normal('f32', 47, 32)",
            "a2": "flags(47, 32)",
            "a3": "normal('f32', 1, 47)",
            "a4": "flags(32, 47)",
            "a5": "normal('f32', 47, 32)",
        },
        (
            "v12 = a0.transpose(-1, -2)",
            "v14 = F.gelu(a1, approximate='tanh')",
            "v15 = v12 - v14",
            "v17 = torch.softmax(v15.masked_fill(~a2, -float('inf')), -1)",
            "v20 = torch.where(a4, a0, a3)",
            "v22 = torch.maximum(a5, a1)",
            "v22.diagonal().zero_()",
            "a3.zero_()",
            "v22.unsqueeze(0).tanh_()",
            "v23 = v20.logsumexp(1, keepdim=False)",
            "v24 = torch.maximum(a3, v20)",
            "v15.neg_()",
        ),
        ("v14", "v17", "v23", "v24"),
    ),
    "cpp-4001893: a number that rows are multiplied by": Found(
        "cpp",
        {"a0": "normal('f32', 96)", "a2": "normal('f16', 1)", "a3": "normal('f32', 4)[1:-2]"},
        ("v12 = torch.cat((a0, a0), 0)", "v15 = v12 * a2", "a2.copy_(a3)", "v18 = v15.mean(0)"),
        ("v18",),
    ),
    # Halide took what holds for whole vectors for true in the tail, where a choice by the index occurs twice
    "halide-2000495: a padding whose end is in the tail of the lanes": Found(
        "halide",
        {"a2": "normal('f32', 128)"},
        ("v13 = a2 + F.silu(a2) * a2", "v15 = F.pad(v13, (3, 1), value=0.5)"),
        ("v15",),
    ),
    "halide-2002416: a padding whose end is in the tail of a row": Found(
        "halide",
        {"a0": "normal('bf16', 64)[::2]", "a4": "below(36, 15, dtype='i32')"},
        (
            "v17 = a0 * torch.full((32,), 0.5, dtype=bf16, device=a0.device)",
            "v19 = F.pad(v17, (2, 2), value=0.5)",
            "a0.add_(1)",
            "v21 = v19.index_select(0, a4)",
        ),
        ("v21",),
        options=(("numerics", "eager"),),
    ),
    # the first of several values that are stored was read again, where it lay already, for the second
    "halide-2002684: two inputs written in place, one from the other": Found(
        "halide",
        {"a0": "normal('f32', 94, 1, 47)[::2, :, :]", "a1": "normal('f32', 47, 1, 47)"},
        ("a0.sub_(a1)", "a1.addcmul_(a0, a0, value=0.3)"),
        ("a0",),
    ),
    # chunks of an axis ended before the vectors that are taken side by side did
    "cpp-11001767: a gradient beside a sum in chunks of two vectors": Found(
        "cpp",
        {"a0": "normal('f32', 32, 32, 128)", "a1": "normal('f32', 32, 1)"},
        ("v14 = a1 * a0",),
        ("v14",),
        configs=(None, {"lane": 1}),
        route="gradients",
    ),
    # a part of a group takes halves as integers, where it only moves them
    "cpp-44000026: a group of kernels, one of which moves halves": Found(
        "cpp",
        {"a0": "normal('bf16', 5, 3)", "a1": "normal('bf16', 7)"},
        ("v0 = a0[1:].clone()", "v1 = a1.tanh()"),
        ("v0", "v1"),
        options=(("horizontal_fusion", True),),
    ),
    # what a mask leaves out lay below zero
    "halide-45000175: a gather from the third tensor of a cat": Found(
        "halide",
        {
            "a0": "normal('bf16', 66)",
            "a1": "normal('bf16', 129)",
            "a2": "normal('bf16', 1)",
            "a3": "below(324, 5)",
        },
        ("v0 = a2 - torch.cat((a0, a1, a1), 0)", "v1 = v0.gather(0, a3)"),
        ("v1",),
    ),
}


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", SEEDS)
def test_it_is_right_now(name: str) -> None:
    found = SEEDS[name]
    if found.backend == "halide":
        pytest.importorskip("halide")
    if found.backend == "interpreted":
        from triton_interpreted import in_interpreter

        assert not in_interpreter(outcome_by, found.backend, found.trial())
        return
    assert not outcome_by(found.backend, found.trial())


def test_what_every_backend_gets_wrong_is_no_finding() -> None:
    """cpp-31001632: AOTAutograd returns a view of a written input with strides of its own making."""
    found = Found(
        "interpreter",
        {"a0": "normal('f32', 9, 9, 12)[:, :, 1:-2]"},
        ("a0.tanh_()", "v12 = a0.flatten(0, 1)"),
        ("v12",),
        route="dynamic",
    )
    sessions = Sessions("interpreter")
    prepared = prepare(found.trial(), sessions)
    assert not fault_of(prepared, sessions) or is_wrong_before(prepared)
    # what is wrong in the backend alone is a finding: the other result, or more of an error
    right = prepared.run

    def written_wrongly(a0: Tensor) -> list[Tensor]:
        results = list(right(a0))
        a0.add_(1)
        return results

    def far_off(a0: Tensor) -> list[Tensor]:
        return [result + 100 for result in right(a0)]

    assert not is_wrong_before(replace(prepared, run=written_wrongly))
    assert not is_wrong_before(replace(prepared, run=far_off))
