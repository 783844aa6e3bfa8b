"""The Halide code generator as a backend. Thin: each method hands over to the module that does the work."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import metadata, util
from pathlib import Path

from polyfuse.base.errors import BackendUnavailableError, KernelLoadError
from polyfuse.base.settings import Settings
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.nodes import Node
from polyfuse.plugin import Backend, Claim, Config, Launchable, Source, Traits
from polyfuse_halide.claims import claim_of
from polyfuse_halide.host import Host, host
from polyfuse_halide.machine import supported
from polyfuse_halide.plan import pinned_choices

__all__ = ["HalideBackend"]

_VERSION = "1"


class HalideBackend(Backend):
    """Kernels for the processor as Halide pipelines, compiled without any compiler of the system."""

    spawns_compiler = False
    worker = "polyfuse_halide.toolchain:build_in_worker"
    worker_start = "polyfuse_halide.toolchain:warm_up"
    # A worker that runs already starts no compiler for a kernel.
    min_unit = 1

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        if util.find_spec("halide") is None:
            raise BackendUnavailableError("Halide is not installed", "pip install 'polyfuse[halide]'")
        if not supported():
            raise BackendUnavailableError(
                "Halide kernels are launched on Linux on x86-64 only", "use another backend"
            )
        self.processor: Host = host()
        self._target = str(settings.plugin_option("halide", "target", "") or "host")
        self._pinned = pinned_choices(str(settings.plugin_option("halide", "schedule", "") or ""))
        self._keep = str(settings.plugin_option("halide", "keep", "") or "0") not in ("0", "False", "false")

    def claims(self, node: Node) -> Claim:
        """Loops over values of the types that Halide has."""
        return claim_of(node)

    def traits(self, device: str) -> Traits:
        """A processor with few threads; long reductions with few results are divided by the scheduler."""
        return Traits(blocks=16, chunk=16384)

    def configs(self, kernel: Kernel) -> Sequence[Config]:
        """Other widths, numbers of vectors side by side, and shares of threads."""
        if self._pinned is not None:
            return [self._pinned]
        wide = self.processor.lanes
        found = [Config()]
        found += [Config.of(unroll=count) for count in (1, 2, 4, 8)]
        found.append(Config.of(lanes=wide // 2))
        found += [Config.of(grain=size) for size in (4096, 65536)]
        return found

    def emit(self, kernel: Kernel, config: Config | None = None) -> Source:
        """The kernel as a program that builds its pipeline; as meta, what its launch needs to know."""
        from polyfuse_halide.kernel import kernel_text

        found = kernel_text(kernel, self.processor.lanes, config or self._pinned)
        return Source(kernel.name, found.text, "halide", meta=found.meta)

    def build(self, sources: Sequence[Source], folder: Path) -> None:
        """Compile in this process; the core calls the worker instead."""
        from polyfuse_halide.toolchain import build

        build(sources, folder, self.worker_options())

    def worker_options(self) -> Mapping[str, object]:
        """What to compile for, and whether to keep what Halide made of each kernel."""
        return {"target": self._target, "keep": self._keep}

    def load(self, folder: Path) -> Mapping[str, Launchable]:
        """Launchers of a built folder's kernels, by key."""
        from polyfuse.runtime.native import tensor_data_ptr_address
        from polyfuse_halide.launch import make_launcher
        from polyfuse_halide.objects import link

        try:
            rows = json.loads((folder / "kernels.json").read_text(encoding="utf-8"))
            objects = [(folder / f"{row['key']}.o").read_bytes() for row in rows]
        except (OSError, ValueError) as error:
            raise KernelLoadError(
                f"the built folder {folder} is incomplete ({error})",
                "delete it from the cache and compile again",
            ) from error
        functions = link(objects, [row["symbol"] for row in rows])
        pointer = tensor_data_ptr_address()
        return {
            row["key"]: make_launcher(row["symbol"], functions[row["symbol"]], row["meta"], pointer)
            for row in rows
        }

    def describe(self) -> Mapping[str, str]:
        """Halide, the processor that it compiles for, and this backend's library."""
        from polyfuse_halide.host import library_digest

        return {
            "halide": metadata.version("halide"),
            "target": self._target if self._target != "host" else self.processor.name,
            "library": library_digest(),
            "schedule": str(self._pinned or ""),
            "keep": str(int(self._keep)),
            "generator": _VERSION,
        }
