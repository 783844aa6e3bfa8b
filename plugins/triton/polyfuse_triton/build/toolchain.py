"""Building kernels: from sources to a folder of machine code. Runs in a build worker, without a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from polyfuse.base.errors import KernelBuildError
from polyfuse.base.process import library_errors
from polyfuse.base.settings import environment
from polyfuse.plugin import Source
from polyfuse_cuda.gpu import known_gpu
from polyfuse_triton.build.artifact import Artifact, Variant, entry_name, write_unit
from polyfuse_triton.build.meta import KernelMeta, MetaArg

_TRIAL = """@triton.jit
def trial(out0):
    tl.store(out0, tl.erf(tl.load(out0)))
"""


def warm_up(options: Mapping[str, Any]) -> None:
    """Compile something, so that what Triton loads and looks up at first is there when a kernel comes."""
    from polyfuse_triton.build.pipeline import compile_kernel, function_of

    meta = KernelMeta((MetaArg("out0", "ptr", "*fp32"),), (), num_warps=1, num_stages=1, grid=(1, 1, 1))
    compile_kernel(function_of(_TRIAL, "trial"), meta, options["archs"][0], int(options["driver"]), False)


def build_in_worker(sources: Sequence[Source], folder: Path, options: Mapping[str, Any]) -> None:
    """`build` in a process of its own: the words of Triton's passes, which go to the process's error stream,
    become part of the error.
    """
    with library_errors():
        build(sources, folder, options)


def build(sources: Sequence[Source], folder: Path, options: Mapping[str, Any]) -> None:
    """Compile each source for each architecture.

    Args:
        sources: kernels as Triton functions, with `KernelMeta` as their meta.
        folder: to fill.
        options: `archs`, compute capabilities as numbers; `driver`, the major version of CUDA that the driver
            supports, or 0; `debug`, whether to keep PTX and line numbers.

    Raises:
        KernelBuildError: a kernel cannot be compiled, or Triton is set to interpret.
    """
    if environment("TRITON_INTERPRET", "0").lower() in ("1", "true", "yes", "on", "y"):
        raise KernelBuildError(
            "TRITON_INTERPRET is set, and Triton then compiles nothing", "unset it", name=sources[0].name
        )
    import triton

    made = [_build_one(source, folder, options) for source in {s.key: s for s in sources}.values()]
    write_unit(folder, made, f"triton {triton.__version__}")


def _build_one(source: Source, folder: Path, options: Mapping[str, Any]) -> Artifact:
    from polyfuse_triton.build.pipeline import compile_kernel, function_of

    symbol, meta = entry_name(source), KernelMeta.parse(source.meta)
    text = source.text.replace(Source.SYMBOL, symbol)
    variants: list[Variant] = []
    for arch in options["archs"]:
        stem = f"{source.key}.sm_{arch}"
        try:
            function = function_of(text, symbol)
            made = compile_kernel(function, meta, arch, int(options["driver"]), bool(options["debug"]))
        except KernelBuildError:
            raise
        except Exception as error:
            raise _as_build_error(error, source, arch) from error
        limit = known_gpu(arch).shared_bytes
        if made.shared_bytes > limit:
            raise KernelBuildError(
                f"kernel {source.name} needs {made.shared_bytes} bytes of shared memory, and sm_{arch} has "
                f"{limit}",
                "use smaller blocks or fewer stages",
                name=source.name,
            )
        (folder / f"{stem}.cubin").write_bytes(made.code)
        if options["debug"]:
            (folder / f"{stem}.ptx").write_text(made.ptx, encoding="utf-8")
        variants.append(
            Variant(
                arch=arch,
                file=f"{stem}.cubin",
                shared_bytes=made.shared_bytes,
                num_warps=made.num_warps,
                registers=made.registers,
                spilled_bytes=made.spilled_bytes,
                scratch_bytes=made.scratch_bytes,
                scratch_align=made.scratch_align,
                starts_early=made.starts_early,
            )
        )
    if options["debug"]:
        (folder / f"{source.key}.py").write_text(text, encoding="utf-8")
    return Artifact(source.key, source.name, symbol, meta, tuple(variants))


def _as_build_error(error: Exception, source: Source, arch: int) -> KernelBuildError:
    """What Triton raised, as an error that shows the command it ran, if any, and the text it was given."""
    words = str(error)
    command: list[str] = []
    if "Repro command:" in words:
        words, _, rest = words.partition("Repro command:")
        command = rest.split()
    cause = words.strip().splitlines()
    return KernelBuildError(
        f"Triton could not compile kernel {source.name} for sm_{arch} ({type(error).__name__}: "
        f"{cause[-1] if cause else 'no reason given'})",
        "the output below says why",
        command=command,
        output=f"{words}\n{source.text}",
        name=source.name,
    )
