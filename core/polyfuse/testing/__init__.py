"""The conformance kit: what shows that a backend computes what the representation means. Tests of a plugin
use these names; a plugin itself only `polyfuse.plugin`.

`run` runs the kit; `polyfuse conformance NAME` prints its result, and `conformance_tests` turns each of its
cases into a test. `check_device` tries what a `Device` promises. `polyfuse.testing.lying` is a backend with a
planted defect, to see that tests would find it: `planted` puts one into a backend, `caught_by_kit` says which
cell of the kit fails, and `lying_installed` makes it a plugin of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from polyfuse.base.lazy import attribute

if TYPE_CHECKING:
    from polyfuse.testing.conformance import run as run
    from polyfuse.testing.device_checks import check_device as check_device
    from polyfuse.testing.lying.installed import installed as lying_installed
    from polyfuse.testing.lying.installed import planted as planted
    from polyfuse.testing.lying.trial import caught_by_kit as caught_by_kit
    from polyfuse.testing.pytest_plugin import conformance_tests as conformance_tests

__all__ = [
    "caught_by_kit",
    "check_device",
    "conformance_tests",
    "lying_installed",
    "planted",
    "run",
]

# The kit imports much, and one of these pytest.
_IMPORT_PATHS = {
    "caught_by_kit": "polyfuse.testing.lying.trial:caught_by_kit",
    "check_device": "polyfuse.testing.device_checks:check_device",
    "conformance_tests": "polyfuse.testing.pytest_plugin:conformance_tests",
    "lying_installed": "polyfuse.testing.lying.installed:installed",
    "planted": "polyfuse.testing.lying.installed:planted",
    "run": "polyfuse.testing.conformance:run",
}


def __getattr__(name: str) -> object:
    return attribute(__name__, _IMPORT_PATHS, name)
