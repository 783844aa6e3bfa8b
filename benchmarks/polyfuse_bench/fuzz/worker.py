"""A process of the search: it gets seeds, a line at a time, and says what it does before it does it, so that
after a crash it is known whose it was.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from polyfuse_bench.devices import waiter
from polyfuse_bench.fuzz.building import Sessions
from polyfuse_bench.fuzz.trial import (
    BANNED,
    RAISED,
    Prepared,
    Trial,
    fault_of,
    is_banned,
    is_wrong_before,
    outcome,
    prepare,
    raised,
    trial_of,
    with_configs,
)

__all__ = ["INTERPRETED", "faults", "main", "outcome_by", "sessions_for"]

INTERPRETED = "interpreted"
"""The name under which Triton's interpreter is offered as a backend."""

_LOST = 86
"""The status of a process whose device works no more."""

_WITH_INTERPRETER = 16
"""One in so many programs is also interpreted: the compiler's own interpreter is to be right too."""

_TESTS = Path(__file__).resolve().parents[3] / "tests"


def sessions_for(backend: str) -> Sessions:
    """Sessions of one backend alone. Its name is that of a plugin, or `INTERPRETED`."""
    if backend == INTERPRETED:
        sys.path.append(str(_TESTS))
        import triton_interpreted

        triton_interpreted.offer()
    return Sessions(backend)


class Worker:
    """Handles seeds, many at a time."""

    def __init__(self, backend: str, device: str, log: Any) -> None:
        self.backend, self.device = backend, device
        self.sessions = sessions_for(backend)
        self.interpreter = Sessions("interpreter")
        self._log = log

    def say(self, **facts: Any) -> None:
        """A line for the parent."""
        self._log.write(json.dumps(facts) + "\n")
        self._log.flush()

    def handle(self, seeds: Sequence[int]) -> None:
        """Compile all, build their kernels together, then run them one by one."""
        ready: list[tuple[int, Prepared]] = []
        self.sessions.pool.kernels.clear()
        for seed in seeds:
            self.say(at=seed, phase="compile")
            trial = trial_of(seed, self.backend, self.device)
            try:
                ready.append((seed, prepare(trial, self.sessions)))
            except Exception as error:
                self._report(seed, trial, BANNED if is_banned(trial, error) else raised(error))
        self.say(at=None, phase="build")
        self.sessions.pool.flush()
        for seed, prepared in ready:
            self.say(at=seed, phase="run")
            try:
                found = fault_of(prepared, self.sessions)
                if found and is_wrong_before(prepared):
                    found = BANNED
            except Exception as error:
                found = BANNED if is_banned(prepared.trial, error) else raised(error)
            trial = with_configs(prepared.trial, prepared.choice)
            self._report(seed, trial, found)
            if found and _is_lost(self.device):
                # an ordinary exit would wait for the device
                os._exit(_LOST)
            if not found and seed % _WITH_INTERPRETER == 0:
                self.say(at=seed, phase="interpret")
                found = outcome(trial, self.interpreter)
                if found:
                    self.say(seed=seed, outcome=found, backend="interpreter")
        self.sessions.pool.forget()
        kernels = self.sessions.pool.kernels.get(self.backend, 0)
        self.say(done=list(seeds), kernels=kernels, cpu=_cpu_seconds())

    def _report(self, seed: int, trial: Trial, found: str) -> None:
        facts: dict[str, Any] = {"seed": seed, "outcome": found, "route": trial.route}
        facts["configs"] = sum(c is not None for c in trial.configs)
        if found:
            facts["options"] = dict(trial.options)
            facts["interpreter"] = (
                "" if found.startswith((RAISED, BANNED)) else outcome(trial, self.interpreter)
            )
        self.say(**facts)


def _is_lost(device: str) -> bool:
    """Whether a device works no more, as after an illegal access of a kernel."""
    try:
        waiter(device)()
    except Exception:
        return True
    return False


def faults(backend: str, first: int, count: int) -> list[str]:
    """What is wrong with the programs of some seeds, in this process."""
    torch.set_num_threads(1)
    sessions = sessions_for(backend)
    seeds = range(first, first + count)
    ready = {seed: prepare(trial_of(seed, backend, "cpu"), sessions) for seed in seeds}
    sessions.pool.flush()
    found = {seed: fault_of(each, sessions) for seed, each in ready.items()}
    return [f"seed {seed}: {text}" for seed, text in found.items() if text]


def outcome_by(backend: str, trial: Trial) -> str:
    """What is wrong with one program, in this process."""
    torch.set_num_threads(1)
    return outcome(trial, sessions_for(backend))


def _cpu_seconds() -> float:
    """What this process and the compilers that it started have taken so far."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def main() -> None:
    """Read lines of seeds until there are no more."""
    # whatever else prints must not come between the lines for the parent
    log = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    worker = Worker(sys.argv[1], sys.argv[2], log)
    worker.say(ready=True, cpu=_cpu_seconds())
    for line in sys.stdin:
        worker.handle(json.loads(line))


if __name__ == "__main__":
    main()
