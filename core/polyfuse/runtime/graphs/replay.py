"""Recording a compiled program's work once and launching it as one from then on.

The first call with new sizes runs as it is: kernels are loaded, libraries choose their algorithms. The
second is recorded; what follows are replays, as long as a recording fits: the tensors that it reads where
they are, are there, and nobody holds what it would overwrite (`graph_memory`). Where none fits another one
is made, up to a limit, or the call runs as it is, which is always right.

Results belong to the caller. One that is still held when the program runs again is handed out as a copy for
as long as such copies are needed, unless `torch.compiler.cudagraph_mark_step_begin` said that results of
earlier steps are no longer needed.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from polyfuse.base.log import get_logger, warn_once
from polyfuse.runtime.devices.graphs import allocations_of
from polyfuse.runtime.graphs.copied import CopiedResults
from polyfuse.runtime.graphs.guided import Text, watch
from polyfuse.runtime.graphs.inputs import GraphFacts, plan_inputs
from polyfuse.runtime.graphs.memory import GraphMemory, Recorded, Slot, graph_memory
from polyfuse.runtime.graphs.recording import Recording, make_recording
from polyfuse.runtime.graphs.status import GraphStatus
from polyfuse.runtime.provisional import is_out_of_memory

if TYPE_CHECKING:
    from polyfuse.runtime.devices.graphs import Program
    from polyfuse.runtime.graphs.addresses import Run

__all__ = ["GraphFacts", "recorded_program"]

INSTANCES = 4
"""Most recordings for the same sizes: for inputs at other addresses, or results still needed."""

WORTH = 16
"""Replays after which making a recording has paid."""

PATIENCE = 3
"""Calls that run as they are, in the hope that a caller lets go of what it got before it gets copies."""

TRIES = 3
"""Recordings that may end for want of memory before no further one is tried."""

_MOMENTS, _MOMENT = 10, 5e-5
"""How often it is looked again whether something is still held, and after how many seconds each time."""

_log = get_logger("runtime")


def recorded_program(
    program: Program,
    facts: GraphFacts,
    sizes: Sequence[int],
    generators: Sequence[torch.Generator],
    name: str,
    status: GraphStatus,
    fallback: Callable[[], Program] | None = None,
    text: Text | None = None,
) -> Program:
    """`program`, recorded and replayed where that is possible.

    Args:
        sizes: positions of the inputs that are numbers.
        generators: random number generators that the program was given.
        name: of the program, for messages.
        status: records what happens.
        fallback: makes what is called once recording the program has failed: the same, in partitions.
        text: of the program; None: nobody knows how it allocates.
    """
    memory = None
    if not facts.refused:
        memory = graph_memory(facts.device)
    if memory is None:
        status.refused = facts.refused or f"the work of {facts.device} cannot be recorded"
        _log.info("%s is %s", name, status.text())
        return program
    return _Runner(program, facts, tuple(sizes), tuple(generators), name, status, memory, fallback, text)


@dataclass(eq=False)
class _Runner:
    """Chooses for each call: replay, record, or run as it is. `copied` are results that callers keep."""

    program: Program
    facts: GraphFacts
    sizes: tuple[int, ...]
    generators: tuple[torch.Generator, ...]
    name: str
    status: GraphStatus
    memory: GraphMemory
    fallback: Callable[[], Program] | None
    text: Text | None = None
    runs: dict[tuple[int, ...], Run] = field(default_factory=dict)
    variants: dict[tuple[int, ...], list[Recording]] = field(default_factory=dict)
    copied: CopiedResults = field(init=False)
    patience: int = PATIENCE
    tries: int = TRIES
    made: list[Recorded] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.copied = CopiedResults(gradients=bool(self.facts.gradients))
        weakref.finalize(self, self.memory.retire, self.made)

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        memory = self.memory
        with memory.lock:
            if self.status.refused or memory.device.is_recording():
                return self._plain(args, "")
            key = tuple(args[i] for i in self.sizes)
            recordings = self.variants.get(key)
            if recordings is None:
                return self._first(key, args)
            memory.begin()
            fitting, blocking, saved = self._choose(recordings, args)
            for _ in range(_MOMENTS):
                if fitting is not None or not (blocking or (saved and len(recordings) < INSTANCES)):
                    break
                # a thread of autograd's that has handed over what it computed may be about to let go of it
                time.sleep(_MOMENT)
                fitting, blocking, saved = self._choose(recordings, args)
            if fitting is not None:
                return self._replay(fitting, args)
            if blocking and self._wait_for(blocking):
                reason = "a caller held results that it would overwrite, and gets copies"
                return self._plain(args, reason)
            return self._record(key, args)

    def _choose(
        self, recordings: Sequence[Recording], args: list[Any]
    ) -> tuple[Recording | None, list[tuple[Recorded, Slot]], bool]:
        """A recording that can be replayed now. Or else what is in the way of those that fit: results that
        callers hold, and whether a backward is yet to read something.
        """
        blocking: list[tuple[Recorded, Slot]] = []
        saved = False
        for recording in recordings:
            if recording.fits(args):
                blockers = self.memory.blockers(recording)
                if not blockers:
                    return recording, [], False
                if any(slot.saved for _, slot in blockers):
                    saved = True
                else:
                    blocking.extend(blockers)
        return None, blocking, saved

    def _wait_for(self, blocking: Sequence[tuple[Recorded, Slot]]) -> bool:
        """Whether what callers hold is likely to be let go of: from now on they get copies, so that only what
        they have already is in the way.
        """
        news = [r.owner.held(slot.positions, slot.added) for r, slot in blocking if r.owner is not None]
        self.patience = PATIENCE if any(news) else self.patience - 1
        return self.patience > 0

    def _first(self, key: tuple[int, ...], args: list[Any]) -> Sequence[Any]:
        """A call with sizes not seen before."""
        if self.facts.objects:
            self.status.refused = self.facts.unrecordable(args)
        if len(self.variants) < self.facts.limit:
            self.variants[key] = []
            return self._plain(args, "") if self.status.refused else self._watch(key, args)
        warn_once(
            "runtime",
            f"{self.name} was called with more than {self.facts.limit} different sizes; further ones are not"
            " recorded: raise the option max_device_graphs, or pad inputs to fewer sizes",
            key=f"sizes of {self.name}",
        )
        return self._plain(args, "its sizes are beyond the limit on recordings")

    def _watch(self, key: tuple[int, ...], args: list[Any]) -> Sequence[Any]:
        """Run the program as it is, and see what it allocates."""
        allocations = allocations_of(self.memory.device)
        if allocations is None or self.text is None:
            return self._plain(args, "")
        self.status.plain += 1
        # what a recording may use once the program has let go of it
        positions = [i for i in self.facts.varying if i not in self.facts.mutated]
        results, run = watch(self.program, args, self.text, positions, allocations, self.memory.makers)
        if run is not None:
            self.runs[key] = run
        return results

    def _plain(self, args: list[Any], reason: str) -> Sequence[Any]:
        """Run the program as it is."""
        self.status.plain += 1
        if reason:
            self.status.reason = reason
            _log.debug("%s runs without a recording: %s", self.name, reason)
        return self.program(args)

    def _replay(self, recording: Recording, args: list[Any]) -> Sequence[Any]:
        self.memory.overwriting(recording)
        for slot in recording.lent:
            self.copied.overwritten(slot.positions, slot.nbytes, slot.copy_needed)
        results = recording.replay(args, self.copied)
        self.status.replays += 1
        if recording.slots:
            self.memory.handed_out(recording)
        return results

    def _record(self, key: tuple[int, ...], args: list[Any]) -> Sequence[Any]:
        recordings = self.variants[key]
        again = self._misfit(recordings, args)
        if len(recordings) >= INSTANCES:
            self._drop_one(recordings, args)
        if len(recordings) >= INSTANCES:
            reason = f"{INSTANCES} recordings for its sizes did not fit: {again}"
            warn_once(
                "runtime", f"{self.name} runs without a recording: {reason}", key=f"instances of {self.name}"
            )
            return self._plain(args, reason)
        memory = self.memory
        brief = [r.plan for r in recordings if r.replays < WORTH]
        plan = plan_inputs(self.facts, args, memory, [r.plan for r in recordings], brief)
        if plan.refused:
            return self._plain(args, plan.refused)
        try:
            recording = make_recording(
                self.program,
                self.facts,
                memory,
                args,
                plan,
                self.generators,
                self.copied,
                self.text,
                self.runs.get(key),
            )
        except Exception as error:
            self.tries -= is_out_of_memory(error)
            if is_out_of_memory(error) and self.tries > 0:
                # the program needs less: what it used is there for it again, and a recording has its own
                return self._plain(args, "there was no memory for a recording")
            return self._give_up(args, error)
        recordings.append(recording)
        self.made.append(recording)
        self.status.recordings += 1
        if again:
            self.status.again = again
            _log.debug("%s is recorded anew: %s", self.name, again)
        return self._replay(recording, args)

    def _misfit(self, recordings: Sequence[Recording], args: list[Any]) -> str:
        """Why none of them fits, in words: why the latest does not. Empty if there is none."""
        if not recordings:
            return ""
        last = recordings[-1]
        found = last.misfit(args, self.facts)
        if found:
            return found
        saved = any(slot.saved for _, slot in self.memory.blockers(last))
        return (
            "the backward passes of earlier calls are yet to come"
            if saved
            else "callers hold results of earlier calls"
        )

    def _drop_one(self, recordings: list[Recording], args: list[Any]) -> None:
        """Forget a recording that served for a while, and whose inputs have moved since."""
        for recording in recordings:
            if recording.replays >= WORTH and not recording.fits(args):
                recordings.remove(recording)
                self.made.remove(recording)
                self.memory.retire([recording])
                return

    def _give_up(self, args: list[Any], error: Exception) -> Sequence[Any]:
        """The program does something that cannot be recorded. What was recorded of it stays unused."""
        words = str(error).strip().splitlines()
        reason = f"recording failed with {type(error).__name__}: {words[0] if words else ''}"
        self.status.refused = reason
        how = "runs without a recording" if self.fallback is None else "is recorded in partitions"
        warn_once("runtime", f"{self.name} {how}: {reason}", key=f"failure of {self.name}")
        _log.debug("recording %s failed", self.name, exc_info=error)
        if self.fallback is not None:
            self.program, self.fallback = self.fallback(), None
        return self.program(args)
