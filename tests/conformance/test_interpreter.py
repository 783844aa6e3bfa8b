"""The interpreter through the whole kit: by itself it shows that the kit and the plugin door work."""

from __future__ import annotations

from polyfuse.testing.pytest_plugin import conformance_tests

test_conformance = conformance_tests("interpreter")
