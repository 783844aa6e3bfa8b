"""Fast C functions of torch for generated code: allocation, views, checks, addresses.

Each name has a public replacement of the same meaning, so a torch that lacks one costs speed, not function.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

_guards: Any = getattr(getattr(torch._C, "_dynamo", None), "guards", None)


def _empty_strided_slow(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype)


def _reinterpret_slow(
    tensor: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int = 0
) -> torch.Tensor:
    with torch.no_grad():
        return torch.as_strided(tensor, size, stride, tensor.storage_offset() + offset)


def _assert_size_stride_slow(
    tensor: torch.Tensor, size: Sequence[int], stride: Sequence[int], op_name: str | None = None
) -> None:
    if tuple(tensor.shape) != tuple(size):
        raise AssertionError(f"expected size {tuple(size)}, got {tuple(tensor.shape)} ({op_name or 'input'})")
    dims = zip(tensor.shape, tensor.stride(), stride, strict=True)
    if any(n > 1 and have != want for n, have, want in dims):
        raise AssertionError(
            f"expected stride {tuple(stride)}, got {tuple(tensor.stride())} ({op_name or 'input'})"
        )


empty_strided_cpu: Callable[..., torch.Tensor] = getattr(_guards, "_empty_strided_cpu", _empty_strided_slow)
"""`(size, stride, dtype) -> Tensor`: uninitialised CPU tensor, sizes and strides as tuples of ints."""

reinterpret_tensor: Callable[..., torch.Tensor] = getattr(_guards, "_reinterpret_tensor", _reinterpret_slow)
"""`(tensor, size, stride, offset_increment=0) -> Tensor`: a view invisible to autograd."""


def result_view(
    tensor: torch.Tensor, size: tuple[int, ...], stride: tuple[int, ...], offset_increment: int = 0
) -> torch.Tensor:
    """A view as eager mode makes one, for the caller: it shares the counter of what is written in place, by
    which autograd knows of a saved tensor that it has changed.

    AOTAutograd switches gradients off around a graph, and a view made without them cannot be written in place
    with them, which eager mode allows.
    """
    before = torch.is_grad_enabled()
    torch._C._set_grad_enabled(True)
    try:
        return tensor.as_strided(size, stride, tensor.storage_offset() + offset_increment)
    finally:
        torch._C._set_grad_enabled(before)


record_function: Callable[[str], AbstractContextManager[Any]] = getattr(
    getattr(torch._C, "_profiler", None), "_RecordFunctionFast", torch.profiler.record_function
)
"""`(name)`: what runs inside has this name in torch's profiler, among operators."""

assert_size_stride: Callable[..., None] = getattr(_guards, "assert_size_stride", _assert_size_stride_slow)
"""`(tensor, size, stride, op_name=None)`: raise AssertionError on a mismatch; strides of size-1 dims are
free.
"""


def alike(tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """`(*tensors) -> bool`: False unless as many tensors have the types, devices, sizes and strides of these;
    it may be False for other reasons, too, such as another mode of autograd, or a tensor that is given twice.
    """
    make = getattr(_guards, "TensorGuards", None)
    if make is None:
        return lambda *_: False
    sizes, strides = [list(t.shape) for t in tensors], [list(t.stride()) for t in tensors]
    check: Callable[..., bool] = make(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check
    return check


def may_skip_guards() -> bool:
    """Whether Dynamo leaves out guards of a module's tensors while its dictionaries are unchanged, as they
    are behind `parameter.data = other`. Later versions of torch do not."""
    config = sys.modules.get("torch._dynamo.config")
    return bool(getattr(config, "use_recursive_dict_tags_for_guards", False))


def fast_empty_strided(device_type: str) -> Callable[..., torch.Tensor] | None:
    """`(size, stride, dtype) -> Tensor` on the current device of a type; None: this torch has no such one."""
    fast: Callable[..., torch.Tensor] | None = getattr(_guards, f"_empty_strided_{device_type}", None)
    return fast


def current_device(device_type: str) -> Callable[[], int]:
    """The cheapest function that gives the index of the current device of a type."""
    fast: Callable[[], int] | None = getattr(torch._C, f"_{device_type}_getDevice", None)
    return fast if fast is not None else torch.get_device_module(device_type).current_device


def has_no_memory(tensor: torch.Tensor) -> bool:
    """Whether these are the zeros that forward-mode differentiation makes, which have no address."""
    return tensor._is_zerotensor()


def plain(value: Any) -> Any:
    """A tensor of a class that only carries a name or attributes, as a tensor; anything else as it is.

    torch looks at the first call of a graph for custom operators that return their operands, and what looks
    refuses each class that it does not know.
    """
    own = getattr(type(value), "__torch_dispatch__", None)
    if own is not _no_dispatch or type(value) in (torch.Tensor, torch.nn.Parameter):
        return value
    with torch._C._DisableTorchDispatch(), torch.no_grad():
        return value.as_subclass(torch.Tensor)


_no_dispatch = torch.Tensor.__torch_dispatch__


def multiply_bytes(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """The product of two matrices of signed bytes, in 32 bits: exact, and of larger sums the last 32."""
    return torch._int_mm(left, right)


def is_fake(tensor: object) -> bool:
    """Whether this is a tensor of sizes and types alone; what defines such tensors is not imported here."""
    module = sys.modules.get("torch._subclasses.fake_tensor")
    return module is not None and isinstance(tensor, module.FakeTensor)


def tensor_data_ptr_address() -> int | None:
    """Address of C function `void* f(PyObject* tensor)` giving a tensor's data pointer; None where torch has
    none.

    Native launchers call it once per argument instead of `Tensor.data_ptr()` through Python.
    """
    address = getattr(_guards, "_torchinductor_pyobject_tensor_data_ptr", None)
    return address if isinstance(address, int) else None


def tensor_view_address() -> int | None:
    """Address of C function `int f(PyObject* tensor, DLTensor* view)`: where a tensor's numbers are, and how
    they lie; None where torch has none.
    """
    capsule = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if capsule is None:
        return None
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    table = pointer(capsule, b"dlpack_exchange_api")
    if table is None or ctypes.c_uint32.from_address(table).value != _DLPACK_MAJOR:
        return None
    return ctypes.c_void_p.from_address(table + _VIEW_AT).value


_DLPACK_MAJOR = 1
"""The version of DLPack's table in which the function is where it is looked for."""

_VIEW_AT = 40
"""Bytes before the function: a version, the table of an older version, and three functions."""


def storage_address(tensor: torch.Tensor) -> int:
    """Where torch notes the memory of a tensor: a hint, for what will be read."""
    return int(getattr(tensor.untyped_storage(), "_cdata", 0))
