"""Which torch is installed."""

from __future__ import annotations

import torch


def torch_version() -> tuple[int, int]:
    """Major and minor version of the installed torch."""
    major, minor = torch.__version__.split("+", 1)[0].split(".")[:2]
    return int(major), int("".join(c for c in minor if c.isdigit()))
