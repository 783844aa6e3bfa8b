"""Kernels written by hand for the C++ backend's tests, and a way to run them on tensors."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from polyfuse.base.settings import Settings
from polyfuse.ir.expr import Access
from polyfuse.ir.kernel import Kernel, KernelArg, RowBuffer, Section
from polyfuse.ir.ops import SCALAR_OPS
from polyfuse.ir.statements import Statement, Store, statement
from polyfuse.ir.types import DType, from_torch
from polyfuse.symbolic import Index, IndexLike, axis

_FOLDERS = tempfile.TemporaryDirectory(prefix="cpp-kernels-", ignore_cleanup_errors=True)
_LOADED: dict[str, Callable[..., None]] = {}
_wanted: dict[str, dict[str, Any]] | None = None  # sources of each instruction set, while they are recorded


class Body:
    """One section being written: every method returns the name of the value it makes."""

    def __init__(self, kernel: KernelBuilder, looped: bool) -> None:
        self.kernel, self.looped, self.stmts = kernel, looped, list[Statement]()

    def _add(
        self, op: str, args: tuple[str, ...], dtype: DType, payload: Any = None, targets: int = 1
    ) -> Any:
        names = tuple(self.kernel.fresh(dtype) for _ in range(targets))
        self.stmts.append(statement(op, names, args, dtype, payload))
        return names[0] if targets == 1 else names

    def const(self, value: float | int | bool, dtype: DType = DType.f32) -> str:
        return self._add("const", (), dtype, value)

    def index(self, index: IndexLike) -> str:
        return self._add("index", (), DType.i64, index)

    def load(self, buffer: str, index: IndexLike, *indirect: str, mask: str = "", other: str = "") -> str:
        dtype = self.kernel.memory[buffer]
        extra = (mask, other) if mask else ()
        return self._add("load", indirect + extra, dtype, Access(buffer, index, len(indirect), bool(mask)))

    def store(
        self, buffer: str, index: IndexLike, value: str, *indirect: str, mode: str = "set", mask: str = ""
    ) -> None:
        dtype = self.kernel.types[value]
        self.stmts.append(Store(buffer, index, value, dtype, mode, indirect, mask or None))

    def op(self, name: str, *args: str) -> str:
        dtype = self.kernel.types[args[-1]]
        return self._add(name, args, DType.bool if SCALAR_OPS[name].result == "bool" else dtype)

    def cast(self, value: str, dtype: DType) -> str:
        return self._add("cast", (value,), dtype)

    def reduce(self, kind: str, *args: str) -> Any:
        from polyfuse.ir.ops import REDUCTIONS

        return self._add("reduce", args, self.kernel.types[args[0]], kind, REDUCTIONS[kind].results)

    def scan(self, kind: str, *args: str) -> Any:
        from polyfuse.ir.ops import SCANS

        return self._add("scan", args, self.kernel.types[args[0]], kind, SCANS[kind].results)


class KernelBuilder:
    """A kernel over named axes and buffers."""

    def __init__(
        self,
        axes: Mapping[str, IndexLike],
        raxes: Mapping[str, IndexLike] | None = None,
        hints: tuple[int, ...] = (),
        deterministic: bool = False,
    ) -> None:
        self.axes = {n: axis(n, s) for n, s in axes.items()}
        self.raxes = {n: axis(n, s) for n, s in (raxes or {}).items()}
        self.memory: dict[str, DType] = {}
        self.types: dict[str, DType] = {}
        self.args: list[KernelArg] = []
        self.row_buffers: list[RowBuffer] = []
        self.bodies: list[Body] = []
        self.hints, self.deterministic = hints, deterministic
        self._count = 0

    def fresh(self, dtype: DType) -> str:
        self._count += 1
        name = f"t{self._count}"
        self.types[name] = dtype
        return name

    def __getitem__(self, name: str) -> Index:
        return self.axes.get(name) or self.raxes[name]

    def arg(self, name: str, dtype: DType = DType.f32, kind: str = "in") -> str:
        self.memory[name] = dtype
        self.args.append(KernelArg(name, kind, dtype, 1))
        return name

    def out(self, name: str, dtype: DType = DType.f32) -> str:
        return self.arg(name, dtype, "out")

    def size(self, name: str) -> None:
        self.args.append(KernelArg(name, "size", DType.i64))

    def local(self, name: str, size: IndexLike, dtype: DType = DType.f32) -> str:
        self.memory[name] = dtype
        self.row_buffers.append(RowBuffer(name, dtype, size))
        return name

    def section(self, looped: bool = False) -> Body:
        body = Body(self, looped)
        self.bodies.append(body)
        return body

    def build(self, name: str = "k") -> Kernel:
        return Kernel(
            name,
            "cpu",
            tuple(self.axes.values()),
            tuple(self.raxes.values()),
            tuple(self.args),
            tuple(self.row_buffers),
            tuple(Section(b.looped, tuple(b.stmts)) for b in self.bodies),
            self.hints,
            self.deterministic,
        )


def backend(isa: str = "") -> Any:
    """The backend for an instruction set."""
    from polyfuse_cpp.backend import CppBackend

    options = {"cpp.isa": isa} if isa else {}
    return CppBackend(Settings.resolve(options=options))


def compiled(kernel: Kernel, isa: str = "", config: Any = None) -> Callable[..., None]:
    """The kernel, built once per run and loaded."""
    made = backend(isa)
    source = made.emit(kernel, config)
    if _wanted is not None:
        _wanted.setdefault(isa, {})[source.key] = source
        raise Recorded
    found = _LOADED.get(source.key)
    if found is None:
        folder = Path(_FOLDERS.name) / source.key
        folder.mkdir(exist_ok=True)
        made.build([source], folder)
        found = _LOADED[source.key] = made.load(folder)[source.key]
    return found


def build_together(
    kernels: Kernel | Iterable[Kernel], configs: Iterable[Any] = (None,), isa: str = ""
) -> None:
    """Build kernels, each in all configurations, as one unit, which takes less time than one by one."""
    made = backend(isa)
    given, configs = [kernels] if isinstance(kernels, Kernel) else kernels, list(configs)
    found = (made.emit(kernel, config) for kernel in given for config in configs)
    sources = {source.key: source for source in found}
    if _wanted is not None:
        _wanted.setdefault(isa, {}).update(sources)
        raise Recorded
    missing = [source for key, source in sources.items() if key not in _LOADED]
    if missing:
        folder = Path(tempfile.mkdtemp(dir=_FOLDERS.name))
        made.build(missing, folder)
        _LOADED.update(made.load(folder))


class Recorded(BaseException):
    """The kernels that a test builds first are known, and no more is to be done of it."""


def build_ahead(tests: Iterable[Callable[[], object]]) -> None:
    """Build the kernels that `tests` ask for first, many in one unit: starting the compiler costs several
    times what a small kernel does. Each test is run until it asks; what it does before it may do twice.
    """
    global _wanted
    _wanted = {}
    try:
        # a test that compiles a function asks for no kernel by itself, and would run as a whole
        with torch.random.fork_rng(devices=()), patch.object(torch, "compile", side_effect=Recorded):
            for test in tests:
                with contextlib.suppress(Recorded, pytest.skip.Exception, Exception):
                    test()
        wanted = _wanted
    finally:
        _wanted = None
    for isa, sources in wanted.items():
        missing = [source for key, source in sources.items() if key not in _LOADED]
        for start in range(0, len(missing), 16):
            made, folder = backend(isa), Path(tempfile.mkdtemp(dir=_FOLDERS.name))
            # a test whose kernel does not build is the one to say so
            with contextlib.suppress(Exception):
                made.build(missing[start : start + 16], folder)
                _LOADED.update(made.load(folder))


def ir_type(tensor: torch.Tensor) -> DType:
    """The IR's type of a tensor's elements."""
    found = from_torch(tensor.dtype)
    assert found is not None
    return found
