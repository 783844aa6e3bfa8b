"""Python callables for compiled kernels, made without ``Python.h`` and without ``ctypes`` on the call path.

A kernel is ``extern "C" void name(pointers, int64s, doubles...)``.  Its *signature* is one letter per
argument: ``p`` a pointer (the caller passes a tensor, or an address as an int), ``i`` an int64, ``d`` a
double.

``bindings_text({"k": "ppid"})`` is C++ to append to the unit that defines ``k``: a METH_FASTCALL wrapper for
each kernel and the table of all of them.  ``load_library(path, data_ptr)`` loads the built library and
returns the wrappers by name.  *data_ptr* is the address of a function ``void* (PyObject*)`` that gives the
data pointer of a tensor (the caller gets it from ``polyfuse.torch_compat.bindings``); without it only
addresses are accepted.

A wrapper checks the count and the kind of its arguments (TypeError). While a kernel runs whose work is worth
two threads (`team_for` of ``prelude/kernel.h``), other threads of Python run, too.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from polyfuse.runtime.libraries import SharedLibrary
from polyfuse_cpp.prelude import header_text

KernelCall = Callable[..., None]

CALL_KINDS = {"p": "ptr", "i": "i64", "d": "f64"}
"""What native host programs call the letters of a signature."""

_CALLS = {"p": "pf::any_pointer{{a[{0}].p}}", "i": "(pf::i64)a[{0}].i", "d": "a[{0}].d"}


def bindings_text(kernels: Mapping[str, str]) -> str:
    """C++ that exposes *kernels* (name to signature), defined above it in the same unit."""
    parts = [header_text("binding")]
    for name, signature in kernels.items():
        parts.append(_wrapper(name, signature))
    for table, form in (("pf_methods", "call"), ("pf_alone_methods", "alone")):
        rows = ", ".join(f'{{"{name}", pf_{form}_{name}, 0x80, nullptr}}' for name in kernels)
        parts.append(f"static pf_method {table}[] = {{{rows}}};\n")
    parts.append(
        'extern "C" __attribute__((visibility("default")))\n'
        "PyObject* pf_bind(void* data_ptr, PyObject* owner, void* share) {\n"
        "  if (share) pf::alone_share = share;\n"
        "  pf_method* methods = share ? pf_alone_methods : pf_methods;\n"
        f"  return pf::make_bindings(data_ptr, owner, methods, {len(kernels)});\n}}\n"
    )
    return "".join(parts)


class KernelLibrary(SharedLibrary):
    """A library built with `bindings_text`; its kernels hold it as their `__self__`.

    Args:
        path: the file.
        data_ptr: address of the function that finds a tensor's data; None: kernels take addresses alone.
        share: gives the address of the pool's function for programs of kernels alone; 0: there is none.
    """

    def __init__(
        self, path: Path | str, data_ptr: int | None, share: Callable[[], int] | None = None
    ) -> None:
        super().__init__(path, "kernel library")
        self._data_ptr = data_ptr
        self._share = share

    def kernels(self) -> dict[str, KernelCall]:
        """All kernels by name."""
        return self._bound(0)

    def alone(self, kernel: KernelCall) -> KernelCall:
        """The same kernel for programs in which nothing else computes: its threads are the pool's."""
        share = self.share()
        return self._bound(share)[kernel.__name__] if share else kernel

    def direct(self, kernel: KernelCall) -> int:
        """Address of the form of a kernel that takes its arguments as an array."""
        return self.address(f"pf_direct_{kernel.__name__}")

    def run_series(self) -> Callable[[list[Any], int], int]:
        """``pf_series``: from tensors and the address of a table (`native_host.series`) to 0 once all is
        done; to 1 where a tensor has no memory, and nothing was done.
        """
        function = self.function("pf_series")
        function.argtypes = [ctypes.py_object, ctypes.c_void_p]
        run: Callable[[list[Any], int], int] = function
        return run

    def share(self) -> int:
        """Address of the pool's function for programs of kernels alone; 0: there is none."""
        return self._share() if self._share is not None else 0

    def _bound(self, share: int) -> dict[str, KernelCall]:
        bind = self.function("pf_bind")
        bind.restype = ctypes.py_object
        bind.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
        calls: dict[str, KernelCall] = bind(self._data_ptr, self, share or None)
        return calls


def load_library(
    path: Path | str, data_ptr: int | None = None, share: Callable[[], int] | None = None
) -> dict[str, KernelCall]:
    """Load a library built with `bindings_text` and return its kernels by name. The library is unloaded when
    the last of them is gone. Arguments are those of `KernelLibrary`.
    """
    return KernelLibrary(path, data_ptr, share).kernels()


def _wrapper(name: str, signature: str) -> str:
    """The forms of one kernel: with its arguments as an array, and the METH_FASTCALL functions."""
    unknown = sorted(set(signature) - set(_CALLS))
    if unknown:
        raise ValueError(
            f"signature {signature!r} of kernel {name} has {unknown[0]!r}; letters are p, i and d"
        )
    arguments = ", ".join(_CALLS[code].format(index) for index, code in enumerate(signature))
    called = f'pf_direct_{name}, args, n, "{name}", "{signature}", {len(signature)}'
    forms = "".join(
        f"static PyObject* pf_{form}_{name}(PyObject*, PyObject* const* args, __PTRDIFF_TYPE__ n) {{\n"
        f"  return pf::called({called}, {share});\n}}\n"
        for form, share in (("call", "nullptr"), ("alone", "pf::alone_share"))
    )
    return (
        f'extern "C" __attribute__((visibility("default")))\n'
        f"void pf_direct_{name}(const pf::argument* a, void* share) {{\n"
        f"  pf::in_pool pf_shared(share);\n  {name}({arguments});\n}}\n{forms}"
    )
