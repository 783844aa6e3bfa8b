"""The generator of GEMM kernels as a backend. Thin: each method hands over to the module that does it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from polyfuse.base.settings import Settings
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.nodes import Node, Reduction
from polyfuse.plugin import Backend, Claim, Config, Launchable, No, Source, TargetInfo, Yes
from polyfuse_cuda.toolchain import find_compiler
from polyfuse_cutlass.build.artifact import read_unit
from polyfuse_cutlass.target import target_of

_VERSION = "3"
_NVCC_OPTIONS = ("debug", "fast_math", "keep", "flags")
_SPILLS_TAKEN = 64


class CutlassBackend(Backend):
    """Matrix multiplications for Hopper GPUs."""

    spawns_compiler = False
    worker = "polyfuse_cutlass.build.toolchain:build_in_worker"
    min_unit = 1
    autotunes_gemm: ClassVar[bool] = True

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        # At once: without a GPU or a compiler this backend is of no use, and the next one should know it.
        self.target = target_of(settings)
        self.compiler = find_compiler(str(settings.plugin_option("cutlass", "compiler", "") or ""))

    def claims(self, node: Node) -> Claim:
        """Matrix multiplications, and what can be done with their results."""
        from polyfuse_cutlass.claims import claim_of

        return claim_of(node)

    def epilogue_reduction_width(self, matmul: Reduction, kind: str, along: str) -> int:
        """Rows or columns that a warp combines."""
        from polyfuse_cutlass.codegen.row_statistics import COLUMNS, ROWS

        return {"rows": ROWS, "columns": COLUMNS}[along]

    def target_info(self, device: str) -> TargetInfo:
        """What is multiplied lies at round addresses."""
        return TargetInfo(alignment=16, double_sums=False)

    def configs(self, kernel: Kernel) -> Sequence[Config]:
        """Tilings, the best guess first."""
        from polyfuse_cutlass.space import configs

        return configs(kernel, self.target)

    def neighbours(self, kernel: Kernel, config: Config) -> Sequence[Config]:
        """Tilings that differ from one in one thing."""
        from polyfuse_cutlass.space import neighbours

        return neighbours(kernel, config, self.target)

    def estimate(self, kernel: Kernel, config: Config) -> float | None:
        """Cycles, roughly."""
        from polyfuse_cutlass.space import cycles

        return cycles(kernel, config, self.target)

    def emit(self, kernel: Kernel, config: Config | None = None) -> Source:
        """The kernel as CUDA C++, with its `KernelMeta` as meta."""
        from polyfuse_cutlass.space import emit

        return emit(kernel, config, self.target)

    def build(self, sources: Sequence[Source], folder: Path) -> None:
        """Compile in this process; the core calls the worker instead."""
        from polyfuse_cutlass.build.toolchain import build_in_worker

        build_in_worker(sources, folder, self.worker_options())

    def worker_options(self) -> Mapping[str, object]:
        """The compiler and the architecture."""
        return {
            "compiler": self.compiler.kind,
            "path": self.compiler.path,
            "version": self.compiler.version,
            "arch": self.target.name,
            **self._nvcc_options,
        }

    @property
    def _nvcc_options(self) -> dict[str, object]:
        """What the user wants of nvcc besides: the options that are set."""
        given = {n: str(self.settings.plugin_option("cutlass", n, "") or "") for n in _NVCC_OPTIONS}
        return {name: value for name, value in given.items() if value not in ("", "0", "False", "false")}

    def load(self, folder: Path) -> Mapping[str, Launchable]:
        """Launchers of a built folder's kernels, by key."""
        from polyfuse_cutlass.launch.launcher import load_unit

        return load_unit(folder)

    def review(self, folder: Path, key: str) -> Claim:
        """A kernel that keeps sums in memory, or whose matrix instructions wait for each other, is slow."""
        artifact = read_unit(folder)[key]
        if artifact.spilled > _SPILLS_TAKEN:
            return No(f"each thread spills {artifact.spilled} bytes of registers")
        if artifact.serial:
            return No("its matrix instructions wait for each other")
        return Yes()

    def synchronize(self) -> None:
        """Wait for the current GPU."""
        import torch

        torch.cuda.synchronize()

    def machine(self) -> Mapping[str, str]:
        """The model of the GPU."""
        return {"gpu": self.target.model or self.target.name}

    def describe(self) -> Mapping[str, str]:
        """The compiler, the architecture, and this backend."""
        return {
            "compiler": f"{self.compiler.kind} {self.compiler.version}",
            "arch": self.target.name,
            "generator": _VERSION,
            "flags": " ".join(f"{name}={value}" for name, value in sorted(self._nvcc_options.items())),
        }
