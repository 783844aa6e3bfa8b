"""What torch's tracing depends on besides a graph and its inputs: switches, and modes that see every call."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch

from polyfuse.torch_compat.devices.precision import library_flags

__all__ = ["device_facts", "plain_operators", "switches", "watchers"]


@contextmanager
def plain_operators() -> Iterator[None]:
    """Operators as they are on plain tensors: no mode sees them, and no subclass's `__torch_function__`."""
    from torch.utils._python_dispatch import _disable_current_modes

    with torch._C.DisableTorchFunctionSubclass(), _disable_current_modes():
        yield


def switches() -> tuple[str, ...]:
    """Every switch that changes what torch records or what a library computes, as text."""
    from torch._functorch import config as functorch_config
    from torch.fx.experimental import _config as fx_config

    autocast = [
        (device, str(torch.get_autocast_dtype(device)))
        for device in torch._C._autocast_supported_devices()
        if torch.is_autocast_enabled(device)
    ]
    attention = torch.backends.cuda
    return (
        f"torch {torch.__version__} {torch.version.git_version} {torch.version.cuda} {torch.version.hip}",
        f"gradients {torch.is_grad_enabled()} inference {torch.is_inference_mode_enabled()}",
        f"autocast {autocast} {torch.is_autocast_cache_enabled()}",
        f"deterministic {torch.are_deterministic_algorithms_enabled()}"
        f" {torch.is_deterministic_algorithms_warn_only_enabled()}"
        f" {torch.utils.deterministic.fill_uninitialized_memory}",
        f"default {torch.get_default_dtype()} {torch.get_default_device()} {_current_device()}",
        f"libraries {sorted(library_flags().items())} {torch.get_num_threads()}",
        f"half sums {torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction}"
        f" {torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction}",
        f"convolutions {torch.backends.cudnn.enabled} {torch.backends.cudnn.deterministic}"
        f" {torch.backends.mkldnn.enabled}",
        f"attention {attention.flash_sdp_enabled()} {attention.mem_efficient_sdp_enabled()}"
        f" {attention.math_sdp_enabled()} {attention.cudnn_sdp_enabled()}",
        f"functorch {functorch_config.get_hash().hex()}",
        f"fx {fx_config.get_hash().hex()}",
    )


def _current_device() -> int | None:
    """The device that is meant where only its type is named."""
    return torch.cuda.current_device() if torch.cuda.is_initialized() else None


def watchers() -> str:
    """What sees or changes every operator that is traced now; empty if nothing does."""
    from torch._guards import TracingContext
    from torch.overrides import _get_current_function_mode_stack
    from torch.utils._device import DeviceContext
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    functions = [m for m in _get_current_function_mode_stack() if not isinstance(m, DeviceContext)]
    for mode in (*_get_current_dispatch_mode_stack(), *functions):
        return f"the mode {type(mode).__name__} is on"
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "it is traced inside a transform of torch.func"
    context = TracingContext.try_get()
    if context is None or context.fake_mode is None:
        return "it was not captured by Dynamo"
    if context.guards_context.aotautograd_guards:
        return "it has guards on how its inputs share memory"
    return ""


def device_facts(device: torch.device) -> str:
    """What is known of a device without asking a plugin."""
    if device.type == "cpu":
        return f"cpu {_cpu()}"
    if device.type != "cuda":
        return device.type
    found = torch.cuda.get_device_properties(device)
    return f"{device.type} {found.name} {found.major}.{found.minor} {found.multi_processor_count}"


@cache
def _cpu(path: Path = Path("/proc/cpuinfo")) -> str:
    """What the CPU is called, where the system says: libraries are chosen by that, too."""
    try:
        words = [line.partition(":") for line in path.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    named = {key.strip(): value.strip() for key, _, value in words}
    return f"{platform.machine()} {named.get('vendor_id', '')} {named.get('model name', '')}"
