"""Lowering: from a functional ATen graph to the loop representation."""

from polyfuse.lowering.lower import lower_graph
from polyfuse.lowering.report import Fallback, LoweringReport

__all__ = ["Fallback", "LoweringReport", "lower_graph"]
