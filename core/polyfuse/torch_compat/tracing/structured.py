"""Where torch shows what is compiled: artifacts in its structured traces (`TORCH_TRACE=folder`), which
`tlparse` shows beside the frame that was compiled, and those of `TORCH_LOGS`, printed with its other logs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache

import torch._logging
from torch._logging._internal import trace_log

_UNDER = "torch.polyfuse"
"""A logger of torch's, so that its handlers print what is logged."""


def is_traced() -> bool:
    """Whether somebody reads structured traces of this process."""
    return bool(trace_log.handlers)


def trace_artifact(name: str, text: Callable[[], str]) -> None:
    """Add a text to the trace, under a name, with the frame that is being compiled."""
    torch._logging.trace_structured(
        "artifact", metadata_fn=lambda: {"name": name, "encoding": "string"}, payload_fn=text
    )


def is_logged(artifact: str) -> bool:
    """Whether `TORCH_LOGS` or `torch._logging.set_logs` asks for an artifact, such as `output_code`."""
    log = _logger(artifact)
    return log.propagate and log.isEnabledFor(logging.DEBUG)


def log_artifact(artifact: str, text: str) -> None:
    """Print a text as a part of an artifact."""
    _logger(artifact).debug("%s", text)


@cache
def _logger(artifact: str) -> logging.Logger:
    return torch._logging.getArtifactLogger(_UNDER, artifact)
