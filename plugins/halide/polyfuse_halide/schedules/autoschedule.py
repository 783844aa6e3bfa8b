"""Asking Halide's automatic schedulers, and looking at what they decided. Runs in a build worker.

They let the last step of a loop begin earlier where it would leave the loop, which reads and writes outside
of buffers that are smaller than a step. So Halide says which elements are touched, and a schedule that
touches others than there are is refused, as is one that computes points twice where that is not allowed.
"""

from __future__ import annotations

import os
import re
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyfuse.base.errors import UnsupportedError

if TYPE_CHECKING:
    from polyfuse_halide.library import AutomaticProgram

SECONDS = 60.0
"""How long a scheduler and Halide may take over a kernel."""
_FIX = "leave out the option halide.autoscheduler"
_REFUSED = 3
"""The exit status of a process that refuses."""

_TOUCHED = re.compile(
    r'halide_error_access_out_of_bounds\("(?:In|Out)put buffer ([\w.$]+)", (\d+), (-?\d+), (-?\d+),'
)
_SPLIT = re.compile(r"\.split\((\w+), ?(\w+), ?(\w+), ?(\d+)")
_FUSE = re.compile(r"\.fuse\((\w+), ?(\w+), ?(\w+)\)")
_STEPS = re.compile(r"\.(?:vectorize|unroll|parallel)\((\w+), ?(\d+)")


def apart(work: Callable[[], None], seconds: float) -> None:
    """Do something in a copy of this process, which may crash, and is ended after some time.

    Raises:
        UnsupportedError: it was raised there.
        TimeoutError, RuntimeError: it took too long, or anything else was wrong.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, seconds)
            work()
            status = 0
        except UnsupportedError as error:
            os.write(writing, error.cause.encode()[:4096])
            status = _REFUSED
        except BaseException as error:
            os.write(writing, f"{type(error).__name__}: {error}".encode()[:4096])
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        words = pipe.read().decode("utf-8", "replace")
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code == _REFUSED:
        raise UnsupportedError(words, _FIX)
    if code == -signal.SIGALRM:
        raise TimeoutError(f"the automatic scheduler took longer than {seconds:.0f} seconds")
    if code:
        raise RuntimeError(words or f"the automatic scheduler died of signal {-code}")


def autoschedule(program: AutomaticProgram, pipeline: Any, arguments: Sequence[Any], target: str) -> None:
    """Let the program's scheduler schedule a pipeline, and look at the outcome.

    Raises:
        UnsupportedError: it computes points twice of which results lie over what is read.
    """
    import halide as hl

    _load(program.scheduler)
    wanted = hl.AutoschedulerParams(program.scheduler, {"parallelism": str(program.parallelism)})
    decided = pipeline.apply_autoscheduler(hl.Target(target), wanted).schedule_source
    if program.once:
        for name, extents in program.results.items():
            reason = uneven(decided, name, extents)
            if reason:
                raise UnsupportedError(
                    f"{reason}, so points are computed twice, but results may lie over what is read", _FIX
                )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "loops.stmt"
        features = target.replace("-no_asserts", "")
        pipeline.compile_to({hl.OutputFileType.stmt: str(file)}, arguments, "kernel", hl.Target(features))
        check_touched(file.read_text(encoding="utf-8"), program.limits)


@cache
def _load(scheduler: str) -> None:
    import halide as hl

    folder = Path(hl.__file__).parent / "lib64"
    hl.load_plugin(str(folder / f"libautoschedule_{scheduler.lower()}.so"))


def check_touched(loops: str, limits: Mapping[str, Sequence[int]]) -> None:
    """Raise UnsupportedError where what Halide says is touched is not known to be within the buffers."""
    found = _TOUCHED.findall(loops)
    if len(found) != loops.count("halide_error_access_out_of_bounds("):
        raise UnsupportedError("it is not known which elements the schedule touches", _FIX)
    for name, dim, low, high in found:
        extent = limits[name][int(dim)]
        if int(low) < 0 or int(high) >= extent:
            raise UnsupportedError(
                f"the schedule touches {low} to {high} of {extent} elements of {name}", _FIX
            )
    missing = {(n, d) for n, e in limits.items() for d in range(len(e))} - {
        (n, int(d)) for n, d, _, _ in found
    }
    if missing:
        raise UnsupportedError(
            f"it is not known which elements of {min(missing)[0]} the schedule touches", _FIX
        )


def uneven(schedule: str, func: str, extents: Mapping[str, int]) -> str:
    """Which loop of a stage is divided into steps that do not make up all of it; empty: none.

    `schedule` is what a scheduler prints of itself, C++ code.
    """
    sizes = dict(extents)
    name = re.escape(func).replace(r"\$", "[$_]")
    blocks = re.findall(rf"^\s*{name}(?:\.\w+\(\))?\n((?:\s+\..*\n?)+)", schedule, re.MULTILINE)
    for line in "\n".join(blocks).splitlines():
        found = _SPLIT.search(line)
        if found:
            old, outer, inner, factor = found[1], found[2], found[3], int(found[4])
            if old not in sizes or sizes[old] % factor:
                return f"the loop {old} of {sizes.get(old)} is divided by {factor}"
            sizes[outer], sizes[inner] = sizes[old] // factor, factor
        found = _FUSE.search(line)
        if found:
            sizes[found[3]] = sizes.get(found[1], 1) * sizes.get(found[2], 1)
        found = _STEPS.search(line)
        if found and (found[1] not in sizes or sizes[found[1]] % int(found[2])):
            return f"the loop {found[1]} of {sizes.get(found[1])} is divided by {found[2]}"
    return "" if blocks else f"nothing is said of the stage {func}"
