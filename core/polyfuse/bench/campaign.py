"""All engines at all sizes: compiled with empty and with warm caches, checked, then timed in turn."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from polyfuse.base.errors import PolyfuseError
from polyfuse.bench.engine import EAGER, Engine
from polyfuse.bench.machine import Machine, this_machine
from polyfuse.bench.process import ChildError, ChildProcess
from polyfuse.bench.statistics import Latency, Ratio, latency, speed_up

_TURN = 0.05
"""Seconds of a turn: long enough for a steady median, so short that all engines meet the same noise."""
_FEWEST_TURNS, _MOST_TURNS = 5, 40
_MOST_CALLS = 1000
_LEAST_WAIT = 30.0
"""Seconds that eager mode's process may take for a step, however little of the budget is left."""
_LEAST_STEP = 5.0
"""The same of any other process: what began is not ended for a moment's sake."""


@dataclass(frozen=True)
class Plan:
    """What to measure.

    Attributes:
        subject, arguments: as `load_subject` takes them.
        engines: in the order of the table; eager mode is added where it is missing.
        sizes: the points of the sweep.
        device, training, dynamic: as `Child.load` takes them.
        budget: seconds for all of it; 0: no limit.
    """

    subject: str
    arguments: tuple[str, ...]
    engines: tuple[Engine, ...]
    sizes: tuple[Mapping[str, int], ...]
    device: str = ""
    training: bool = False
    dynamic: bool | None = None
    budget: float = 0.0


@dataclass(frozen=True)
class NotRun:
    """Something that was not measured, and why."""

    what: str
    why: str


@dataclass
class Measured:
    """One engine at one point.

    Attributes:
        engine: its name.
        cold, warm: seconds of the first call with empty caches, and in a later process; None: not measured.
        latency: of calls; None where it failed, for which `failed` is the reason.
        speed_up: over eager mode; None for eager mode itself.
        memory, memory_of: bytes at the peak of a call, and what they count.
        check: as `Child.check` answers.
    """

    engine: str
    cold: float | None = None
    warm: float | None = None
    latency: Latency | None = None
    speed_up: Ratio | None = None
    memory: int = 0
    memory_of: str = ""
    check: Mapping[str, Any] = field(default_factory=dict)
    failed: str = ""


@dataclass
class Point:
    """All engines at one point of the sweep."""

    sizes: Mapping[str, int]
    about: str = ""
    device: str = ""
    engines: list[Measured] = field(default_factory=list)


@dataclass
class Results:
    """What a campaign measured.

    Attributes:
        not_run: what was not measured, and why.
        warnings: why times may be doubted.
        seconds: that all of it took.
    """

    plan: Plan
    machine: Machine
    points: list[Point] = field(default_factory=list)
    not_run: list[NotRun] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    seconds: float = 0.0


def run_campaign(plan: Plan, tell: Callable[[str], None] = lambda _: None) -> Results:
    """Measure everything, as far as the budget allows.

    Args:
        tell: called with a line of progress, for people who wait.

    Raises:
        PolyfuseError: the subject does not run in eager mode.
    """
    if not any(engine.name == EAGER for engine in plan.engines):
        plan = replace(plan, engines=(Engine(EAGER), *plan.engines))
    machine = this_machine()
    results = Results(plan, machine, warnings=machine.warnings())
    began = time.monotonic()
    until = began + plan.budget if plan.budget else math.inf
    for number, sizes in enumerate(plan.sizes):
        title = _title(sizes)
        if time.monotonic() > until:
            results.not_run.append(NotRun(title, "the budget was used up"))
            continue
        # later points get what earlier ones left
        share = (until - time.monotonic()) / (len(plan.sizes) - number)
        runner = _PointRunner(results, sizes, time.monotonic() + share, tell)
        results.points.append(runner.run())
    results.seconds = time.monotonic() - began
    return results


def _title(sizes: Mapping[str, int]) -> str:
    return " ".join(f"{name}={value}" for name, value in sizes.items()) + ": " * bool(sizes)


