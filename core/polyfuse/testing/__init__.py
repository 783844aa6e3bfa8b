"""The conformance kit: what shows that a backend computes what the representation means.

`polyfuse.testing.conformance.run` runs it; `polyfuse conformance NAME` prints its result, and
`polyfuse.testing.pytest_plugin` turns each of its cases into a test. `polyfuse.testing.lying` is a backend
with a planted defect, to see that tests would find it.
"""
