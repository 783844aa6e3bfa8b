"""What a code generator does: the class that a plugin derives from.

Four methods must be written: `claims`, `emit`, `build` and `load`. The others have defaults that are right
for a simple backend. Per kernel, the core calls them in the order in which they stand here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from polyfuse.plugin.claims import Claim, No, Yes
from polyfuse.plugin.target_info import TargetInfo

if TYPE_CHECKING:
    from polyfuse.base.config import Config
    from polyfuse.base.settings import Settings
    from polyfuse.ir.kernel import Kernel
    from polyfuse.ir.nodes import Node, Reduction
    from polyfuse.plugin.host import HostProgram
    from polyfuse.plugin.host_library import HostLibrary
    from polyfuse.plugin.source import HostCall, Launchable, Source


class Backend(ABC):
    """A code generator for some devices. One object serves a whole session and may be called by several
    threads, so it keeps no state about the kernel at hand.
    """

    spawns_compiler: ClassVar[bool] = True
    """Whether `build` spends its time in a child process (a compiler). If so, builds run in threads; if not,
    in worker processes, provided that `worker` is set."""

    worker: ClassVar[str] = ""
    """`"package.module:function"`, called in a worker process as `function(sources, folder, options)` instead
    of `build`. The module should import little; `options` is what `worker_options` returned."""

    worker_start: ClassVar[str] = ""
    """`"package.module:function"`, called as `function(options)` when a worker process starts, before it has
    anything to build: to import and prepare what every build needs."""

    min_unit: ClassVar[int] = 1500
    """Characters of source below which a kernel shares a unit with others, because starting a compiler costs
    more than the kernel itself. 1: every kernel is a unit of its own."""

    autotunes_gemm: ClassVar[bool] = False
    """Whether what it generates for matmuls (`ops.CONTRACTIONS`) is worth timing against a library's."""

    streams_matvec: ClassVar[bool] = False
    """Whether its reductions read a matrix at the memory's bandwidth, so that a matrix-vector matmul is
    generated without timing, and fused with what surrounds it."""

    group_arguments: ClassVar[int] = 1 << 12
    """How many arguments a kernel of several parts may have (`may_group`)."""

    joins_launches: ClassVar[bool] = False
    """Whether its launcher offers to carry out series of launches
    (`polyfuse.runtime.launching.offer_series`)."""

    joins_matmuls: frozenset[str] = frozenset()
    """Types of matmuls, by torch's names, for which that launcher calls a library itself."""

    autotunes_kernels: ClassVar[bool] = True
    """Whether its kernels are worth timing against other backends' (the option `autotune_backends`)."""

    # As in the manifest; the manager writes them there.
    name: str = ""
    last_resort: bool = False

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @abstractmethod
    def claims(self, node: Node) -> Claim:
        """Say whether this backend can compute a node: its operations, dtypes, reduction and layout."""

    def target_info(self, device: str) -> TargetInfo:
        """Return what the scheduler should know of a device, `"cpu"` or `"name:index"`. Asked once for each
        graph. By default, what follows from the device's properties (`Device.properties`).
        """
        from polyfuse.runtime.devices.registry import device_of

        where, _, index = device.partition(":")
        return TargetInfo.of(device_of(where).properties(int(index) if index else None))

    def configs(self, kernel: Kernel) -> Sequence[Config]:
        """Return candidate tilings, the best guess first. Empty: this kernel has nothing to choose."""
        return ()

    def neighbours(self, kernel: Kernel, config: Config) -> Sequence[Config]:
        """Return the tilings that lie around one: those that differ in one decision. A search by timing goes
        from the fastest of `configs` to the fastest of these, until none is faster.
        """
        return ()

    def estimate(self, kernel: Kernel, config: Config) -> float | None:
        """Guess how long a tiling takes, in any unit, so that of many only the best are built and timed.
        None: no guess, and the order of `configs` decides.
        """
        return None

    def packed_width(self, matmul: Reduction) -> int:
        """Return how many columns a block of packed weights has. They are a GEMM operand B, a parameter that
        is packed once (the option `freezing`), in pairs of steps of the depth if its type is one of
        `TargetInfo.paired_types`. 0: it is read as it is.
        """
        return 0

    def preferred_gemm(self, matmul: Reduction, hints: Mapping[str, int]) -> bool:
        """Say whether the generated kernel of a convolution (an implicit GEMM) is known to be faster on this
        machine than the library that torch calls: `gemm="known"` then takes it without timing, with a weight
        that is packed once (`packed_width`) where windows are larger than 1x1. Also of a linear layer (two
        axes, one of the depth), whose weight is packed with `freezing`, and else read as it is, unless
        `prepacks_gemm` says that it has to be packed. `hints`: a likely value of each symbol in sizes.
        """
        return False

    def prepacks_gemm(self, matmul: Reduction, hints: Mapping[str, int]) -> bool:
        """Say whether a convolution for which `preferred_gemm` is true is faster with its weight packed once:
        where windows are larger than 1x1, although each call then checks whether the weight changed; where
        they are 1x1, with `freezing`, when no call checks. Of a linear layer: whether it is not generated
        without `freezing`. `hints`: a likely value of each symbol in sizes.
        """
        return True

    def narrow_weight_rows(self, matmul: Reduction) -> tuple[int, int]:
        """Return two numbers of rows for a matmul that converts a weight of fewer bits (`int8`, `float8`). Up
        to the first, generated kernels that read the narrow weight are faster than a library that reads the
        converted one, and the matmul is generated without timing; 0 where a library is better. Up to the
        second, it becomes a reduction for each element of the result, which needs no tiles.
        """
        return 0, 1

    def streaming_parts(self, matmul: Reduction) -> int:
        """Return the number of parts into which the depth of a GEMM with few rows is split (split-K), so that
        its kernels read the weight at the memory's bandwidth, which a library does not: it is then generated
        without timing. 0: it is left to the library.
        """
        return 0

    def epilogue_reduction_width(self, matmul: Reduction, kind: str, along: str) -> int:
        """Return how many neighbouring results of a matmul its kernel can combine, where a `"sum"`, `"min"`
        or `"max"` over all its `"rows"` or `"columns"` reads them: the kernel stores a partial result of each
        group beside its results (`ops.GROUP_MODES`), and a second kernel combines these. 0: none.
        """
        return 0

    def may_group(self, kernel: Kernel) -> Claim:
        """Say whether `emit` also takes a kernel of several parts (`Kernel.parts`) of which this one is one:
        launches that depend on none of each other then become one.
        """
        return No("it generates no kernels of several parts")

    @abstractmethod
    def emit(self, kernel: Kernel, config: Config | None = None) -> Source:
        """Return the kernel's source. Pure and deterministic: equal kernels give equal text."""

    @abstractmethod
    def build(self, sources: Sequence[Source], folder: Path) -> None:
        """Build several kernels into files of `folder`, an empty folder that is published only when this
        returns. Sources of one key may be among them: define it once.

        Building them as one unit is much cheaper than one by one. Raise `KernelBuildError` with the command
        and its output on failure; the core then builds halves, and the half that fails again in halves, so
        that one bad kernel costs only itself. Raise `UnsupportedError` for a source that turns out not to be
        computable in its configuration, where nothing is broken: it counts as refused.
        Nothing of the folder's own path may be written into the files: it is renamed afterwards.
        """

    def worker_options(self) -> Mapping[str, object]:
        """Return plain data that `worker` needs in place of this object: compiler, flags, target."""
        return {}

    @abstractmethod
    def load(self, folder: Path) -> Mapping[str, Launchable]:
        """Load a folder that `build` filled, possibly in another process, and return its kernels by
        `Source.key`. Raise `KernelLoadError` when it cannot be loaded."""

    def extra_files(self) -> Mapping[str, Path]:
        """Return files that the manifest's `loader` needs besides what `build` made, such as a launcher that
        a compiler built: where they lie, by the names under which a package puts them into each built folder.
        """
        return {}

    def review(self, folder: Path, key: str) -> Claim:
        """Say whether a built kernel is as it should be, by what its build left in the folder.

        No, with the reason, for one that works but had to give something up, such as values that did not fit
        in registers: other `configs` are then tried.
        """
        return Yes()

    def host(self, source: Source) -> HostCall | None:
        """Say how a native host program calls a kernel, by the source that `emit` gave, or None: it is called
        through the launchable.
        """
        return None

    def host_program(self, program: HostProgram) -> Source | No:
        """Return a host program in this backend's language, as something that `build` builds, or why not.

        What `load` returns for it is called once, with the tables that `polyfuse.runtime.native_program`
        describes, and returns what is called with a list of inputs.
        """
        return No("it generates no host programs")

    def host_library(self, library: HostLibrary) -> Source | No:
        """Return a model that runs without Python (`polyfuse.plugin.host_library`), as something that `build`
        builds, or why not. In the folder that `build` fills, files whose names begin with the key of the
        source and a dot, other than its text, and headers go into packages.
        """
        return No("it generates no libraries")

    def synchronize(self) -> None:  # noqa: B027 - a default that does nothing, not a missing one
        """Wait until all launched work is done. By default, launches are taken to return when done."""

    def machine(self) -> Mapping[str, str]:
        """Return what timings depend on besides `describe`: the exact model of the device. By default, the
        model of this machine's CPU: machines that are alike use each other's.
        """
        from polyfuse.runtime.devices.registry import device_of

        return {"machine": device_of("cpu").facts()}

    def describe(self) -> Mapping[str, str]:
        """Return the facts on which built kernels depend: versions, flags, the device's abilities.

        They are part of every cache key. Compute them once.
        """
        return {}
