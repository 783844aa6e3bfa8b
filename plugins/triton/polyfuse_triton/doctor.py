"""What `polyfuse doctor` says of the GPUs, of Triton, and of what turns its programs into running kernels."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from polyfuse.base.errors import PolyfuseError
from polyfuse.base.folders import writable_root
from polyfuse.base.settings import Settings
from polyfuse.plugin import Finding, Source
from polyfuse_triton.build.meta import KernelMeta, MetaArg
from polyfuse_triton.target import Target, driver_major, targets_of

_TRIAL = f"""@triton.jit
def {Source.SYMBOL}(out0):
    tl.store(out0, tl.program_id(0))
"""


def findings(settings: Settings) -> list[Finding]:
    """Versions, targets, and a trial of each step that a kernel goes through before it is launched."""
    try:
        version = metadata.version("triton")
    except metadata.PackageNotFoundError:
        return [Finding("triton", True, "not installed", "run pip install 'polyfuse[triton]'")]
    found = [Finding("triton", True, version)]
    driver = driver_major()
    found.append(Finding("driver", True, f"for CUDA {driver}" if driver else "none"))
    try:
        targets = targets_of(settings)
    except PolyfuseError as error:
        # not having a GPU is a fact about the machine, not an illness
        return [*found, Finding("targets", True, error.cause, error.fix)]
    names = ", ".join(
        f"{t.name} ({t.model or 'no GPU'}, {t.multiprocessors} multiprocessors)" for t in targets
    )
    found.append(Finding("targets", True, names))
    return [*found, *_assemblers(targets, driver), _trial_build(targets, driver), _launcher(settings)]


def _assemblers(targets: tuple[Target, ...], driver: int) -> Iterator[Finding]:
    from polyfuse_triton.build.assembler import choose_assembler

    for target in targets:
        try:
            tool = choose_assembler(target.arch, driver)
        except PolyfuseError as error:
            yield Finding("assembler", False, f"for {target.name}: {error.cause}", error.fix)
        else:
            yield Finding("assembler", True, f"for {target.name}: {tool.version} at {tool.path}")


def _trial_build(targets: tuple[Target, ...], driver: int) -> Finding:
    from polyfuse_triton.build.toolchain import build

    meta = KernelMeta((MetaArg("out0", "ptr", "*i32"),), (), num_warps=1, num_stages=1, grid=(1, 1, 1))
    archs = [target.arch for target in targets]
    try:
        with tempfile.TemporaryDirectory(prefix="polyfuse-doctor-") as folder:
            trial = Source("a trial kernel", _TRIAL, "triton", meta=meta.text())
            build([trial], Path(folder), {"archs": archs, "driver": driver, "debug": False})
    except PolyfuseError as error:
        return Finding("trial build", False, error.cause, error.fix)
    return Finding("trial build", True, f"a kernel was compiled for {', '.join(t.name for t in targets)}")


def _launcher(settings: Settings) -> Finding:
    from polyfuse_triton.launch.native import build_library, library_path

    path = library_path(writable_root(settings))
    try:
        build_library(path)
    except PolyfuseError as error:
        return Finding("launcher", False, f"the slow one: {error.cause}", "install g++, or name one in CXX")
    return Finding("launcher", True, str(path))
