"""Tables of torch's switches: read together, and set together in another process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from polyfuse.torch_compat.devices.host_switches import attribute, precision_of_matmuls

__all__ = ["SwitchTable", "attribute", "precision_of_matmuls", "read_switches", "write_switches"]

# How a switch is read and how it is set, by a name of ours.
SwitchTable = Mapping[str, tuple[Callable[[], object], Callable[[Any], object]]]


def read_switches(table: SwitchTable) -> dict[str, object]:
    """The values of all switches that can be read now."""
    found: dict[str, object] = {}
    for name, (read, _) in table.items():
        # torch refuses where two of its interfaces were mixed, and some builds lack a library
        with contextlib.suppress(RuntimeError, AttributeError):
            found[name] = read()
    return found


def write_switches(table: SwitchTable, values: Mapping[str, object]) -> None:
    """Set switches where they differ, in the order of the table: a wide one before those that it sets."""
    for name, (read, write) in table.items():
        with contextlib.suppress(RuntimeError, AttributeError):
            if name in values and read() != values[name]:
                write(values[name])
