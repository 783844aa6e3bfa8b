"""The Halide code generator as a backend. Thin: each method hands over to the module that does the work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import metadata, util
from pathlib import Path

from polyfuse.base.errors import BackendUnavailableError, UnsupportedError
from polyfuse.base.settings import Settings
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.nodes import Node
from polyfuse.ir.types import DType
from polyfuse.kit import without_aliases
from polyfuse.plugin import Backend, Claim, Config, Launchable, Source, TargetInfo
from polyfuse_cuda.gpu import OLDEST, Gpu, known_gpu, present_gpus
from polyfuse_halide.claims import claim_of, device_fault
from polyfuse_halide.host import Host, host
from polyfuse_halide.launch.executable_memory import supported
from polyfuse_halide.loading import load_folder
from polyfuse_halide.schedules.automatic import SCHEDULERS, automatic_configs, automatic_text, scheduler_named
from polyfuse_halide.schedules.pins import pin_of, read_pins
from polyfuse_halide.schedules.plan import pinned_choices

_VERSION = "1"

_NEWEST = 86
"""The newest compute capability that Halide knows; later GPUs' drivers translate its code."""


def device_target_info(gpu: Gpu) -> TargetInfo:
    """The shape of a GPU: hundreds of blocks at once, rows in their own memory, launches that are dear."""
    return TargetInfo(
        blocks=4 * gpu.multiprocessors,
        lanes=64,
        split_chunk=8192,
        row_bytes=32 << 10,
        few_rows=gpu.multiprocessors,
        long_row=16 << 10,
        two_pass_row=16 << 10,
        licm=False,
        launch_bytes=4 << 20,
        alignment=16,
        channels_last=frozenset({DType.f16, DType.bf16}),
        double_sums=False,
    )


def _is_on(settings: Settings, option: str) -> bool:
    return str(settings.plugin_option("halide", option, "") or "0") not in ("0", "False", "false")


