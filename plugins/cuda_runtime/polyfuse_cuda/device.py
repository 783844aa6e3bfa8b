"""CUDA devices as the core sees them; the manifests of the plugins for NVIDIA GPUs name this class."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Literal

import torch

from polyfuse.runtime.devices.device import Device, DeviceProperties
from polyfuse.runtime.devices.graphs import GraphRecorder
from polyfuse.runtime.launching import c_function
from polyfuse_cuda.gpu import known_gpu

__all__ = ["CudaDevice"]

# What a multiprocessor of the larger chips gets from memory and multiplies in a second.
_DELIVERED = 20e9
_MULTIPLIED = 4e12


class CudaDevice(Device):
    """NVIDIA's GPUs, through torch."""

    network = 50e9

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
        if what == "matmuls":
            return str(torch.get_float32_matmul_precision()) != "highest"
        return bool(torch.backends.cudnn.allow_tf32)

    def switches(self) -> Mapping[str, object]:
        """The switches of cuBLAS, cuDNN and attention."""
        found: dict[str, object] = {}
        for name, (read, _) in _SWITCHES.items():
            with contextlib.suppress(RuntimeError):  # torch refuses where two of its interfaces were mixed
                found[name] = read()
        return found

    def set_switches(self, switches: Mapping[str, object]) -> None:
        """Set them."""
        for name, value in switches.items():
            with contextlib.suppress(RuntimeError):
                _SWITCHES[name][1](value)

    def facts(self, index: int | None = None) -> str:
        """The model, its architecture and size, and the toolkit that torch is built with."""
        found = torch.cuda.get_device_properties(torch.cuda.current_device() if index is None else index)
        kind = f"{found.name} {found.major}.{found.minor} {found.multi_processor_count}"
        return f"{self.type} {kind} {torch.version.cuda} {torch.version.hip}"

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
    usual = known_gpu(found.major * 10 + found.minor)
    units = int(found.multi_processor_count)
    return DeviceProperties(
        name=str(found.name),
        memory_bytes=int(getattr(found, "total_memory", 0)),
        units=units,
        # a name that torch gave to it over time
        cache_bytes=int(getattr(found, "L2_cache_size", usual.l2_bytes)),
        bandwidth=_DELIVERED * units,
        operations=_MULTIPLIED * units,
        alignment=512,
    )


def _switch(owner: Any, name: str) -> tuple[Callable[[], object], Callable[[Any], None]]:
    return (lambda: getattr(owner, name)), (lambda value: setattr(owner, name, value))


_CUDA = torch.backends.cuda


def _current() -> int | None:
    """The device that is meant where only its type is named; asking starts nothing."""
    return torch.cuda.current_device() if torch.cuda.is_initialized() else None


def _set_current(index: Any) -> None:
    if index is not None:
        torch.cuda.set_device(index)


_SWITCHES: Mapping[str, tuple[Callable[[], object], Callable[[Any], None]]] = {
    "current": (_current, _set_current),
    "convolutions": _switch(torch.backends.cudnn, "allow_tf32"),
    "search": _switch(torch.backends.cudnn, "benchmark"),
    "cudnn": _switch(torch.backends.cudnn, "enabled"),
    "deterministic": _switch(torch.backends.cudnn, "deterministic"),
    "sums of f16": _switch(_CUDA.matmul, "allow_fp16_reduced_precision_reduction"),
    "sums of bf16": _switch(_CUDA.matmul, "allow_bf16_reduced_precision_reduction"),
    "flash attention": (_CUDA.flash_sdp_enabled, _CUDA.enable_flash_sdp),
    "efficient attention": (_CUDA.mem_efficient_sdp_enabled, _CUDA.enable_mem_efficient_sdp),
    "plain attention": (_CUDA.math_sdp_enabled, _CUDA.enable_math_sdp),
    "cudnn attention": (_CUDA.cudnn_sdp_enabled, _CUDA.enable_cudnn_sdp),
}
