"""What torch's tracing depends on besides a graph and its inputs: switches, and modes that see every call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from polyfuse.torch_compat.devices.host_switches import matmul_precision

SWITCH_GRADIENTS = torch._C._set_grad_enabled
"""What `no_grad` and `enable_grad` become in a captured graph: called with a constant."""

SILENT_FUNCTIONS = (SWITCH_GRADIENTS, torch._C._log_api_usage_once)
"""Functions in captured graphs that have no result, and need nothing but their position in the order."""


@contextmanager
def plain_operators() -> Iterator[None]:
    """Operators as they are on plain tensors: no mode sees them, and no subclass's `__torch_function__`."""
    from torch.utils._python_dispatch import _disable_current_modes

    with torch._C.DisableTorchFunctionSubclass(), _disable_current_modes():
        yield


def switches() -> tuple[str, ...]:
    """Every switch that changes what torch records or computes on any device, as text."""
    from torch._functorch import config as functorch_config
    from torch.fx.experimental import _config as fx_config

    autocast = [
        (device, str(torch.get_autocast_dtype(device)))
        for device in torch._C._autocast_supported_devices()
        if torch.is_autocast_enabled(device)
    ]
    return (
        f"torch {torch.__version__} {torch.version.git_version}",
        f"gradients {torch.is_grad_enabled()} inference {torch.is_inference_mode_enabled()}",
        f"autocast {autocast} {torch.is_autocast_cache_enabled()}",
        f"deterministic {torch.are_deterministic_algorithms_enabled()}"
        f" {torch.is_deterministic_algorithms_warn_only_enabled()}"
        f" {torch.utils.deterministic.fill_uninitialized_memory}",
        f"default {torch.get_default_dtype()} {torch.get_default_device()}",
        f"matmuls {matmul_precision()} {torch.get_num_threads()}",
        f"convolutions {torch.backends.mkldnn.enabled}",
        f"functorch {functorch_config.get_hash().hex()}",
        f"fx {fx_config.get_hash().hex()}",
    )


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
