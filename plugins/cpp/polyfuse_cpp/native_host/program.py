"""Native host programs: their source, the unit that is compiled, and opening one inside Python.

The structures here have the members of those in ``host/host_python.h``, in the same order.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyfuse.base.digest import digest
from polyfuse.base.errors import KernelLoadError
from polyfuse.plugin import HostProgram, Source
from polyfuse.runtime.libraries import SharedLibrary
from polyfuse_cpp.native_host.text import HOST_LANGUAGE, host_header, host_text

if TYPE_CHECKING:
    from polyfuse.runtime.native_program import HostTables, Opener, Plan

_HEADERS = ("host", "memory", "program", "host_python")


def host_source(program: HostProgram) -> Source:
    """The source of a host program; its key follows its headers too."""
    headers = digest(*map(host_header, _HEADERS))
    return Source(program.name, host_text(program), HOST_LANGUAGE, meta=headers)


def host_unit(source: Source) -> str:
    """What is compiled: the program, and what runs it inside Python."""
    *above, python = map(host_header, _HEADERS)
    binding = python.replace(Source.SYMBOL, source.symbol)
    return "\n".join((*above, source.rendered(), binding))


def load_hosts(folder: Path) -> Mapping[str, Callable[..., Any]]:
    """The functions that open the programs of a built folder, by key.

    Raises:
        KernelLoadError: the folder is incomplete.
    """
    found = {path.stem: _load_host(path) for path in folder.glob("*.so")}
    if not found:
        raise KernelLoadError(
            f"the built folder {folder} is incomplete", "delete it from the cache and compile again"
        )
    return found


def _load_host(path: Path) -> Opener:
    """The function that opens the program in a built library."""
    library = SharedLibrary(path, "host program")
    make = library.function("pf_open")
    make.restype = ctypes.py_object
    make.argtypes = [ctypes.c_void_p]

    def open_program(tables: HostTables) -> Callable[[list[Any]], tuple[Any, ...]]:
        return _Opened(tables, library).call(make)

    return open_program


class _Plan(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_void_p),
        ("steps", ctypes.c_int64),
        ("depth", ctypes.c_int64),
        ("constants", ctypes.c_void_p),
    )


class _Request(ctypes.Structure):
    _fields_ = (
        ("function", ctypes.c_void_p),
        ("arguments", _Plan),
        ("positional", ctypes.c_int64),
        ("keywords", ctypes.c_void_p),
        ("results", ctypes.c_char_p),
        ("wanted", ctypes.c_int64),
        ("several", ctypes.c_int64),
    )


class _Tables(ctypes.Structure):
    _fields_ = (
        ("owner", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("inputs", ctypes.c_char_p),
        ("input_count", ctypes.c_int64),
        ("results", ctypes.c_char_p),
        ("result_count", ctypes.c_int64),
        ("kernels", ctypes.c_void_p),
        ("constants", ctypes.c_void_p),
        ("requests", ctypes.c_void_p),
        ("returns", _Plan),
        ("tensor_type", ctypes.c_void_p),
        ("realigned", ctypes.c_void_p),
        ("explain", ctypes.c_void_p),
        ("tensor_data", ctypes.c_void_p),
        ("runtime", ctypes.c_void_p * 16),  # filled in by the library; room to spare
    )


class _Opened:
    """The tables as C structures. The program owns this object, and lives on what it holds."""

    def __init__(self, tables: HostTables, library: SharedLibrary) -> None:
        # and what `tables` holds: the libraries of kernels
        self._held: list[Any] = [library, tables]
        requests = (_Request * max(1, len(tables.requests)))()
        for row, answer in zip(requests, tables.requests, strict=False):
            row.function = self._address(answer.function)
            row.arguments = self._plan(answer.arguments)
            row.positional = answer.positional
            row.keywords = self._address(answer.keywords) if answer.keywords else None
            row.results = answer.results.encode()
            row.wanted = len(answer.results)
            row.several = answer.several
        self.tables = _Tables(
            owner=id(self),
            name=tables.name.encode(),
            inputs=tables.inputs.encode(),
            input_count=len(tables.inputs),
            results=tables.results.encode(),
            result_count=len(tables.results),
            kernels=self._pointers(tables.kernels),
            constants=self._pointers([self._address(value) for value in tables.constants]),
            requests=self._keep(requests),
            returns=self._plan(tables.returns),
            tensor_type=self._address(tables.tensor_type),
            realigned=self._address(tables.realigned),
            explain=self._address(tables.explain),
            tensor_data=tables.data_pointer,
        )

    def call(self, make: Callable[[int], Any]) -> Callable[[list[Any]], tuple[Any, ...]]:
        """The program."""
        made: Callable[[list[Any]], tuple[Any, ...]] = make(ctypes.addressof(self.tables))
        return made

    def _address(self, value: object) -> int:
        """Where a Python object is, which lives as long as this one."""
        self._held.append(value)
        return id(value)

    def _keep(self, block: Any) -> int:
        self._held.append(block)
        return ctypes.addressof(block)

    def _pointers(self, addresses: Any) -> int:
        return self._keep((ctypes.c_void_p * max(1, len(addresses)))(*addresses))

    def _plan(self, plan: Plan) -> _Plan:
        code = self._keep((ctypes.c_int64 * max(1, len(plan.code)))(*plan.code))
        constants = self._pointers([self._address(value) for value in plan.constants])
        return _Plan(code, len(plan.code), plan.depth, constants)
