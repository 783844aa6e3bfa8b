"""Packages as candidates of the campaign `engines`: loaded by Python, and native ones through their C
interface, called by ctypes in this process.
"""

from __future__ import annotations

import ctypes
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from polyfuse.aot import load, package

PACKAGE = "package"
"""In place of a mode: what `polyfuse.aot.package` made, loaded by `polyfuse.aot.load`."""
FROZEN_PACKAGE = "package+freezing"
NATIVE_PACKAGE = "native-package"
FROZEN_NATIVE_PACKAGE = "native-package+freezing"
FORMS = (PACKAGE, FROZEN_PACKAGE, NATIVE_PACKAGE, FROZEN_NATIVE_PACKAGE)

_MOST_DIMENSIONS = 16
_TYPES = (
    *(None, torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
)
"""Types of elements, by the numbers that `polyfuse_model.h` gives them."""


def package_call(
    model: nn.Module, values: Sequence[Tensor], form: str, folder: Path
) -> Callable[[], list[Tensor]]:
    """A call of a package of this form, which is written into `folder`.

    Args:
        model: takes `values` by position, and returns a tuple of tensors.
    """
    path = folder / f"{form}.pf"
    native = form.startswith(NATIVE_PACKAGE)
    options = {"freezing": True} if form in (FROZEN_PACKAGE, FROZEN_NATIVE_PACKAGE) else None
    package(model, tuple(values), path=path, native=native, options=options)
    if native:
        return NativeModel(path, values)
    loaded = load(path)
    return lambda: list(loaded(*values))


class _Tensor(ctypes.Structure):
    """`pf_tensor`."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("sizes", ctypes.c_int64 * _MOST_DIMENSIONS),
        ("strides", ctypes.c_int64 * _MOST_DIMENSIONS),
        ("owner", ctypes.c_void_p),
    )


_TENSORS = ctypes.POINTER(_Tensor)


class _Interface(ctypes.Structure):
    """`pf_model_api`, as far as the last function that is called here."""

    _fields_ = (
        ("abi", ctypes.c_int32),
        ("name", ctypes.c_char_p),
        ("input_count", ctypes.c_int32),
        ("output_count", ctypes.c_int32),
        ("inputs", ctypes.c_void_p),
        ("outputs", ctypes.c_void_p),
        ("create", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p))),
        ("run", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, _TENSORS, _TENSORS)),
        ("release", ctypes.CFUNCTYPE(None, _TENSORS)),
        ("destroy", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
        ("error", ctypes.CFUNCTYPE(ctypes.c_char_p)),
    )


class NativeModel:
    """The entry `forward` of a native package with its inputs. Results live until the next call.

    Raises:
        RuntimeError: it cannot be created here, or a call fails; the message is the library's.
    """

    def __init__(self, path: Path, values: Sequence[Tensor]) -> None:
        with zipfile.ZipFile(path) as archive:
            # a folder of its own: one that is loaded must not be overwritten
            library = archive.extract("native/forward.so", path.with_suffix(""))
        table = ctypes.CDLL(library).polyfuse_model
        table.restype = ctypes.POINTER(_Interface)
        self._api = table().contents
        self._values = tuple(values)
        self._inputs = (_Tensor * len(values))(*map(_described, values))
        self._outputs = (_Tensor * self._api.output_count)()
        self._model = ctypes.c_void_p()
        self._check(self._api.create(str(path).encode(), ctypes.byref(self._model)))

    def __call__(self) -> list[Tensor]:
        """Its results."""
        for output in self._outputs:
            if output.owner:
                self._api.release(ctypes.byref(output))
            output.data = output.owner = None
        self._check(self._api.run(self._model, self._inputs, self._outputs))
        return [_shown(output) for output in self._outputs]

    def _check(self, failed: int) -> None:
        if failed:
            raise RuntimeError(self._api.error().decode())


def _described(value: Tensor) -> _Tensor:
    rank = value.dim()
    found = _Tensor(value.data_ptr(), _TYPES.index(value.dtype), rank)
    found.sizes[:rank], found.strides[:rank] = value.shape, value.stride()
    return found


def _shown(output: Any) -> Tensor:
    """A tensor over the memory of a result."""
    dtype, sizes, strides = _TYPES[output.dtype], output.sizes[: output.rank], output.strides[: output.rank]
    assert dtype is not None
    extent = 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
    memory = (ctypes.c_char * (extent * dtype.itemsize)).from_address(output.data)
    return torch.frombuffer(memory, dtype=dtype).as_strided(sizes, strides)
