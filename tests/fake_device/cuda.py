"""The fake device as the compiler sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from polyfuse.plugin import Device, DeviceProperties


class FakeCuda(Device):
    """Two devices of host memory.

    Args:
        library: that has its functions.
    """

    def __init__(self, type: str, library: str = "") -> None:
        super().__init__(type)
        if library:
            self.memory_functions = (library, "fake_take", "fake_give")  # type: ignore[misc]

    def count(self) -> int:
        return 2

    def current(self) -> Callable[[], int]:
        return torch.cuda.current_device

    def synchronize(self, index: int | None = None) -> None:
        pass

    def allocator(self, index: int | None = None) -> Callable[..., torch.Tensor]:
        # in this torch the fast function refuses devices that it was not built for
        def empty_strided(size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
            where = self.type if index is None else f"{self.type}:{index}"
            return torch.empty_strided(size, stride, dtype=dtype, device=where)

        return empty_strided

    def properties(self, index: int | None = None) -> DeviceProperties:
        return DeviceProperties("memory of the host")
