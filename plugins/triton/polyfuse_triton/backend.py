"""The Triton code generator as a backend. Thin: each method hands over to the module that does the work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from polyfuse.base.settings import Settings
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.nodes import Node, Reduction
from polyfuse.plugin import Backend, Claim, Config, Launchable, No, Source, TargetInfo, Yes
from polyfuse_cuda.cublas import matmul_library
from polyfuse_triton.build.artifact import read_unit
from polyfuse_triton.build.meta import is_matmul
from polyfuse_triton.launch.launcher import LauncherSource
from polyfuse_triton.launch.loading import LAUNCHER
from polyfuse_triton.launch.series import TYPES
from polyfuse_triton.target import Target, driver_major, targets_of
from polyfuse_triton.target_info import target_info_of

_VERSION = "2"
# A few values spilled to memory cost nothing that can be measured.
_SPILLS_TAKEN = 32
# What is done with a matmul's sums needs registers once, beside a loop that needs all of them.
_SPILLS_BESIDE_SUMS = 512


class TritonBackend(Backend):
    """Kernels for NVIDIA GPUs in Triton."""

    spawns_compiler = False
    worker = "polyfuse_triton.build.toolchain:build_in_worker"
    worker_start = "polyfuse_triton.build.toolchain:warm_up"
    # A worker that runs already starts no compiler for a kernel.
    min_unit = 1
    autotunes_gemm = True
    streams_matvec = True
    joins_launches = True
    # A launch passes its arguments in 4 KiB.
    group_arguments = 240

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.joins_matmuls = frozenset(TYPES if matmul_library() else ())
        # At once: without a GPU this backend is of no use, and the next one should know it.
        self.targets: tuple[Target, ...] = targets_of(settings)
        self._driver = driver_major()
        self._launcher = LauncherSource(settings)
        if not settings.plugin_option("triton", "target", ""):
            # There is a GPU to launch on: by the time that the first kernel is built, the launcher is too.
            self._launcher.start()

    @property
    def target(self) -> Target:
        """What tilings are chosen for."""
        return self.targets[0]

    def claims(self, node: Node) -> Claim:
        """Loops over values of the types that the GPU has."""
        from polyfuse_triton.codegen import claims

        return claims(node, self.target)

    def target_info(self, device: str) -> TargetInfo:
        """The shape of the GPU that tilings are chosen for."""
        wanted = str(self.settings.plugin_option("triton", "column_reductions", "") or "1")
        return target_info_of(self.target, column_reductions=wanted not in ("0", "False", "false"))

    def narrow_weight_rows(self, matmul: Reduction) -> tuple[int, int]:
        """As many as make reading the weight what takes time; a single row needs no instruction."""
        from polyfuse_triton.matmul.few_rows import narrow_rows

        return narrow_rows(matmul)

    def streaming_parts(self, matmul: Reduction) -> int:
        """Where every multiprocessor then reads a part of the weight."""
        from polyfuse_triton.matmul.few_rows import streaming_parts

        return streaming_parts(matmul, self.target)

    def configs(self, kernel: Kernel) -> Sequence[Config]:
        """Tilings, the best guess first."""
        from polyfuse_triton.codegen import configs

        return configs(kernel, self.target)

    def neighbours(self, kernel: Kernel, config: Config) -> Sequence[Config]:
        """Tilings that differ from one in one thing."""
        from polyfuse_triton.codegen import neighbours

        return neighbours(kernel, config, self.target)

    def estimate(self, kernel: Kernel, config: Config) -> float | None:
        """Seconds, roughly: what is computed and moved, and how well tiles fill the GPU."""
        from polyfuse_triton.tiling.estimates import estimate

        return estimate(kernel, config, self.target)

    def may_group(self, kernel: Kernel) -> Claim:
        """Loops of known sizes without reductions, and matmuls of a matrix and few rows."""
        from polyfuse_triton.codegen import may_group

        return may_group(kernel, self.target)

    def emit(self, kernel: Kernel, config: Config | None = None) -> Source:
        """The kernel as a Triton program, with its `KernelMeta` as meta."""
        from polyfuse_triton.codegen import emit

        return emit(kernel, config, self.target)

    def build(self, sources: Sequence[Source], folder: Path) -> None:
        """Compile in this process; the core calls the worker instead."""
        from polyfuse_triton.build.toolchain import build

        build(sources, folder, self.worker_options())

    def worker_options(self) -> Mapping[str, object]:
        """Architectures, the driver that will load the code, and what to keep."""
        archs = [target.arch for target in self.targets]
        return {"archs": archs, "driver": self._driver, "debug": self._debug}

    def load(self, folder: Path) -> Mapping[str, Launchable]:
        """Launchers of a built folder's kernels, by key."""
        return self._launcher.load(folder)

    def extra_files(self) -> Mapping[str, Path]:
        """The native launcher, which a machine without a compiler cannot build."""
        library = self._launcher.library()
        return {LAUNCHER: library} if library is not None else {}

    def review(self, folder: Path, key: str) -> Claim:
        """A kernel that keeps values in memory for want of registers is slow."""
        found = read_unit(folder)[key]
        spilled = max((v.spilled_bytes for v in found.variants), default=0)
        if spilled > (_SPILLS_BESIDE_SUMS if is_matmul(found.meta) else _SPILLS_TAKEN):
            return No(f"each thread spills {spilled} bytes of registers")
        return Yes()

    def synchronize(self) -> None:
        """Wait for the current GPU."""
        import torch

        torch.cuda.synchronize()

    def machine(self) -> Mapping[str, str]:
        """The model of the GPU: one architecture has many."""
        return {"gpu": self.target.model or self.target.name}

    def describe(self) -> Mapping[str, str]:
        """Triton, the architectures, the driver where it decides on the assembler, and this backend."""
        return {
            "triton": metadata.version("triton"),
            "targets": " ".join(target.name for target in self.targets),
            "driver": f"CUDA {self._driver}" if self._driver else "none",
            "debug": str(int(self._debug)),
            "generator": _VERSION,
        }

    @property
    def _debug(self) -> bool:
        return str(self.settings.plugin_option("triton", "debug", "") or "0") not in ("0", "False", "false")
