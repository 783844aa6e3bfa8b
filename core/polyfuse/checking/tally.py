"""What was checked in this process, and what was found: for `polyfuse check`, warnings and tests."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyfuse.base.log import get_logger
from polyfuse.ir.kernel import Kernel

if TYPE_CHECKING:
    from polyfuse.checking.launch import CheckResult
    from polyfuse.checking.operands import Layout


_log = get_logger("checking")


@dataclass(frozen=True)
class Subject:
    """A built kernel that is checked.

    Attributes:
        kernel: what it was generated from.
        name: for people.
        backend: who generated it.
        key: under which its agreement is remembered.
        config: in which configuration, as text.
    """

    kernel: Kernel
    name: str
    backend: str
    key: str
    config: str = ""


@dataclass(frozen=True)
class Finding:
    """A kernel that is wrong.

    Attributes:
        kernel, backend, config: what it is.
        operators: that it was made of.
        source: the first line of the model that it computes.
        problem: how it differs: the element that is farthest off.
        repro: file that `polyfuse replay` runs; empty if it could not be written.
        truth: what it differs from.
    """

    kernel: str
    backend: str
    config: str
    operators: tuple[str, ...]
    source: str
    problem: str
    repro: str
    truth: str = "the interpreter"

    def __str__(self) -> str:
        config = f" ({self.config})" if self.config else ""
        where = f" at {self.source}" if self.source else ""
        repro = f"; run `polyfuse replay {self.repro}` to see it" if self.repro else ""
        return (
            f"kernel {self.kernel} of backend {self.backend!r}{config}, made of"
            f" {', '.join(self.operators) or 'no operator'}{where}, differs from {self.truth}:"
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
FORGETS = [False]
"""Of one element, what `forgets` returns: what is generated for each launch reads it without a call."""


def begin(*, forget: bool) -> None:
    """Count from zero; `forget`: as if no earlier process had checked anything."""
    with _LOCK:
        _TALLY.kernels, _TALLY.launches, _TALLY.skipped, _TALLY.findings = {}, 0, {}, []
        FORGETS[0] = forget


def forgets() -> bool:
    """Whether what earlier processes found is of no account."""
    return FORGETS[0]


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


def report_difference(
    subject: Subject,
    result: CheckResult,
    operands: Sequence[Any],
    layout: Layout,
    folder: Path,
    options: dict[str, Any],
) -> Finding:
    """Note a kernel that differs, and write its launch to a file for `polyfuse replay`.

    Args:
        folder: where the file goes.
        options: with which the kernel was generated.
    """
    from polyfuse.checking.repro import write_repro

    kernel = subject.kernel
    path = folder / f"{subject.name}-{subject.backend}-{subject.key[:12]}.pt"
    about = f"{subject.name}: {result.problem}"
    args = kernel, subject.backend, subject.config, options, about, operands, layout
    try:
        repro = str(write_repro(path, *args))
    except Exception as error:
        _log.info("the launch of %s cannot be written to %s: %s", subject.name, path, error)
        repro = ""
    finding = Finding(
        subject.name,
        subject.backend,
        subject.config,
        tuple(dict.fromkeys(o.op for o in kernel.origins)),
        next((o.source for o in kernel.origins if o.source), ""),
        result.problem,
        repro,
    )
    add(finding)
    return finding


def add(finding: Finding) -> None:
    """Note a kernel that is wrong."""
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
