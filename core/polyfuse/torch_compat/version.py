"""Which torch is installed and whether it is one this project supports."""

from __future__ import annotations

import torch

OLDEST = (2, 11)
NEWEST = (2, 13)


def torch_version() -> tuple[int, int]:
    """Major and minor version of the installed torch."""
    major, minor = torch.__version__.split("+", 1)[0].split(".")[:2]
    return int(major), int("".join(c for c in minor if c.isdigit()))


def is_supported() -> bool:
    """True inside the tested range of torch releases."""
    return OLDEST <= torch_version() <= NEWEST


def unsupported_reason() -> str | None:
    """One sentence with cause and fix, or None on a supported release."""
    if is_supported():
        return None
    low, high = (".".join(map(str, v)) for v in (OLDEST, NEWEST))
    return (
        f"torch {torch.__version__} is outside the tested range {low} to {high}; install a torch inside it."
    )