class HalideBackend(Backend):
    """Kernels for the CPU as Halide pipelines, compiled without any compiler of the system."""

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
        self.cpu: Host = host()
        self.gpu: Gpu | None = gpu_of(settings)
        self._target = str(settings.plugin_option("halide", "target", "") or "host")
        self._pinned = pinned_choices(str(settings.plugin_option("halide", "schedule", "") or ""))
        self._pins = read_pins(str(settings.plugin_option("halide", "pins", "") or ""))
        self._scheduler = scheduler_named(str(settings.plugin_option("halide", "autoscheduler", "") or ""))
        self._keep, self._checks = (_is_on(settings, name) for name in ("keep", "checks"))

    def claims(self, node: Node) -> Claim:
        """Loops over values of the types that Halide has."""
        return claim_of(node)

    def target_info(self, device: str) -> TargetInfo:
        """A CPU with few threads; long reductions with few results are divided by the scheduler."""
        if device != "cpu" and self.gpu is not None:
            return device_target_info(self.gpu)
        return replace(super().target_info(device), blocks=16, split_chunk=16384)

    def configs(self, kernel: Kernel) -> Sequence[Config]:
        """Other widths, numbers of vectors side by side, and points of a thread; Halide's own schedulers."""
        own = kernel.device == "cpu" and self._pinned
        if self._scheduler:
            asked = self._asked(kernel)
            return [*([asked] if asked else ()), own or Config()]
        automatic = () if self._checks else automatic_configs(kernel)
        if kernel.device != "cpu":
            return [Config(), *automatic]
        if self._pinned is not None:
            return [self._pinned]
        wide = self.cpu.lanes
        found = [Config()]
        found += [Config.of(unroll=count) for count in (1, 2, 4, 8)]
        found.append(Config.of(lanes=wide // 2))
        found += [Config.of(grain=size) for size in (4096, 65536)]
        return [*found, *automatic]

    def _asked(self, kernel: Kernel) -> Config | None:
        """The configuration by the scheduler that the option names, where it can be asked."""
        if self._checks or pin_of(kernel) in self._pins:
            return None
        return next(iter(automatic_configs(kernel, self._scheduler)), None) if self._scheduler else None

    def estimate(self, kernel: Kernel, config: Config) -> float:
        """Seconds, roughly: by lanes, sums side by side, and points of a thread."""
        from polyfuse_halide.schedules.estimates import estimate

        return estimate(kernel, config, self.cpu.lanes)

    def emit(self, kernel: Kernel, config: Config | None = None) -> Source:
        """The kernel as a program that builds its pipeline; as meta, what its launch needs to know."""
        config = config or self._asked(kernel)
        if not kernel.aliases:
            return self._emit(kernel, config)
        try:
            return self._emit(kernel, config)
        except UnsupportedError:
            # what is stored in several stages, or by a schedule that computes values twice
            source = self._emit(without_aliases(kernel), config)
            return replace(source, refused_aliases=kernel.aliases)

    def _emit(self, kernel: Kernel, config: Config | None) -> Source:
        if kernel.device != "cpu":
            return self._emit_for_device(kernel, config)
        if config is not None and config.get("auto"):
            return self._emit_automatic(kernel, config, self.cpu.count)
        from polyfuse_halide.codegen.kernel import kernel_text

        chosen = config or self._pinned
        found = kernel_text(kernel, self.cpu.lanes, chosen, self._pins, self._checks)
        return Source(kernel.name, found.text, "halide", meta=found.meta, note=found.note)

    def _emit_automatic(self, kernel: Kernel, config: Config, parallelism: int) -> Source:
        found = automatic_text(kernel, SCHEDULERS[config.get("auto") - 1], parallelism)
        return Source(kernel.name, found.text, "halide", meta=found.meta, note=found.note)

    def _emit_for_device(self, kernel: Kernel, config: Config | None) -> Source:
        from polyfuse_halide.codegen.device_kernel import device_kernel_text

        if self.gpu is None:
            raise UnsupportedError("there is no GPU that Halide compiles for", "check `nvidia-smi`")
        fault = device_fault(kernel)
        if fault:
            raise UnsupportedError(fault, "use another backend")
        if config is not None and config.get("auto"):
            return self._emit_automatic(kernel, config, self.gpu.multiprocessors)
        found = device_kernel_text(kernel, self.gpu.multiprocessors, config, self._pins)
        return Source(kernel.name, found.text, "halide", meta=found.meta, note=found.note)

    def build(self, sources: Sequence[Source], folder: Path) -> None:
        """Compile in this process; the core calls the worker instead."""
        from polyfuse_halide.toolchain import build

        build(sources, folder, self.worker_options())

    def worker_options(self) -> Mapping[str, object]:
        """What to compile for, and whether to keep what Halide made of each kernel."""
        capability = self.gpu.arch if self.gpu is not None else 0
        return {"target": self._target, "keep": self._keep, "capability": capability}

    def load(self, folder: Path) -> Mapping[str, Launchable]:
        """Launchers of a built folder's kernels, by key."""
        return load_folder(folder, self._checks)

    def synchronize(self) -> None:
        """Wait for the GPU, where there is one."""
        if self.gpu is not None and self.gpu.model:
            import torch

            torch.cuda.synchronize()

    def machine(self) -> Mapping[str, str]:
        """The CPU of this machine, and its GPU."""
        return {**super().machine(), "gpu": self.gpu.model if self.gpu is not None else ""}

    def describe(self) -> Mapping[str, str]:
        """Halide, the CPU that it compiles for, and this backend's library."""
        from polyfuse_halide.host import library_digest

        return {
            "halide": metadata.version("halide"),
            "target": self._target if self._target != "host" else self.cpu.name,
            "library": library_digest(),
            "schedule": str(self._pinned or ""),
            "keep": str(int(self._keep)),
            "checks": str(int(self._checks)),
            "autoscheduler": self._scheduler,
            "gpu": self.gpu.name if self.gpu is not None else "",
            "generator": _VERSION,
        }


def gpu_of(settings: Settings) -> Gpu | None:
    """What to compile for: the option `halide.gpu`, or this machine's GPU; None where there is none.

    Raises:
        BackendUnavailableError: Halide does not know what the option says.
    """
    named = str(settings.plugin_option("halide", "gpu", "") or "").strip()
    if named:
        digits = named.lower().removeprefix("sm_")
        if digits not in ("80", "86"):
            raise BackendUnavailableError(
                f"the option halide.gpu says {named!r}, which Halide does not know", "write 80 or 86"
            )
        return replace(known_gpu(OLDEST), arch=int(digits))
    return _present()


def _present() -> Gpu | None:
    import torch

    try:
        gpu = present_gpus()[torch.cuda.current_device()]
    except BackendUnavailableError:
        return None
    if gpu.arch < OLDEST:
        return None
    return replace(gpu, arch=_NEWEST if gpu.arch >= _NEWEST else OLDEST)
