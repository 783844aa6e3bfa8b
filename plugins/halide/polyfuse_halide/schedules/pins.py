"""Schedules written down: a line for each kernel, as `polyfuse explain` prints it and as the option
`halide.pins` reads it back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from polyfuse.base.errors import BackendUnavailableError, UnsupportedError
from polyfuse.ir.digest import ir_digest
from polyfuse.ir.kernel import Kernel
from polyfuse_halide.codegen.device_plan import DevicePlan
from polyfuse_halide.schedules.plan import Plan

_CHOICES = {Plan: ("lanes", "unroll", "fuse", "group", "chunk"), DevicePlan: ("lanes", "points", "each")}
"""What a line may say of each kind of schedule; the rest follows from the kernel."""
_POWERS = ("lanes", "each")
_MOST_THREADS = 1024

Chosen = TypeVar("Chosen", Plan, DevicePlan)

Pins = Mapping[str, Mapping[str, int]]
"""Choices by the kernel that they are for."""


def pin_of(kernel: Kernel) -> str:
    """What stands for a kernel in a line: the same for equal kernels, whatever their names."""
    return ir_digest(replace(kernel, name="kernel"))[:12]


def words(kernel: Kernel, plan: Plan | DevicePlan) -> str:
    """The line of a kernel."""
    values = " ".join(f"{name}={int(getattr(plan, name))}" for name in _CHOICES[type(plan)])
    return f"schedule {pin_of(kernel)} {values}"


@lru_cache(maxsize=16)
def read_pins(path: str) -> Pins:
    """The lines of a file; none where the path is empty. Other words and comments around them may stay.

    Raises:
        BackendUnavailableError: the file cannot be read, or a line of it.
    """
    if not path:
        return {}
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise BackendUnavailableError(
            f"the file {path} of the option halide.pins cannot be read ({error})", "name a file that exists"
        ) from error
    found: dict[str, Mapping[str, int]] = {}
    for line in lines:
        parts = line.split("#")[0].split()
        if parts[:1] == ["schedule"] and len(parts) > 2:
            pairs = [word.partition("=") for word in parts[2:]]
            if not all(value.isdigit() for _, _, value in pairs):
                raise BackendUnavailableError(
                    f"the file {path} of the option halide.pins has the line {line.strip()!r}",
                    "write `schedule`, the kernel and choices such as lanes=8",
                )
            found[parts[1]] = {name: int(value) for name, _, value in pairs}
    return found


def pinned(kernel: Kernel, plan: Chosen, pins: Pins) -> Chosen:
    """The schedule of a kernel as the pins want it, or as it is where they say nothing.

    Raises:
        UnsupportedError: the kernel cannot be computed so.
    """
    values = dict(pins.get(pin_of(kernel), {})) if pins else {}
    if not values:
        return plan
    names = _CHOICES[type(plan)]
    for name, value in values.items():
        power = value > 0 and value & (value - 1) == 0
        if name not in names or (name in _POWERS and not power) or value > 1 << 30:
            raise UnsupportedError(
                f"the pinned schedule of kernel {kernel.name} says {name}={value}",
                f"names are {', '.join(names)}, and {' and '.join(_POWERS)} are powers of two",
            )
    if isinstance(plan, Plan):
        values["fuse"] = min(values.get("fuse", plan.fuse), max(len(kernel.axes), 1))
        values["group"] = max(values.get("group", plan.group), 1)
        values["unroll"] = max(values.get("unroll", plan.unroll), 1)
        return replace(plan, **values)  # type: ignore[arg-type]
    made = plan.changed(values)
    if not 1 <= made.lanes * made.points <= _MOST_THREADS or made.points < 1:
        raise UnsupportedError(
            f"the pinned schedule of kernel {kernel.name} has blocks of {made.lanes * made.points} threads",
            f"let lanes times points be at most {_MOST_THREADS}",
        )
    return made
