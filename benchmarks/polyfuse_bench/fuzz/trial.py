"""One program of the search: what it is, how it is compiled, and what came of it."""

from __future__ import annotations

import random
import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from polyfuse.compiler.compile import compile_in_session
from polyfuse.compiler.session import CompileSession
from polyfuse_bench.fuzz.building import Choice, Fixed, Sessions
from polyfuse_bench.fuzz.generator import random_program
from polyfuse_bench.fuzz.maker import Scale
from polyfuse_bench.fuzz.program import Program
from polyfuse_bench.fuzz.truth import Truth, truth_of, with_gradients

__all__ = [
    "BANNED",
    "GRADIENTS",
    "RAISED",
    "SCALES",
    "Prepared",
    "Trial",
    "is_banned",
    "is_wrong_before",
    "prepare",
    "trial_of",
    "fault_of",
]

SCALES: Mapping[str, Scale] = {
    "cpp": Scale((4, 14), 1 << 14),
    "halide": Scale((3, 10), 1 << 12),
    "interpreted": Scale((3, 9), 1 << 11),
    "triton": Scale((3, 9), 1 << 15),
    "interpreter": Scale((4, 14), 1 << 12),
}

GRADIENTS = "gradients"

RAISED = "raised"
"""How an outcome begins that is no wrong value."""

BANNED = "banned"
"""The outcome of a program that PyTorch compiles for no backend, or into wrong values for every one."""

_LARGE: Mapping[str, Scale] = {
    "cpp": Scale((3, 6), 1 << 17),
    "halide": Scale((2, 5), 1 << 16),
    "interpreted": Scale((2, 5), 1 << 16),
    "triton": Scale((2, 6), 1 << 19),
    "interpreter": Scale((3, 6), 1 << 15),
}
"""Of some programs: where rows do not fit in registers and threads share the work, kernels are others."""

_OPTIONS: tuple[Mapping[str, Any], ...] = (
    *({},) * 8,
    {"numerics": "eager"},
    {"numerics": "eager"},
    {"gemm": "generated"},
    {"gemm": "generated"},
    {"gemm": "generated", "numerics": "eager"},
    {"gemm": "library"},
    {"fusion": False},
    {"aggressive_fusion": True, "horizontal_fusion": True},
    {"memory_pools": True},
    {"inplace": False, "reuse_buffers": False},
    {"loop_ordering": False, "max_inlined_reads": 1, "max_inlined_ops": 1},
    {"max_fusion_size": 3, "memory_pools": True, "aggressive_fusion": True},
)


@dataclass(frozen=True)
class Trial:
    """A program and how it is compiled.

    Attributes:
        route: `traced` (AOTAutograd alone), `gradients` (the same, with the backward), `dynamo` (all of
            `torch.compile`) or `dynamic` (the same, with sizes that are not known).
        configs: how each kernel is generated, in turn; where None, drawn from `draw`.
        threads: that kernels may use.
    """

    program: Program
    options: Mapping[str, Any] = field(default_factory=dict)
    route: str = "traced"
    device: str = "cpu"
    draw: int | None = None
    configs: tuple[Mapping[str, int] | None, ...] = ()
    threads: int = 1

    def choice(self) -> Choice:
        """What decides on configurations."""
        return Fixed(self.configs) if self.draw is None else Choice(self.draw)


def trial_of(seed: int, backend: str, device: str) -> Trial:
    """The trial of a seed."""
    draw = random.Random(f"{seed} {backend}")
    scales = _LARGE if draw.random() < 0.15 else SCALES
    program = random_program(seed, scales[backend])
    route = draw.choices(("traced", "dynamo", "dynamic"), (88, 7, 5))[0]
    if draw.random() < 0.9 and _is_smooth(program):
        route = GRADIENTS
    return Trial(
        program,
        draw.choice(_OPTIONS),
        route,
        device,
        seed if draw.random() < 0.85 else None,
        threads=1 if device != "cpu" or draw.random() < 0.8 else 3,
    )


_JUMPS = re.compile("amax|amin|maximum|minimum|sort|topk|cummax|relu|clamp|abs|hard|arg|std|norm\\(|unfold")


_BANNED = re.compile(
    "has internal overlap|more than one element of the written-to tensor refers to"
    "|view size is not compatible with input tensor|Cannot view a tensor with shape"
)


def _is_smooth(program: Program) -> bool:
    """Whether gradients follow small changes; nothing is written in place, where noise would not reach.

    Overlapping windows are left out: AOTAutograd copies the cotangent of a result into that result's own
    strides, in which several elements share memory, so that every compiler over it is wrong.
    """
    return not any(s.writes or _JUMPS.search(s.text.replace("layer_norm", "")) for s in program.statements)


