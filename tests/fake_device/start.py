"""The process with fake devices: loads them, makes torch believe, calls one function."""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

FAKE: Any = None
"""The loaded library: `fake_current_device()`, `fake_allocations(device)`, and others."""


def main() -> None:
    global FAKE
    task = json.loads(sys.argv[1])
    # before torch, which looks for devices once
    FAKE = ctypes.CDLL(task["library"], mode=ctypes.RTLD_GLOBAL)
    for name in (
        "fake_current_device",
        "fake_exchange_device",
        "fake_current_stream",
        "fake_allocations",
        "fake_taken",
    ):
        getattr(FAKE, name).restype = ctypes.c_int64
    sys.modules["fake_device.start"] = sys.modules["__main__"]
    _believe()
    import seeding

    seeding.begin(task["function"])
    module, _, function = task["function"].partition(":")
    called: Callable[..., Any] = getattr(importlib.import_module(module), function)
    Path(sys.argv[2]).write_text(json.dumps(called(*task["arguments"])))
    # at once: while Python takes itself apart, autograd's threads for devices may still want its lock to let
    # go of their last objects, which ends the process with an error
    os._exit(0)


def _believe() -> None:
    import torch

    from fake_device.cuda import FakeCuda
    from polyfuse.runtime.devices.registry import use_device

    cuda: Any = torch.cuda
    cuda._lazy_init = lambda: None
    use_device("cuda", FakeCuda("cuda", FAKE._name))
    cuda.device_count = lambda: 2
    cuda.current_device = lambda: FAKE.fake_current_device()
    cuda._exchange_device = lambda index: FAKE.fake_exchange_device(index)
    cuda._maybe_exchange_device = lambda index: FAKE.fake_exchange_device(index)
    cuda.synchronize = lambda device=None: None


if __name__ == "__main__":
    main()
