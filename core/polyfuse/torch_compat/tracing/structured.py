"""Artifacts in torch's structured traces (`TORCH_TRACE=folder`), which `tlparse` shows beside the frame that
was compiled.
"""

from __future__ import annotations

from collections.abc import Callable

import torch._logging
from torch._logging._internal import trace_log

__all__ = ["is_traced", "trace_artifact"]


def is_traced() -> bool:
    """Whether somebody reads structured traces of this process."""
    return bool(trace_log.handlers)


def trace_artifact(name: str, text: Callable[[], str]) -> None:
    """Add a text to the trace, under a name, with the frame that is being compiled."""
    torch._logging.trace_structured(
        "artifact", metadata_fn=lambda: {"name": name, "encoding": "string"}, payload_fn=text
    )
