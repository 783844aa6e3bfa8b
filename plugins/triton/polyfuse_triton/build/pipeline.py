"""One kernel from text to machine code, by Triton's compiler without its cache.

Triton's own `compile` keeps every stage in a disk cache of its own, and hashes its 500 MB library once in
each process to address it. Kernels have their keys from the core here, so the stages are called directly.
Only build workers import this: it imports Triton.
"""

from __future__ import annotations

import contextlib
import io
import linecache
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

from polyfuse_triton.build.assembler import choose_assembler
from polyfuse_triton.build.meta import WORKSPACE, KernelMeta
from polyfuse_triton.device.packed_int16 import taken_apart
from polyfuse_triton.launch import dependent_launch

_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")


@dataclass(frozen=True)
class Compiled:
    """What the compiler made and said of it."""

    code: bytes
    ptx: str
    shared_bytes: int
    num_warps: int
    registers: int
    spilled_bytes: int
    scratch_bytes: int
    scratch_align: int
    starts_early: bool


def function_of(text: str, symbol: str) -> Any:
    """The Triton function `symbol` that a text defines."""
    filename = f"<polyfuse kernel {symbol}>"
    # Triton reads the text of a function again, through this.
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    names = dict(_header_names())
    exec(compile(text, filename, "exec"), names)
    return names[symbol]


def compile_kernel(function: Any, meta: KernelMeta, arch: int, driver: int, debug: bool) -> Compiled:
    """Compile for one architecture; raises what Triton raises."""
    import triton
    from triton.backends.compiler import GPUTarget

    def after(name: str, made: Any) -> Any:
        if name != "ptx":
            return made
        made = taken_apart(made)
        early = arch >= dependent_launch.OLDEST and not meta.cooperative
        return dependent_launch.waiting(made) if early else made

    with _knobs(triton.knobs, arch, driver, debug):
        staged = through_stages(function, meta, GPUTarget("cuda", arch, 32), _options(meta), after=after)
    results, facts = staged.results, staged.facts
    spills = _SPILLS.search(staged.said)
    registers = _REGISTERS.search(staged.said)
    return Compiled(
        code=results["cubin"],
        ptx=results["ptx"],
        shared_bytes=int(facts["shared"]),
        num_warps=int(facts["num_warps"]),
        registers=int(registers[1]) if registers else 0,
        spilled_bytes=int(spills[1]) + int(spills[2]) if spills else 0,
        scratch_bytes=int(facts["global_scratch_size"]),
        scratch_align=int(facts["global_scratch_align"]),
        starts_early=dependent_launch.is_waiting(results["ptx"]),
    )


@dataclass(frozen=True)
class Staged:
    """What Triton's stages made.

    Attributes:
        results: of each stage, by its name.
        facts: what the stages say of the kernel.
        said: what they printed.
    """

    results: Mapping[str, Any]
    facts: Mapping[str, Any]
    said: str


def through_stages(
    function: Any,
    meta: KernelMeta,
    target: Any,
    options: Mapping[str, Any],
    modules: Mapping[str, ModuleType] | None = None,
    after: Callable[[str, Any], Any] = lambda name, made: made,
) -> Staged:
    """Take a function through all stages of the compiler of a `GPUTarget`; raises what Triton raises.

    Args:
        options: of the compiler.
        modules: what stands for modules that differ from device to device; the target's own by default.
        after: changes what a stage of this name made.
    """
    from triton._C.libtriton import ir
    from triton.compiler import ASTSource, make_backend

    backend = make_backend(target)
    source = ASTSource(function, *_specialised(function, meta))
    parsed = backend.parse_options(dict(options))
    facts: dict[str, Any] = {"target": target, **vars(parsed)}
    stages: dict[str, Any] = {}
    backend.add_stages(stages, parsed, source.language)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    implementations = backend.get_codegen_implementation(parsed)
    modules = backend.get_module_map() if modules is None else modules
    made: Any = source.make_ir(target, parsed, implementations, modules, context)
    results: dict[str, Any] = {}
    said = io.StringIO()
    for name, stage in stages.items():
        with contextlib.redirect_stdout(said):
            made = stage(made, facts)
        made = results[name] = after(name, made)
    return Staged(results, facts, said.getvalue())


@cache
def _header_names() -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "polyfuse_kernel"}
    exec(compile(HEADER, "<polyfuse kernel header>", "exec"), names)
    return names


def _specialised(
    function: Any, meta: KernelMeta
) -> tuple[dict[str, str], dict[tuple[int, ...], Any], dict[tuple[int, ...], Any]]:
    """Types, compile-time values and known divisibility of the parameters, as Triton takes them."""
    types = {arg.name: arg.type for arg in meta.args}
    divisible = [arg.name for arg in meta.args if arg.divisible16]
    if meta.zeroed:
        types[WORKSPACE] = "*i64"
        divisible.append(WORKSPACE)
    constants = dict(meta.constexprs)
    # A parameter that is in neither is a mistake that Triton reports by its position only.
    absent = [name for name in function.arg_names if name not in types and name not in constants]
    if absent:
        raise ValueError(f"the kernel's meta lacks its parameters {', '.join(absent)}")
    paths = {name: (position,) for position, name in enumerate(function.arg_names)}
    return (
        {name: types.get(name, "constexpr") for name in function.arg_names},
        {paths[name]: value for name, value in constants.items()},
        {paths[name]: [["tt.divisibility", 16]] for name in divisible},
    )


def _options(meta: KernelMeta) -> dict[str, Any]:
    return {
        "num_warps": meta.num_warps,
        "num_stages": meta.num_stages,
        "num_ctas": meta.num_ctas,
        "launch_cooperative_grid": meta.cooperative,
        "enable_fp_fusion": meta.fp_fusion,
        # assertions are compiled in; what else comes with them, tests of overflow, is not
        "debug": meta.asserts,
        "sanitize_overflow": False,
        # eager mode keeps numbers below the smallest normal one
        "enable_reflect_ftz": False,
    }


@contextlib.contextmanager
def _knobs(knobs: Any, arch: int, driver: int, debug: bool) -> Iterator[None]:
    with knobs.nvidia.scope(), knobs.compilation.scope():
        knobs.nvidia.dump_ptxas_log = True
        # they take most of the space of a small kernel
        knobs.compilation.disable_line_info = not debug
        tool = choose_assembler(arch, driver)
        # which of the two is used for an architecture differs from version to version
        knobs.nvidia.ptxas = tool.path
        knobs.nvidia.ptxas_blackwell = tool.path
        yield


HEADER = """import triton
import triton.language as tl
from polyfuse_triton.device.functions import *
"""
