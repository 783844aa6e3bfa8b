"""Hand-built and compiled programs in both forms, Python and native."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import polyfuse  # noqa: F401 - registers the backend
from polyfuse.base.settings import Settings
from polyfuse.compiler.reports.report import last_reports, reset_reports
from polyfuse.plugin import Source
from polyfuse.program import Program, python_text
from polyfuse.program.native.lowering import native_program
from polyfuse.program.native.tables import host_tables
from polyfuse.runtime import CompiledModule, load
from polyfuse.runtime.native_program import HostStatus
from polyfuse_cpp.backend import CppBackend


@dataclass
class HandBuilt:
    """A hand-built program on its way to its native form; its kernels are Python functions."""

    program: Program
    folder: Path
    status: HostStatus = field(default_factory=HostStatus)

    def open(self, launchables: Any, objects: Any, aligned: Any, replaced: Any) -> Any:
        printed = native_program(self.program, {k.name: None for k in self.program.kernels})
        backend = CppBackend(Settings())
        source = backend.host_program(printed)
        assert isinstance(source, Source)
        if not self.folder.exists():
            self.folder.mkdir()
            backend.build([source], self.folder)
        return backend.load(self.folder)[source.key](host_tables(printed, [], launchables, objects, aligned))


def native_module(
    program: Program, kernels: Mapping[str, Callable[..., Any]], objects: Mapping[str, Any], folder: Path
) -> CompiledModule:
    """A hand-built program that runs in its native form."""
    module = load(python_text(program), kernels, objects)
    module.native = HandBuilt(program, folder)
    return module


def both(function: Callable[..., Any], folder: Path, **more: Any) -> tuple[Callable[..., Any], ...]:
    """The function compiled with a Python program and with a native one, by the same kernels."""
    made = []
    options: Mapping[str, Any] = more.pop("options", {})
    for native in (False, True):
        torch._dynamo.reset()
        shared = {"cache_dir": str(folder), "strict": True, "native_host": native, **options}
        made.append(torch.compile(function, backend="polyfuse", options=shared, **more))
    return tuple(made)


def compare(function: Callable[..., Any], folder: Path, *calls: tuple[Any, ...], **more: Any) -> list[str]:
    """Call both forms with the same inputs; results must be equal, bit by bit.

    Returns what reports say of the native form.
    """
    python, native = both(function, folder, **more)
    torch._dynamo.reset()
    wanted = [python(*_copied(args)) for args in calls]
    torch._dynamo.reset()
    reset_reports()
    for args, want in zip(calls, wanted, strict=True):
        assert_same(native(*_copied(args)), want)
    return [report.host.text() for report in last_reports() if report.host is not None]


def assert_same(got: Any, want: Any) -> None:
    if isinstance(want, torch.Tensor):
        assert (got.dtype, got.shape, got.stride()) == (want.dtype, want.shape, want.stride())
        assert torch.equal(_bytes(got), _bytes(want))
    elif isinstance(want, (tuple, list)):
        assert len(got) == len(want)
        for one, other in zip(got, want, strict=True):
            assert_same(one, other)
    else:
        assert type(got) is type(want) and got == want


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    plain = torch.empty(tensor.numel(), dtype=tensor.dtype)
    return plain.copy_(tensor.detach().reshape(-1)).view(torch.uint8)


def _copied(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(
        a.detach().clone(memory_format=torch.preserve_format).requires_grad_(a.requires_grad)
        if isinstance(a, torch.Tensor)
        else a
        for a in args
    )
