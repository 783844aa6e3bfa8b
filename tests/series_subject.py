"""A launcher of series whose driver records what it is asked, and whose memory is the host's."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fake_gpu import FakeDriver
from polyfuse.runtime.launching import SeriesPlan
from polyfuse_triton.build.artifact import Artifact, Variant
from polyfuse_triton.build.meta import KernelMeta, MetaArg
from polyfuse_triton.launch.native import NativeLauncher
from polyfuse_triton.launch.services import torch_services

META = KernelMeta(
    args=(
        MetaArg("in0", "ptr", "*fp32", True),
        MetaArg("out0", "ptr", "*fp32"),
        MetaArg("n", "size", "i32"),
    ),
    constexprs=(),
    num_warps=4,
    num_stages=1,
    grid=("(n + 3) // 4", 1, 1),
    guard="n < 100",
)
TAKE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.POINTER(ctypes.c_void_p))
GIVE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


class Allocator:
    """Memory that is no tensor; counts what it gave and got back."""

    def __init__(self) -> None:
        self.held: dict[int, Any] = {}
        self.sizes: list[int] = []
        self.full = False
        self.take, self.give = TAKE(self._take), GIVE(self._give)

    def _take(self, size: int, at: Any) -> int:
        if self.full:
            return 1
        block = torch.empty(size, dtype=torch.uint8)
        self.held[block.data_ptr()] = block
        self.sizes.append(size)
        at[0] = block.data_ptr()
        return 0

    def _give(self, at: int) -> int:
        del self.held[at]
        return 0


class Subject:
    """A launcher with two kernels, and what is reported."""

    def __init__(
        self, driver: FakeDriver, library: Path, folder: Path, device_memory: bool = True, matmuls: str = ""
    ) -> None:
        driver.reset(3)
        driver.use_device(0)
        self.allocator, self.reported, self.flags = Allocator(), [], {"on": False}
        functions = (self.allocator.take, self.allocator.give)
        addresses = tuple(ctypes.cast(f, ctypes.c_void_p).value for f in functions)

        @contextmanager
        def annotate(name: str) -> Iterator[None]:
            yield

        services = replace(
            torch_services(),
            driver=str(driver.path),
            stream_function=driver.stream_function,
            current_device=lambda: 0,
            allocate=self.tensor,
            memory=addresses if device_memory else (None, None),  # type: ignore[arg-type]
            profiler=(self.flags, "on"),
            matmuls=matmuls,
            annotate=annotate,
        )
        self.launcher = NativeLauncher(library, services)
        (folder / "90.cubin").write_bytes(b"code")
        variants = (Variant(90, "90.cubin", 0, 4, 32, 0),)
        self.kernels = {
            name: self.launcher.kernel(Artifact(name, name, f"symbol_{name}", META, variants), folder)
            for name in ("one", "two")
        }
        self.made: list[torch.Tensor] = []

    def tensor(self, size: int) -> torch.Tensor:
        if self.allocator.full:
            raise torch.OutOfMemoryError("nothing left")
        return torch.empty(size, dtype=torch.uint8)

    def allocate(self, size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
        self.made.append(torch.empty_strided(size, stride, dtype=dtype))
        return self.made[-1]

    def each(self, args: list[Any]) -> tuple[Any, ...]:
        self.reported.append("each")
        args.clear()
        return ("each",)

    def plan(self, *rows: tuple[Any, ...], **changes: Any) -> SeriesPlan:
        """One of a tensor and a number, with four slots, of which the third is returned."""
        plan = SeriesPlan(
            "series_0",
            1,
            ("n",),
            4,
            (2,),
            rows,
            self.kernels,
            self.allocate,
            torch.as_strided,
            self.each,
            lambda error, number: self.reported.append((str(error), number)),
        )
        return replace(plan, **changes)

    def join(self, *rows: tuple[Any, ...], **changes: Any) -> Callable[[list[Any]], Any]:
        made = self.launcher.join(self.plan(*rows, **changes))
        assert made is not None
        return made
