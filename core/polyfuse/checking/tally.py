"""What was checked in this process: for `polyfuse check`, which reports it, and for tests."""

from __future__ import annotations

import threading
from dataclasses import dataclass

__all__ = ["Finding", "Tally", "begin", "checked", "forgets", "found", "result", "seen", "skip"]


@dataclass(frozen=True)
class Finding:
    """A kernel that differs from the interpreter.

    Attributes:
        kernel, backend, config: what it is.
        operators: that it was made of.
        source: the first line of the model that it computes.
        problem: how it differs: the element that is farthest off.
        repro: file that `polyfuse replay` runs; empty if it could not be written.
    """

    kernel: str
    backend: str
    config: str
    operators: tuple[str, ...]
    source: str
    problem: str
    repro: str

    def __str__(self) -> str:
        config = f" ({self.config})" if self.config else ""
        where = f" at {self.source}" if self.source else ""
        repro = f"; run `polyfuse replay {self.repro}` to see it" if self.repro else ""
        return (
            f"kernel {self.kernel} of backend {self.backend!r}{config}, made of"
            f" {', '.join(self.operators) or 'no operator'}{where}, differs from the interpreter:"
            f" {self.problem}{repro}"
        )


@dataclass
class Tally:
    """Counts of one process.

    Attributes:
        kernels: keys of kernels that were checked, with the kinds of their launches.
        launches: how many launches were checked.
        skipped: kernels that could not be, by name, with the reason.
        findings: those that differ, in the order in which they were met.
    """

    kernels: dict[str, set[str]]
    launches: int
    skipped: dict[str, str]
    findings: list[Finding]


_LOCK = threading.Lock()
_TALLY = Tally({}, 0, {}, [])
_FORGETS = [False]


def begin(*, forget: bool) -> None:
    """Count from zero; `forget`: as if no earlier process had checked anything."""
    with _LOCK:
        _TALLY.kernels, _TALLY.launches, _TALLY.skipped, _TALLY.findings = {}, 0, {}, []
        _FORGETS[0] = forget


def forgets() -> bool:
    """Whether what earlier processes found is of no account."""
    return _FORGETS[0]


def seen(key: str, variant: str) -> bool:
    """Whether a kernel was checked in this process with a launch of that kind."""
    with _LOCK:
        return variant in _TALLY.kernels.get(key, ())


def checked(key: str, variant: str) -> None:
    """Count a launch."""
    with _LOCK:
        _TALLY.kernels.setdefault(key, set()).add(variant)
        _TALLY.launches += 1


def skip(name: str, reason: str) -> None:
    """Note that a launch could not be checked."""
    with _LOCK:
        _TALLY.skipped.setdefault(name, reason)


def found(finding: Finding) -> None:
    """Note a kernel that differs."""
    with _LOCK:
        _TALLY.findings.append(finding)


def result() -> Tally:
    """What was counted so far."""
    with _LOCK:
        return Tally(
            {key: set(kinds) for key, kinds in _TALLY.kernels.items()},
            _TALLY.launches,
            dict(_TALLY.skipped),
            list(_TALLY.findings),
        )
