"""What compiling one graph gives: the callable, and all that reports and packages need of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from polyfuse.compiler.kernels import PendingKernel
from polyfuse.compiler.reports.report import GraphReport, Provider
from polyfuse.ir.kernel import Kernel
from polyfuse.program import Program
from polyfuse.runtime.module import CompiledModule
from polyfuse.runtime.native_program import HostStatus
from polyfuse.schedule import Schedule

__all__ = ["Built", "BuiltGraph"]


@dataclass(frozen=True)
class Built:
    """What `compile_graph` made, with what came before it."""

    module: CompiledModule
    schedule: Schedule
    program: Program
    notes: Mapping[tuple[str, Kernel], str]
    kernels: Mapping[str, PendingKernel]
    host: HostStatus | None
    providers: Mapping[tuple[str, Kernel], Provider]


@dataclass(frozen=True)
class BuiltGraph(Built):
    """What `compile_whole` made, with what it reports."""

    report: GraphReport
