"""What compiling one graph gives: the callable, and all that reports and packages need of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from polyfuse.compiler.kernels import PendingKernel
from polyfuse.compiler.layers import Layers
from polyfuse.compiler.reports.report import GraphReport, Provider
from polyfuse.compiler.sizes.classes import ClassKey
from polyfuse.compiler.sizes.graphs import SizedGraph
from polyfuse.ir.kernel import Kernel
from polyfuse.program import Program
from polyfuse.runtime.module import CompiledModule
from polyfuse.runtime.native_program import HostStatus
from polyfuse.schedule import Schedule


@dataclass(frozen=True)
class Built:
    """What `compile_graph` made, with what came before it.

    Attributes:
        layers: what was scheduled; of equal layers a few, where the module runs the others in a loop.
        whole: gives the program of all steps, planned when first asked for; that of the module may run some
            of them in a loop.
    """

    module: CompiledModule
    layers: Layers
    whole: Callable[[], Program]
    notes: Mapping[tuple[str, Kernel], str]
    kernels: Mapping[str, PendingKernel]
    host: HostStatus | None
    providers: Mapping[tuple[str, Kernel], Provider]

    @property
    def schedule(self) -> Schedule:
        """The schedule of all steps."""
        return self.layers.whole

    @property
    def program(self) -> Program:
        """The program of all steps."""
        return self.whole()


@dataclass(frozen=True)
class BuiltGraph(Built):
    """What `compile_whole` made, with what it reports.

    Attributes:
        sized: the graph of all sizes; None where there is one program.
        ahead: what was built for further classes of sizes, with the sizes it was built for.
    """

    report: GraphReport
    sized: SizedGraph | None = None
    ahead: Mapping[ClassKey, tuple[tuple[int, ...], Built]] = field(default_factory=dict)
