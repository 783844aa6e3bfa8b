"""Which devices this machine has."""

from __future__ import annotations

import torch


def is_present(device_type: str) -> bool:
    """Return whether this machine has a device of a type that this build of torch can use."""
    if device_type == "cpu":
        return True
    try:
        module = torch.get_device_module(device_type)
    except (RuntimeError, AttributeError):  # torch has no such device type
        return False
    available = getattr(module, "is_available", None)
    return available is not None and bool(available())
