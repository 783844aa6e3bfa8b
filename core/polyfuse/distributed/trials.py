"""Ranks on other hosts time candidates while they wait for a graph that one rank compiles.

The rank that compiles sends whole problems, each with all its candidates of a round: times from two machines
are never compared. It alone decides, so that all ranks use the same. Whatever is not answered, it times
itself.
"""

from __future__ import annotations

import pickle
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from polyfuse.base.log import get_logger
from polyfuse.cache import KernelStore
from polyfuse.cache.sealing import seal_of, seals_equal
from polyfuse.cache.sharing import Sharing
from polyfuse.runtime.ranks.claims import Claim

if TYPE_CHECKING:
    from polyfuse.autotune.candidate import BuiltProgram
    from polyfuse.autotune.search import TrialBatch

_log = get_logger("ranks")

_LARGEST: Final = 4 << 20
"""Bytes of a request: the store takes no more than eight mebibytes at once."""

_PAUSE: Final = 0.02

Outcomes = Mapping[str, "float | str"]


def host() -> str:
    """The name of this machine: ranks on one host would disturb each other's trials."""
    return platform.node()


class TrialHelpers:
    """The ranks that wait for what this one compiles, one of each other host.

    Args:
        claim: of this rank, on the graph.
        sharing: by which kernels travel.
        secret: with which requests and answers are sealed.
    """

    def __init__(self, claim: Claim, sharing: Sharing, secret: bytes) -> None:
        self._claim, self._sharing, self._secret = claim, sharing, secret

    def share(
        self, batches: Sequence[TrialBatch], patience: float
    ) -> Mapping[int, Callable[[], Outcomes | None]]:
        """Send a part of some batches away.

        Args:
            patience: seconds within which one batch is surely timed.

        Returns:
            for the numbers of those that were sent, a function that waits for the outcome of each program;
            None: nobody answers.
        """
        helpers = self._helpers()
        if not helpers or len(batches) < 2:
            return {}
        self._sharing.flush()  # the kernels must be there
        sent: dict[int, Callable[[], Outcomes | None]] = {}
        for first, helper in enumerate(helpers, 1):
            # the first share is this rank's own
            numbers = range(first, len(batches), len(helpers) + 1)
            content = pickle.dumps([batches[number] for number in numbers])
            if not numbers or len(content) > _LARGEST:
                continue
            turn = self._claim.ask(helper, sealed(content, self._secret))
            answer = _Answer(self._claim, helper, turn, self._secret, patience * len(numbers))
            for position, number in enumerate(numbers):
                sent[number] = _picked(answer, position)
        return sent

    def _helpers(self) -> list[int]:
        """The numbers of those that have come so far, one of each host but this one's."""
        seen, found = {host()}, list[int]()
        for number, where in self._claim.helpers():
            if where not in seen:
                seen.add(where)
                found.append(number)
        return found


class _Answer:
    """What a helper says to one request."""

    def __init__(self, claim: Claim, helper: int, turn: int, secret: bytes, patience: float) -> None:
        self._claim, self._helper, self._turn, self._secret = claim, helper, turn, secret
        self._until = time.monotonic() + patience
        self._found: Sequence[Outcomes | None] | None = None

    def outcomes(self) -> Sequence[Outcomes | None]:
        """Of each batch; empty where nothing comes."""
        while self._found is None:
            content = self._claim.answer(self._helper, self._turn)
            if content is not None:
                self._found = pickle.loads(opened(content, self._secret))
            elif time.monotonic() > self._until or not self._claim.is_alive(self._helper):
                _log.info("rank %d does not answer, and is not asked again", self._helper)
                self._found = ()
            else:
                time.sleep(_PAUSE)
        return self._found


def _picked(answer: _Answer, position: int) -> Callable[[], Outcomes | None]:
    def outcome() -> Outcomes | None:
        found = answer.outcomes()
        return found[position] if position < len(found) else None

    return outcome


def serve(content: bytes, secret: bytes, store: KernelStore, run: Callable[[TrialBatch], Outcomes]) -> bytes:
    """Time what a request asks for, and return the answer.

    Args:
        run: times a batch; what it raises is an answer of None.
    """
    answers: list[Outcomes | None] = []
    for batch in pickle.loads(opened(content, secret)):
        try:
            programs = tuple(_here(program, store) for program in batch.programs)
            answers.append(dict(run(replace(batch, programs=programs))))
        except Exception as error:
            _log.info("%s is not timed here: %s: %s", batch.problem.about, type(error).__name__, error)
            answers.append(None)
    return sealed(pickle.dumps(answers), secret)


def _here(program: BuiltProgram, store: KernelStore) -> BuiltProgram:
    """A program with its kernels in this rank's folder."""
    from polyfuse.autotune.candidate import KernelStep

    steps = []
    for step in program.steps:
        if isinstance(step, KernelStep):
            unit = Path(step.folder).name
            folder = store.fetch_unit(unit)
            if folder is None:
                raise LookupError(f"the kernels {unit} did not come")
            step = replace(step, folder=str(folder))
        steps.append(step)
    return replace(program, steps=tuple(steps))


def sealed(content: bytes, secret: bytes) -> bytes:
    """Content behind its seal."""
    return seal_of(secret, [("trials", content)]).encode() + b"\n" + content


def opened(content: bytes, secret: bytes) -> bytes:
    """What was sealed.

    Raises:
        ValueError: it was not, with this secret.
    """
    seal, _, rest = content.partition(b"\n")
    if not seals_equal(seal.decode("ascii", "replace"), seal_of(secret, [("trials", rest)])):
        raise ValueError("what another rank sent is damaged")
    return rest
