"""What the process with Triton's interpreter does for `plugins/triton/test_lying.py`."""

from __future__ import annotations

from collections.abc import Sequence

from polyfuse.base.settings import Settings
from polyfuse.testing.conformance import all_cases
from polyfuse.testing.lying import defect
from polyfuse.testing.lying.trial import caught_by_kit
from triton_interpreted import InterpretedTriton


def not_found(names: Sequence[str]) -> list[str]:
    """Defects that the kit does not find in Triton kernels."""
    backend, cases = InterpretedTriton(Settings()), tuple(all_cases(quick=True))
    return [name for name in names if caught_by_kit(backend, defect(name), cases=cases) is None]