class _PointRunner:
    """One point of the sweep: its processes live until it is done."""

    def __init__(
        self, results: Results, sizes: Mapping[str, int], until: float, tell: Callable[[str], None]
    ) -> None:
        self._results, self._plan = results, results.plan
        self._point = Point(sizes)
        self._until, self._print = until, tell
        self._children: dict[str, ChildProcess] = {}
        self._turns: dict[str, list[list[float]]] = {}
        self._longest = 0.0

    def run(self) -> Point:
        """Measure."""
        with ExitStack() as stack, tempfile.TemporaryDirectory(prefix="polyfuse-bench-") as folder:
            for engine in self._plan.engines:
                measured = Measured(engine.name)
                self._point.engines.append(measured)
                if engine.name != EAGER and self._left() < max(0.3 * self._share(), 2 * self._longest):
                    measured.failed = "the budget was used up before its turn"
                    continue
                began = time.monotonic()
                try:
                    self._prepare(engine, measured, Path(folder) / str(len(self._point.engines)), stack)
                except ChildError as error:
                    measured.failed = str(error)
                    if engine.name == EAGER:
                        raise PolyfuseError(f"it does not run in eager mode: {error}") from error
                # another engine takes as long, and has two processes where eager mode has one; its turns, and
                # those of the others, take about as long again
                taken = (time.monotonic() - began) * (2 if engine.name == EAGER else 1)
                self._longest = max(self._longest, taken)
            self._take_turns()
            self._finish()
        for item in self._point.engines:
            if item.failed:
                self._results.not_run.append(NotRun(_title(self._point.sizes) + item.engine, item.failed))
        return self._point

    def _tell(self, text: str) -> None:
        self._print(_title(self._point.sizes) + text)

    def _share(self) -> float:
        return self._plan.budget / len(self._plan.sizes) if self._plan.budget else 0.0

    def _left(self) -> float:
        return self._until - time.monotonic()

    def _timeout(self, name: str) -> float:
        """How long a step of an engine may take. Eager mode's must end: all else is compared with it."""
        return max(_LEAST_WAIT if name == EAGER else _LEAST_STEP, min(self._left(), 3600.0))

    def _prepare(self, engine: Engine, measured: Measured, folder: Path, stack: ExitStack) -> None:
        """Compile cold in one process and warm in another, which is checked and stays."""
        if engine.name != EAGER:
            self._tell(f"{engine.name}: compiling with empty caches")
            with ChildProcess(engine, folder) as child:
                self._load(engine.name, child)
                measured.cold = child.ask("compile", self._timeout(engine.name))["seconds"]
            self._tell(f"{engine.name}: compiling with warm caches")
        child = stack.enter_context(ChildProcess(engine, folder))
        loaded = self._load(engine.name, child)
        self._point.about, self._point.device = loaded["about"], loaded["device"]
        for text in loaded["left_out"]:
            note = NotRun(*text.split(": ", 1))
            if note not in self._results.not_run:
                self._results.not_run.append(note)
        warm = child.ask("compile", self._timeout(engine.name))["seconds"]
        if engine.name != EAGER:
            measured.warm = warm
            measured.check = child.ask("check", self._timeout(engine.name))
        self._children[engine.name] = child

    def _load(self, name: str, child: ChildProcess) -> dict[str, Any]:
        plan = self._plan
        return child.ask(
            "load",
            self._timeout(name),
            subject=plan.subject,
            arguments=list(plan.arguments),
            sizes=dict(self._point.sizes),
            device=plan.device,
            training=plan.training,
            dynamic=plan.dynamic,
        )

    def _take_turns(self) -> None:
        """Warm up, then give each engine a turn after the other, as far as the budget goes."""
        calls: dict[str, int] = {}
        for name, child in list(self._children.items()):
            taken = self._ask(name, child, 3)
            if taken:
                calls[name] = max(1, min(_MOST_CALLS, round(_TURN / max(min(taken), 1e-7))))
                self._ask(name, child, calls[name])
        self._turns = {name: [] for name in calls}
        for turn in range(_MOST_TURNS):
            # on a busy machine five turns may take as long as all before them
            if self._left() < (0 if turn >= _FEWEST_TURNS else -0.2 * self._share()) and turn:
                break
            self._tell(f"timing, turn {turn + 1} of at most {_MOST_TURNS}")
            # each engine follows each other one equally often
            names = [name for name in calls if name in self._children]
            for name in names if turn % 2 == 0 else reversed(names):
                taken = self._ask(name, self._children[name], calls[name])
                if taken:
                    self._turns[name].append(taken)

    def _ask(self, name: str, child: ChildProcess, calls: int) -> list[float]:
        try:
            taken: list[float] = child.ask("run", self._timeout(name), calls=calls)["seconds"]
        except ChildError as error:
            self._of(name).failed = str(error)
            del self._children[name]
            return []
        return taken

    def _of(self, name: str) -> Measured:
        return next(item for item in self._point.engines if item.engine == name)

    def _finish(self) -> None:
        """The statistics, and the peak of memory."""
        for name, turns in self._turns.items():
            measured = self._of(name)
            if not turns or measured.failed:
                continue
            measured.latency = latency(turns)
            try:
                found = self._children[name].ask("memory", self._timeout(name))
                measured.memory, measured.memory_of = found["bytes"], found["what"]
            except ChildError as error:
                measured.failed = str(error)
        eager = self._of(EAGER).latency
        for item in self._point.engines:
            if eager is not None and item.latency is not None and item.engine != EAGER:
                item.speed_up = speed_up(eager.turns, item.latency.turns)
        if eager is not None:
            self._doubt(eager)

    def _doubt(self, eager: Latency) -> None:
        """Say where eager mode's own times differ from turn to turn."""
        half = len(eager.turns) // 2
        if half < 2:
            return
        first, second = sorted(eager.turns[:half]), sorted(eager.turns[half:])
        drift = second[len(second) // 2] / first[half // 2]
        if eager.spread > 0.1 or not 0.9 < drift < 1.1:
            self._results.warnings.append(
                f"{_title(self._point.sizes)}eager mode's own times spread by {eager.spread:.0%} and drifted "
                f"by {drift - 1:+.0%}: differences of that size mean nothing"
            )
