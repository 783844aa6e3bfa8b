"""What a new process begins with, as far as compiled graphs go; starting one takes seconds."""

from __future__ import annotations

import torch
from torch.compiler._cache import CacheArtifactManager

from polyfuse.cache.graphs import reset_graph_counts
from polyfuse.compiler.reports.report import reset_reports
from polyfuse.compiler.session import forget_sessions


def as_in_a_new_process() -> None:
    """Forget what was compiled, reported and counted; what lies in cache folders stays."""
    torch.compiler.reset()
    CacheArtifactManager.clear()
    forget_sessions()
    reset_reports()
    reset_graph_counts()
