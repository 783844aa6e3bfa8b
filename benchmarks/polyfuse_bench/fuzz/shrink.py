"""From a program that fails to a small one that still does, and from that to a file that runs by itself."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from polyfuse_bench.fuzz.building import Sessions
from polyfuse_bench.fuzz.program import DTYPES, Input, Program, Statement, namespace
from polyfuse_bench.fuzz.standalone import standalone
from polyfuse_bench.fuzz.trial import (
    GRADIENTS,
    RAISED,
    Trial,
    fault_of,
    outcome,
    prepare,
    trial_of,
    with_configs,
)
from polyfuse_bench.fuzz.truth import truth_of
from polyfuse_bench.fuzz.worker import sessions_for

__all__ = ["shrink", "shrink_seeds"]

_DRAWS = 3
"""How often configurations are drawn anew for a smaller program: they are drawn kernel by kernel."""

_LONGEST = 120
"""Seconds after which a program is given up."""

CRASHED = "crashed"

Fails = Callable[[Trial], bool]


def shrink_seeds(
    seeds: Sequence[int], backend: str, device: str, folder: Path, seconds: float
) -> Iterator[Path]:
    """Write a file for each seed that fails."""
    sessions = sessions_for(backend)
    folder.mkdir(parents=True, exist_ok=True)
    for seed in seeds:
        trial = trial_of(seed, backend, device)
        kind = _kind(_guarded(trial, sessions))
        if not kind:
            continue
        small = shrink(trial, partial(_fails_so, kind, sessions), seconds)
        if kind != CRASHED:
            small = _configured(small, sessions)
        path = folder / f"{backend}_{seed}.py"
        path.write_text(standalone(small, backend, _guarded(small, sessions)), encoding="utf-8")
        yield path


def _fails_so(kind: str, sessions: Sessions, trial: Trial) -> bool:
    return _kind(_guarded(trial, sessions)) == kind


def _guarded(trial: Trial, sessions: Sessions) -> str:
    """`_outcome`, in a process of its own where the device lets processes be copied."""
    if trial.device != "cpu":
        return _outcome(trial, sessions)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        signal.alarm(_LONGEST)
        os.write(writing, _outcome(trial, sessions).encode()[:4000])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        found = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    return f"{CRASHED} with {status}" if status else found


def _kind(found: str) -> str:
    """Outcomes of one kind are taken for the same failure."""
    if found.startswith(CRASHED):
        return CRASHED
    return " ".join(found.split()[:2]) if found.startswith(RAISED) else "wrong" if found else ""


def _outcome(trial: Trial, sessions: Sessions) -> str:
    """What is wrong; nothing where the program itself is."""
    try:
        truth = truth_of(trial.program, trial.route == GRADIENTS)
    except Exception:
        return ""
    if not all(bool(t.isfinite().all()) for t in truth.exact):
        return ""
    return outcome(trial, sessions)


def _configured(trial: Trial, sessions: Sessions) -> Trial:
    """With its configurations written down, as far as they matter."""
    if trial.draw is None:
        return trial
    prepared = prepare(trial, sessions)
    fault_of(prepared, sessions)
    found = with_configs(trial, prepared.choice)
    for i in range(len(found.configs)):
        less = replace(found, configs=(*found.configs[:i], None, *found.configs[i + 1 :]))
        if outcome(less, sessions):
            found = less
    return found


def shrink(trial: Trial, fails: Fails, seconds: float = 120.0) -> Trial:
    """The smallest that is found in the time, by leaving out and simplifying one thing after the other."""
    until = time.monotonic() + seconds

    def still(candidate: Trial) -> Trial | None:
        if time.monotonic() > until:
            return None
        draws = range(_DRAWS) if candidate.draw is not None else range(1)
        for draw in draws:
            tried = candidate if not draw else replace(candidate, draw=(candidate.draw or 0) + draw)
            if fails(tried):
                return tried
        return None

    for plain in ({"draw": None}, {"options": {}}, {"route": "traced"}, {"threads": 1}):
        trial = still(replace(trial, **plain)) or trial
    before = None
    while before != trial and time.monotonic() < until:
        before = trial
        for smaller in (_fewer_results, _fewer_statements, _plainer_inputs, _fewer_types, _smaller_sizes):
            trial = _greedy(trial, smaller, still)
    return trial


def _greedy(
    trial: Trial, smaller: Callable[[Program], Iterator[Program]], still: Callable[[Trial], Trial | None]
) -> Trial:
    """Take every simplification that still fails."""
    going = True
    while going:
        going = False
        for program in smaller(trial.program):
            found = still(replace(trial, program=_without_unused(program)))
            if found is not None:
                trial, going = found, True
                break
    return trial


def _names(text: str) -> set[str]:
    return set(re.findall(r"\b[av]\d+(?:_\d+)?\b", text))


def _without_unused(program: Program) -> Program:
    """Without statements whose results nobody reads, and without inputs that nobody reads."""
    needed = set(program.results)
    remaining: list[Statement] = []
    for statement in reversed(program.statements):
        if statement.writes or needed & set(statement.targets):
            needed |= _names(statement.text)
            remaining.append(statement)
    inputs = tuple(i for i in program.inputs if i.name in needed)
    return replace(program, inputs=inputs, statements=tuple(reversed(remaining)))


def _fewer_results(program: Program) -> Iterator[Program]:
    if len(program.results) > 1:
        for name in program.results:
            yield replace(program, results=(name,))
        for name in program.results:
            yield replace(program, results=tuple(n for n in program.results if n != name))


def _fewer_statements(program: Program) -> Iterator[Program]:
    """Without one: what it made is given instead. A program may also end earlier."""
    space = {**namespace()}
    for made, value in zip(program.inputs, program.arguments(), strict=True):
        space[made.name] = value
    for statement in program.statements:
        exec(statement.code, space)
    for i, statement in enumerate(program.statements):
        rest = (*program.statements[:i], *program.statements[i + 1 :])
        inputs = [*program.inputs]
        for name in statement.targets:
            value = space[name]
            if value.dtype.is_floating_point:
                dtype = next(n for n, t in DTYPES.items() if t == value.dtype)
                sizes = "".join(f", {s}" for s in value.shape)
                inputs.append(Input(name, f"normal({dtype!r}{sizes})"))
        made = {n.name for n in inputs} | {t for s in rest for t in s.targets}
        results = tuple(n for n in program.results if n in made and n not in statement.targets)
        yield replace(program, inputs=tuple(inputs), statements=rest, results=results or program.results)
    for i in range(len(program.statements) - 1):
        if program.statements[i].targets:
            yield replace(
                program, statements=program.statements[: i + 1], results=program.statements[i].targets
            )


def _plainer_inputs(program: Program) -> Iterator[Program]:
    """Contiguous ones."""
    for i, made in enumerate(program.inputs):
        match = re.match(r"normal\('(\w+)'[^)]*\)(.+)", made.text)
        if match:
            sizes = "".join(f", {s}" for s in program.argument(made).shape)
            plain = Input(made.name, f"normal({match[1]!r}{sizes})")
            yield replace(program, inputs=(*program.inputs[:i], plain, *program.inputs[i + 1 :]))


def _fewer_types(program: Program) -> Iterator[Program]:
    for dtype in ("bf16", "f16", "f64"):
        yield from _replaced(program, rf"\b{dtype}\b", "f32")


def _smaller_sizes(program: Program) -> Iterator[Program]:
    """With another number instead of one, everywhere."""
    text = " ".join([*(i.text for i in program.inputs), *(s.text for s in program.statements)])
    numbers = sorted({int(n) for n in re.findall(r"(?<![\w.])\d+(?![\w.])", text)}, reverse=True)
    for number in numbers:
        for other in sorted({1, 2, 3, number // 2, number - 1}):
            if 0 < other < number:
                yield from _replaced(program, rf"(?<![\w.]){number}(?![\w.])", str(other))


def _replaced(program: Program, pattern: str, other: str) -> Iterator[Program]:
    inputs = tuple(replace(i, text=re.sub(pattern, other, i.text)) for i in program.inputs)
    statements = tuple(replace(s, text=re.sub(pattern, other, s.text)) for s in program.statements)
    if (inputs, statements) != (program.inputs, program.statements):
        yield replace(program, inputs=inputs, statements=statements)
