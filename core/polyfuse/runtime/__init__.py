"""All that compiled programs need when they run. Nothing here knows the compiler."""

from polyfuse.runtime.checks import (
    assert_finite,
    assert_layout,
    conform,
    lend_status,
    observe,
    raise_failed,
    realigned,
    return_status,
    set_observer,
)
from polyfuse.runtime.explain import line_map
from polyfuse.runtime.module import CompiledModule, KernelEntry, load
from polyfuse.runtime.native import (
    allocator,
    assert_size_stride,
    device_guard,
    empty_strided_cpu,
    operator,
    record_function,
    reinterpret_tensor,
    result_view,
    synchronize,
    tensor_data_ptr_address,
)
from polyfuse.runtime.workspace import cached_memory, empty_strided_cpu_large, keep_memory

__all__ = [
    "CompiledModule",
    "KernelEntry",
    "allocator",
    "assert_finite",
    "assert_layout",
    "assert_size_stride",
    "cached_memory",
    "conform",
    "device_guard",
    "empty_strided_cpu",
    "empty_strided_cpu_large",
    "keep_memory",
    "lend_status",
    "line_map",
    "load",
    "observe",
    "operator",
    "raise_failed",
    "realigned",
    "record_function",
    "reinterpret_tensor",
    "result_view",
    "return_status",
    "set_observer",
    "synchronize",
    "tensor_data_ptr_address",
]