# By how much more than `aot_eager` a backend may err where that is wrong too: its rounding is its own.
_AS_WRONG = 1.5


@dataclass
class Prepared:
    """A trial that is compiled; its kernels may not be built yet."""

    trial: Trial
    truth: Truth
    run: Callable[..., Sequence[Tensor]]
    choice: Choice


def prepare(trial: Trial, sessions: Sessions) -> Prepared:
    """Compile a program; raises what the compiler raises."""
    session, program = sessions.get(trial.options), trial.program
    truth = truth_of(program, trial.route == GRADIENTS)
    sessions.choice = choice = trial.choice()
    function, arguments = program.function(), program.arguments(device=trial.device)
    run: Callable[..., Sequence[Tensor]]
    with torch.set_grad_enabled(trial.route == GRADIENTS):
        if trial.route == GRADIENTS:
            arguments = [a.requires_grad_() if a.is_floating_point() else a for a in arguments]
        if trial.route in ("traced", GRADIENTS):
            run = compile_in_session(torch.fx.symbolic_trace(function), arguments, session)
        else:
            torch._dynamo.reset()
            run = torch.compile(function, backend=_Captured(session), dynamic=trial.route == "dynamic")
    return Prepared(trial, truth, run, choice)


def _answers_of(trial: Trial, run: Callable[..., Sequence[Tensor]]) -> list[Tensor]:
    """What a compiled program answers."""
    arguments = trial.program.arguments(device=trial.device)
    if trial.route == GRADIENTS:
        return with_gradients(trial.program, run, arguments)
    with torch.no_grad():
        return [*run(*arguments), *arguments]


class _Captured:
    """What Dynamo calls."""

    def __init__(self, session: CompileSession) -> None:
        self.session = session

    def __call__(self, gm: Any, example_inputs: Sequence[Any], **_: Any) -> Callable[..., Any]:
        return compile_in_session(gm, example_inputs, self.session)


def fault_of(prepared: Prepared, sessions: Sessions) -> str:
    """Run what was compiled; answer what is wrong, in words, empty where all is right.

    Raises what the program raises.
    """
    trial = prepared.trial
    sessions.choice = prepared.choice
    torch.set_num_threads(trial.threads)
    try:
        # kernels must leave nothing behind that the second call would find
        wrong = prepared.truth.differences(_answers_of(trial, prepared.run)) or prepared.truth.differences(
            _answers_of(trial, prepared.run)
        )
    finally:
        torch.set_num_threads(1)
    return "\n".join(map(str, wrong))


def outcome(trial: Trial, sessions: Sessions) -> str:
    """What is wrong with one program: wrong values, or what was raised."""
    try:
        return fault_of(prepare(trial, sessions), sessions)
    except Exception as error:
        return raised(error)
    finally:
        sessions.pool.forget()


def is_banned(trial: Trial, error: Exception) -> bool:
    """Whether PyTorch itself compiles no such program, by any backend: one that writes to what overlaps, or
    that returns a view of what was written, where AOTAutograd takes the written value for contiguous.
    """
    if not _BANNED.search(str(error)):
        return False
    torch._dynamo.reset()
    try:
        with torch.no_grad():
            torch.compile(trial.program.function(), backend="aot_eager")(*trial.program.arguments())
    except Exception as own:
        return bool(_BANNED.search(str(own)))
    return False


def is_wrong_before(prepared: Prepared) -> bool:
    """Whether `backend="aot_eager"`, which generates nothing, is as wrong in every result that is wrong here.

    AOTAutograd makes a view of an input that was written in place with the strides that a contiguous tensor
    would have, where sizes are not known; and it adds gradients in another order than eager mode.
    """
    trial, truth = prepared.trial, prepared.truth
    torch._dynamo.reset()
    dynamic = trial.route == "dynamic"
    run = torch.compile(trial.program.function(), backend="aot_eager", dynamic=dynamic)
    try:
        wrong = truth.differences(_answers_of(trial, prepared.run))
        before = {each.what: each.norm for each in truth.differences(_answers_of(trial, run))}
    except Exception:
        return False
    return bool(wrong) and all(w.what in before and w.norm <= _AS_WRONG * before[w.what] for w in wrong)


def raised(error: Exception) -> str:
    """An exception as the outcome of a trial."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    first = str(error).strip().split("\n")[0][:300]
    return f"{RAISED} {type(error).__name__} at {frame.name}: {first}"


def with_configs(trial: Trial, choice: Choice) -> Trial:
    """The same trial with the configurations that were drawn written down."""
    configs = tuple(None if c is None else dict(c.values) for c in choice.chosen)
    return replace(trial, draw=None, configs=configs)
