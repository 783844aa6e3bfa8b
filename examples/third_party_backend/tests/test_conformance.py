"""The conformance kit, a test for each of its cells."""

from polyfuse.testing import conformance_tests

test_conformance = conformance_tests("numpy", quick=True)
