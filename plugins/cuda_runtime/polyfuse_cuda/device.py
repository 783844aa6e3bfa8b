"""CUDA devices as the core sees them; the manifests of the plugins for NVIDIA GPUs name this class."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, ClassVar, Literal

import torch

from polyfuse.runtime.devices.device import Device, DeviceProperties
from polyfuse.runtime.devices.graphs import GraphRecorder
from polyfuse.runtime.devices.switches import (
    SwitchTable,
    attribute,
    precision_of_matmuls,
    read_switches,
    write_switches,
)
from polyfuse.runtime.launching import c_function
from polyfuse_cuda.gpu import gpu_of

_BUS = 20e9
"""Bytes that PCI Express moves in a second."""


class CudaDevice(Device):
    """NVIDIA's GPUs, through torch."""

    network = 50e9
    link = 200e9
    fused_attention = True
    spelled_attention: ClassVar[Mapping[torch.dtype, int]] = {torch.bfloat16: 1, torch.float16: 1}
    # measurements name the model that they were made on
    timeless_switches = frozenset({"current"})
    # kernels on streams like any other
    recorded_collectives = frozenset({"nccl"})
    memory_functions = (
        "libtorch_cuda.so",
        "aoti_torch_cuda_caching_allocator_raw_alloc",
        "aoti_torch_cuda_caching_allocator_raw_delete",
    )

    def stream_function(self) -> int:
        """Torch's C function for the current stream."""
        return _stream_function()

    def properties(self, index: int | None = None) -> DeviceProperties:
        """What torch says of a GPU."""
        if not torch.cuda.is_available():
            return DeviceProperties("no GPU")
        return _properties(torch.cuda.current_device() if index is None else index)

    def rounds(self, what: Literal["matmuls", "convolutions"]) -> bool:
        """Whether torch lets cuBLAS or cuDNN use TF32."""
        library = torch.backends.cuda.matmul if what == "matmuls" else torch.backends.cudnn.conv
        # torch's older interface raises where this newer one was used
        return library.fp32_precision not in ("none", "ieee")

    def switches(self) -> Mapping[str, object]:
        """The switches of cuBLAS, cuDNN and attention."""
        return read_switches(_SWITCHES)

    def set_switches(self, switches: Mapping[str, object]) -> None:
        """Set them."""
        write_switches(_SWITCHES, switches)

    def facts(self, index: int | None = None) -> str:
        """The model, its architecture and size, and the toolkit that torch is built with."""
        if not (torch.cuda.is_initialized() or torch.cuda.is_available()):
            return f"{self.type} no GPU"
        found = torch.cuda.get_device_properties(torch.cuda.current_device() if index is None else index)
        kind = f"{found.name} {found.major}.{found.minor} {found.multi_processor_count}"
        return f"{self.type} {kind} {torch.version.cuda} {torch.version.hip}"

    def collective_seconds(
        self, op: str, nbytes: int, bandwidth: float = 0.0, ranks: int = 0, on_host: bool = False
    ) -> float:
        """By NVLink where GPUs reach each other's memory, else by a bus that they share."""
        # one of several may be all that this process sees
        apart = on_host and not bandwidth and torch.cuda.is_available() and torch.cuda.device_count() > 1
        if apart and not torch.cuda.can_device_access_peer(0, 1):
            bandwidth = _BUS
        return super().collective_seconds(op, nbytes, bandwidth, ranks, on_host)

    def recorder(self, index: int | None = None) -> GraphRecorder | None:
        """CUDA graphs."""
        if not torch.cuda.is_available():
            return None
        from polyfuse_cuda.graphs import CudaGraphs

        number = torch.cuda.current_device() if index is None else index
        return CudaGraphs(torch.device(self.type, number))


@cache
def _stream_function() -> int:
    return c_function("libtorch_cuda.so", "aoti_torch_get_current_cuda_stream")


@cache
def _properties(index: int) -> DeviceProperties:
    found = torch.cuda.get_device_properties(index)
    gpu = gpu_of(found)
    return DeviceProperties(
        name=str(found.name),
        units=gpu.multiprocessors,
        cache_bytes=gpu.l2_bytes,
        bandwidth=gpu.bandwidth,
        operations=gpu.matmul_operations,
        alignment=512,
    )


_CUDA = torch.backends.cuda


def _current() -> int | None:
    """The device that is meant where only its type is named; asking starts nothing."""
    return torch.cuda.current_device() if torch.cuda.is_initialized() else None


def _set_current(index: Any) -> None:
    if index is not None:
        torch.cuda.set_device(index)


def _preferred(choose: Callable[..., Any]) -> tuple[Callable[[], object], Callable[[Any], object]]:
    """A choice among libraries, by its name, which can be sent to another process."""
    return (lambda: str(choose().name).lower()), choose


_SWITCHES: SwitchTable = {
    "current": (_current, _set_current),
    "matmuls of cuBLAS": precision_of_matmuls(_CUDA.matmul),
    "convolutions": attribute(torch.backends.cudnn.conv, "fp32_precision"),
    "search": attribute(torch.backends.cudnn, "benchmark"),
    "cudnn": attribute(torch.backends.cudnn, "enabled"),
    "cudnn deterministic": attribute(torch.backends.cudnn, "deterministic"),
    "sums of f16": attribute(_CUDA.matmul, "allow_fp16_reduced_precision_reduction"),
    "sums of bf16": attribute(_CUDA.matmul, "allow_bf16_reduced_precision_reduction"),
    "flash attention": (_CUDA.flash_sdp_enabled, _CUDA.enable_flash_sdp),
    "efficient attention": (_CUDA.mem_efficient_sdp_enabled, _CUDA.enable_mem_efficient_sdp),
    "matmul library": _preferred(_CUDA.preferred_blas_library),
    "linear algebra library": _preferred(_CUDA.preferred_linalg_library),
    "plain attention": (_CUDA.math_sdp_enabled, _CUDA.enable_math_sdp),
    "cudnn attention": (_CUDA.cudnn_sdp_enabled, _CUDA.enable_cudnn_sdp),
}
