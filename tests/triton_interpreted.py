"""The Triton backend with Triton's interpreter in place of a GPU: the same text, run on the CPU.

`TRITON_INTERPRET` must be set before Triton is imported, so what uses this runs in a process of its own:
`in_interpreter(function, ...)` calls a function of a module there.
"""

from __future__ import annotations

import atexit
import inspect
import linecache
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import cache
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from polyfuse.base.errors import KernelBuildError
from polyfuse.base.settings import Settings
from polyfuse.plugin import Claim, Launchable, Source, Yes
from polyfuse_triton.backend import TritonBackend
from polyfuse_triton.build.meta import WORKSPACE, KernelMeta
from polyfuse_triton.build.pipeline import HEADER
from polyfuse_triton.target import known_target

_LOCK = threading.Lock()
"""The interpreter replaces parts of Triton while it runs."""


class InterpretedTriton(TritonBackend):
    """Kernels for an H200, interpreted."""

    name = "triton"
    worker = ""

    def __init__(self, settings: Settings) -> None:
        super(TritonBackend, self).__init__(settings)
        self.targets = (known_target("sm_90"),)

    def build(self, sources: Sequence[Source], folder: Path) -> None:
        for source in sources:
            text = source.rendered()
            try:
                compile(text, source.name, "exec")
            except SyntaxError as error:
                raise KernelBuildError(f"{source.name} is malformed: {error}", output=text) from error
            (folder / f"{source.key}.py").write_text(text)
            (folder / f"{source.key}.json").write_text(source.meta)

    def load(self, folder: Path) -> Mapping[str, Launchable]:
        return {
            path.stem: _launcher(path.read_text(), KernelMeta.parse(path.with_suffix(".json").read_text()))
            for path in sorted(folder.glob("*.py"))
        }

    def review(self, folder: Path, key: str) -> Claim:
        """The interpreter has no registers that could be too few."""
        return Yes()

    def synchronize(self) -> None:
        pass

    def describe(self) -> Mapping[str, str]:
        return {"interpreted": "1"}


@cache
def _spare() -> None:
    """Do once what the interpreter does at each launch: look through Triton's language for the functions that
    it replaces, replace them, and put them back. And leave out whether an integer overflows: it computes
    that in 64 bits, in six operations of its own, for a message that it gives to those who debug alone.
    """
    from triton.language import core
    from triton.runtime import interpreter

    @cache
    def replaced(owner: object) -> list[tuple[str, Any]]:
        return [(name, member) for name, member in inspect.getmembers(owner) if core.is_builtin(member)]

    plain = interpreter._get_np_dtype
    known = cache(plain)  # it makes a table for each answer
    interpreter._get_np_dtype = lambda kind: (known if type(kind) is core.dtype else plain)(kind)
    interpreter.inspect = SimpleNamespace(**{**vars(inspect), "getmembers": replaced})  # type: ignore
    if hasattr(interpreter, "_LangPatchScope"):  # nothing else uses the language in this process
        interpreter._patch_lang = _for_good(interpreter._patch_lang)
    semantic = getattr(interpreter, "interpreter_semantic", None)
    if hasattr(semantic, "binary_op_sanitize_overflow_impl"):
        semantic.binary_op_sanitize_overflow_impl = lambda *_: None


def _for_good(patch: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """What replaces the parts of the language that a function sees, and leaves them replaced."""
    from triton import language

    seen: set[tuple[bool, ...]] = set()
    functions: set[Any] = set()
    nothing = SimpleNamespace(restore=lambda: None)

    def patched(function: Any) -> Any:
        if function in functions:
            return nothing
        modules = [value for value in function.__globals__.values() if inspect.ismodule(value)]
        parts = tuple(part in modules for part in (language, language.core))
        if parts not in seen:
            patch(function)
            seen.add(parts)
        functions.add(function)
        return nothing

    return patched


def _launcher(text: str, meta: KernelMeta) -> Launchable:
    _spare()
    filename = f"<interpreted {hash(text)}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    names: dict[str, Any] = {}
    exec(compile(HEADER, "<header>", "exec"), names)
    exec(compile(text, filename, "exec"), names)
    symbol = [n for n in names if n.startswith("k_")][-1]  # behind the functions that it calls

    def launch(*operands: object) -> None:
        import torch
        from torch.utils._python_dispatch import _disable_current_modes

        sizes = {a.name: o for a, o in zip(meta.args, operands, strict=True) if a.kind == "size"}
        *grid, words = (
            eval(str(g), {"min": min, "max": max}, dict(sizes)) for g in (*meta.grid, meta.zeroed)
        )
        shared = {WORKSPACE: torch.zeros(words, dtype=torch.int64)} if meta.zeroed else {}
        programs = (grid[0] * meta.cluster, *grid[1:])
        constants = dict(meta.constexprs)
        # torch watches the first run of a compiled graph, and would each operator that the interpreter calls
        with _LOCK, _disable_current_modes():
            if all(grid) and meta.cluster > 1:
                # One program after the other: none waits, and what all have stored is read the next time.
                # What follows from it takes once more.
                for _ in range(text.count("wait_for(")):
                    trial = [o.clone() if isinstance(o, torch.Tensor) else o for o in operands]
                    with _without_waiting():
                        names[symbol][programs](*trial, **shared, **constants)
            if all(grid):
                names[symbol][programs](*operands, **shared, **constants)

    return launch


@contextmanager
def _without_waiting() -> Iterator[None]:
    """Programs read what others have stored by now."""
    from polyfuse_triton.device import chains
    from triton_glancing import glanced

    usual, chains._awaited = chains._awaited, glanced
    try:
        yield
    finally:
        chains._awaited = usual


@cache
def _pool() -> ProcessPoolExecutor:
    pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _begin)
    atexit.register(pool.shutdown)
    return pool


def _begin() -> None:
    import torch

    import torch_costs

    os.environ["TRITON_INTERPRET"] = "1"
    torch.set_num_threads(1)
    torch_costs.collect_seldom()


def in_interpreter(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function in the process where Triton interprets; what it draws, no other call decides."""
    return _pool().submit(_seeded, function, args).result()


def _seeded(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    import seeding
    import torch_costs

    torch_costs.spare()
    seeding.begin(f"{function.__name__} {args}")
    return function(*args)


# --- what tests call there ----------------------------------------------------------------------------------


def kit_faults(group: str, quick: bool, planted: bool = False, every: int = 1) -> list[str]:
    """Cells of a part of the conformance kit that do not pass; `planted`: of a backend that takes any pair of
    arguments for one memory as if they were apart. Of the cases, every so-manieth.
    """
    from polyfuse.testing.cases import alias, large, memory, reduction, scalar, section
    from polyfuse.testing.conformance import Run

    makers = {
        "scalar": scalar.scalar_cases,
        "reduction": reduction.reduction_cases,
        "memory": memory.memory_cases,
        "section": section.section_cases,
        "large": large.large_cases,
        "alias": alias.alias_cases,
    }
    run = Run(InterpretedTriton(Settings()), quick=quick)
    cases = [c for c in makers[group](quick) if not planted or c.kernel.name == "activation_and_norm"][
        ::every
    ]
    with _careless() if planted else nullcontext():
        matrix = run.matrix(cases[::every], contract=group == "section")
    assert matrix.cells
    # types that another maker's chips have
    known = (c for c in matrix.cells if c.status != "refused" or "fnuz" not in c.label)
    return [f"{c.label}: {c.status}: {c.reason}" for c in known if c.status != "pass"]


@contextmanager
def _careless() -> Iterator[None]:
    """No pair is refused, and nothing is stored later."""
    from polyfuse_triton import codegen
    from polyfuse_triton.loops import kernel

    usual = codegen.refused_aliases, kernel.with_late_stores
    codegen.refused_aliases = lambda kernel, plan: ()  # type: ignore[assignment]
    kernel.with_late_stores = lambda kernel: kernel  # type: ignore[assignment]
    try:
        yield
    finally:
        codegen.refused_aliases, kernel.with_late_stores = usual  # type: ignore[assignment]


def text_of(text: str, values: tuple[tuple[str, int], ...]) -> tuple[str, tuple[Any, ...]]:
    """The text of a kernel in a configuration, and the pairs that it refuses."""
    from polyfuse.ir.text.parse import parse_kernel
    from polyfuse.ir.verifier.verify import verify_kernel
    from polyfuse.plugin import Config

    kernel = parse_kernel(text)
    verify_kernel(kernel)
    found = InterpretedTriton(Settings()).emit(kernel, Config(values))
    return found.text, found.refused_aliases


def result_and_norm_faults(dtype: str, rows: int, numerics: str) -> list[str]:
    """What is wrong with a result and its normalisation, where the result lies over what it is made of."""
    import torch
    from torch.nn import functional as F

    from polyfuse.compiler.reports.report import last_reports, reset_reports

    offer()
    torch._dynamo.reset()
    reset_reports()
    torch.manual_seed(0)
    shapes = ((384, 16), (16, rows), (rows, 384), (384,), (384,))
    given = [torch.randn(shape).to(getattr(torch, dtype)) for shape in shapes]

    def function(w: Any, x: Any, p: Any, g: Any, c: Any) -> Any:
        y = F.gelu(torch.mm(w, x)).t() + p
        return y, F.layer_norm(y, (384,), g, c)

    options = {"backends": "interpreted", "numerics": numerics}
    found = torch.compile(function, backend="polyfuse", options=options)(*given)
    truth, eager = function(*(t.double() for t in given)), function(*given)
    faults: list[str] = []
    for name, got, plain, wanted in zip(("result", "norm"), found, eager, truth, strict=True):
        off, usual = (float((t.double() - wanted).abs().max()) for t in (got, plain))
        if off > 2 * usual:
            faults.append(f"{name}: off by {off}, where eager mode is by {usual}")
    kinds = [d.kind for report in last_reports() for d in report.decisions]
    if kinds.count("inplace") != 1 or "unaliased" in kinds:
        faults.append("the result does not take the memory of what it is made of")
    return faults


def narrow_weight_faults(dtype: str, rows: int) -> list[str]:
    """What is wrong with a layer whose 8-bit weight is read as it is stored."""
    import torch
    from torch.nn import functional as F

    from polyfuse.compiler.reports.report import last_reports, reset_reports

    offer()
    torch._dynamo.reset()
    reset_reports()
    torch.manual_seed(0)
    x, scale = (torch.randn(shape).to(getattr(torch, dtype)) for shape in ((rows, 96), (80, 1)))
    weight = torch.randint(-128, 128, (80, 96), dtype=torch.int8)

    def function(x: Any, w: Any, scale: Any) -> Any:
        return F.silu(F.linear(x, w.to(x.dtype) * scale))

    found = torch.compile(function, backend="polyfuse", options={"backends": "interpreted"})(x, weight, scale)
    truth, eager = function(x.double(), weight, scale.double()), function(x, weight, scale)
    off, usual = (float((t.double() - truth).norm() / truth.norm()) for t in (found, eager))
    faults = [f"off by {off}, where eager mode is by {usual}"] if off > 2 * usual + 1e-6 else []
    (report,) = last_reports()
    if report.calls or report.kernels != 1:
        faults.append(f"{report.kernels} kernels and the calls {report.calls} instead of one kernel")
    return faults


def tiling_faults(group: str, seed: int) -> list[str]:
    """Some cases of the kit, each with a tiling chosen at random, whose results are wrong."""
    import random
    import tempfile

    from polyfuse.base.errors import UnsupportedError
    from polyfuse.plugin import Config
    from polyfuse.testing.cases import memory, reduction, section
    from polyfuse.testing.launch import check

    makers = {
        "memory": memory.memory_cases,
        "reduction": reduction.reduction_cases,
        "section": section.section_cases,
    }
    backend, choose = InterpretedTriton(Settings()), random.Random(seed)
    faults: list[str] = []
    cases = list(makers[group](True))
    for case in choose.sample(cases, min(24, len(cases))):
        config = Config.of(
            x=choose.choice([0, 1, 2, 16, 64]),
            y=choose.choice([0, 1, 8]),
            r=choose.choice([0, 4, 16, 64]),
            rows=choose.choice([0, 1, 2, 3]),
        )
        try:
            source = backend.emit(case.kernel, config)
        except UnsupportedError:
            continue
        with tempfile.TemporaryDirectory() as name:
            backend.build([source], Path(name))
            found = check(case, backend.load(Path(name))[source.key], backend)
        faults += [f"{case.kernel.name} with {config}: {fault}" for fault in found.values()]
    return faults


def whole_path_faults(names: Sequence[str]) -> list[str]:
    """Functions of the benchmark set, compiled with this backend for the CPU, that differ from eager mode."""
    import copy
    import warnings

    import torch
    from polyfuse_bench.kernels import KERNELS, runner

    offer()
    faults: list[str] = []
    for name in names:
        case = KERNELS[name]
        torch._dynamo.reset()
        arguments = case.arguments("small")
        compiled = torch.compile(case.function, backend="polyfuse", options={"backends": "interpreted"})
        results = []
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always", UserWarning)
            for function in (compiled, case.function):
                given = copy.deepcopy(arguments)
                torch.manual_seed(7)
                found = runner(case, function, given)()
                results.append(torch.utils._pytree.tree_leaves(given if case.mutates else found))
        faults += [f"{name}: {w.message}" for w in seen if "polyfuse" in str(w.message)]
        for got, wanted in zip(*results, strict=True):
            near = 2e-2 if wanted.dtype is torch.bfloat16 else 1e-4
            if not torch.allclose(got.double(), wanted.double(), near, near, equal_nan=True):
                faults.append(f"{name}: off by {(got.double() - wanted.double()).abs().max()}")
    return faults


def gradient_faults(rows: int, columns: int) -> list[str]:
    """Gradients of a normalisation and of a bias, compiled with this backend for the CPU, that are wrong."""
    import torch
    from torch.nn import functional as F

    from polyfuse.compiler.reports.report import last_reports, reset_reports

    offer()
    faults: list[str] = []
    x, w, b = torch.randn(rows, columns), torch.randn(columns), torch.randn(columns)
    weight = torch.randn(rows, columns)
    for name, function in (
        ("layer norm", lambda x, w, b: F.layer_norm(x, (columns,), w, b)),
        ("rms norm", lambda x, w, b: F.rms_norm(x, (columns,), w) + b),
    ):
        torch._dynamo.reset()
        reset_reports()
        options = {"backends": "interpreted"}
        compiled = torch.compile(function, backend="polyfuse", options=options)
        results = []
        for call in (compiled, function):
            given = [t.clone().requires_grad_() for t in (x, w, b)]
            results.append(torch.autograd.grad(call(*given), given, weight))
        for got, wanted in zip(*results, strict=True):
            if not torch.allclose(got, wanted, 1e-3, 1e-3):
                faults.append(f"{name}: off by {(got - wanted).abs().max()}")
        decisions = [d.reason for report in last_reports() for d in report.decisions]
        if "columns are added up in the kernel that reads the rows" not in decisions:
            faults.append(f"{name}: the sums have a kernel of their own")
    return faults


def size_faults(name: str) -> list[str]:
    """What is wrong with a function that is compiled once and called with 14 sizes."""
    import torch

    import polyfuse

    offer()
    polyfuse.reset()
    torch._dynamo.utils.counters.clear()
    torch.manual_seed(0)
    functions = {
        "softmax": (lambda x: torch.softmax(x, -1), lambda n: (3, n)),
        "column sums": (lambda x: (x * 2).sum(0), lambda n: (n, 5)),
        "transposed": (lambda x: (x.t() + 1).contiguous(), lambda n: (n, 20)),
    }
    function, shape = functions[name]
    options = {"backends": "interpreted", "graph_cache": False}
    compiled = torch.compile(function, backend="polyfuse", dynamic=True, options=options)
    faults: list[str] = []
    for n in (40, 2, 3, 5, 16, 17, 48, 64, 65, 100, 128, 144, 300, 1):
        x = torch.randn(shape(n))
        try:
            torch.testing.assert_close(compiled(x), function(x), rtol=1e-4, atol=1e-4)
        except AssertionError as error:
            faults.append(f"{n}: {error}")
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    programs = polyfuse.metrics().programs
    # by ranges up to 16, 32, 64, 128, 256, 512, and multiples of 16 in six of them; and one of size 1
    if graphs != 2 or programs != 10:
        faults.append(f"{graphs} graphs and {programs} programs")
    return faults


@cache
def offer() -> None:
    """Let new sessions find this backend under the name `interpreted`."""
    import sys
    from dataclasses import replace
    from types import ModuleType

    import fake_plugins
    from polyfuse.plugin import Lowering, hookimpl
    from polyfuse.plugin.session import discovery, manager
    from polyfuse_triton import template
    from polyfuse_triton.attention.lowering import without_bias
    from polyfuse_triton.flex import lowering
    from polyfuse_triton.sort import kernel as sorting

    manifest = replace(
        fake_plugins.MANIFEST,
        name="interpreted",
        load="triton_interpreted:InterpretedTriton",
        options={},
        priority={"cpu": 1000},
    )

    @hookimpl
    def polyfuse_manifest() -> object:
        return manifest

    @hookimpl
    def polyfuse_lowerings(device_type: str) -> Mapping[str, object]:
        few = {
            "aten._scaled_dot_product_flash_attention_for_cpu.default": Lowering(without_bias, library=True)
        }
        return {**lowering.LOWERINGS, **sorting.LOWERINGS, **few}

    template.load_source = _interpreted  # type: ignore[assignment]
    module = ModuleType("fake_interpreted_manifest")
    module.polyfuse_manifest = polyfuse_manifest  # type: ignore[attr-defined]
    module.polyfuse_lowerings = polyfuse_lowerings  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    point = fake_plugins.entry_point("interpreted", module.__name__, "polyfuse-interpreted")
    everything = [*metadata.entry_points(group=discovery.ENTRY_POINT_GROUP), point]
    find = discovery.find_candidates
    manager.find_candidates = lambda _: find(everything)  # type: ignore[attr-defined]


def _interpreted(source: Source, settings: Settings) -> Launchable:
    """A kernel with a frame of its own, interpreted."""
    return _launcher(source.rendered(), KernelMeta.parse(source.meta))


def run_text(
    text: str, config: object, operands: Sequence[Any], last_cache: int = 0
) -> tuple[list[Any], list[Any], str]:
    """Operands after a kernel has run, interpreted as Triton and by the reference, and its text; for a GPU
    whose last cache has so many bytes, where some are given.
    """
    import tempfile
    from dataclasses import replace

    from polyfuse.ir.interpreter.interpret import run_kernel
    from polyfuse.ir.text.parse import parse

    kernel = parse(text)
    backend = InterpretedTriton(Settings())
    if last_cache:
        backend.targets = tuple(replace(target, l2_bytes=last_cache) for target in backend.targets)
    source = backend.emit(kernel, config)  # type: ignore[arg-type]
    found = [o.clone() if hasattr(o, "clone") else o for o in operands]
    with tempfile.TemporaryDirectory() as name:
        backend.build([source], Path(name))
        backend.load(Path(name))[source.key](*found)
    wanted = [o.clone() if hasattr(o, "clone") else o for o in operands]
    run_kernel(kernel, wanted)
    return found, wanted, source.text


def run_in_groups(
    size: int, text: str, config: object, operands: Sequence[Any]
) -> tuple[list[Any], list[Any], str]:
    """`run_text`, with scans that look back at so many chunks at a time."""
    from polyfuse_triton.reductions import lookback

    usual, lookback._GROUP = lookback._GROUP, size
    try:
        return run_text(text, config, operands)
    finally:
        lookback._GROUP = usual


def list_faults(count: int) -> tuple[list[str], list[tuple[str, str]]]:
    """What is wrong with a function of a list of tensors, and the text and meta of each kernel made of it."""
    import torch

    from polyfuse.compiler.reports.report import last_reports, reset_reports

    offer()
    faults: list[str] = []
    made: list[tuple[str, str]] = []
    emit = InterpretedTriton.emit

    def noting(self: Any, kernel: Any, config: Any = None) -> Source:
        found = emit(self, kernel, config)
        made.append((found.text, found.meta))
        return found

    xs = [torch.randn(30, 5) for _ in range(count)]

    def step(xs: list[torch.Tensor]) -> list[torch.Tensor]:
        return torch._foreach_mul(torch._foreach_add(xs, 1.0), 0.5)

    torch._dynamo.reset()
    reset_reports()
    InterpretedTriton.emit = noting  # type: ignore[method-assign]
    try:
        found = torch.compile(step, backend="polyfuse", options={"backends": "interpreted"})(xs)
    finally:
        InterpretedTriton.emit = emit  # type: ignore[method-assign]
    for got, wanted in zip(found, step(xs), strict=True):
        if not torch.equal(got, wanted):
            faults.append(f"{tuple(got.shape)}: off by {(got - wanted).abs().max()}")
    launches = sum(len(report.launches) for report in last_reports())
    if launches != 1:
        faults.append(f"{launches} launches")
    return faults, made


def index_faults(names: Sequence[str]) -> list[str]:
    """Functions of the table of indices, compiled with this backend for the CPU, that do not raise what eager
    mode raises for indices out of range, or are not right before and after."""
    import torch

    from index_cases import CASES

    offer()
    faults: list[str] = []
    for name in names:
        case = CASES[name]
        torch._dynamo.reset()
        compiled = torch.compile(case.function, backend="polyfuse", options={"backends": "interpreted"})
        for wrong in (None, case.low, None, case.high, None):
            kinds = []
            for function in (compiled, case.function):
                try:
                    kinds.append(function(*case.arguments(wrong)))
                except Exception as error:
                    kinds.append(error)
            found, wanted = kinds
            if isinstance(wanted, Exception):
                if type(found) is not type(wanted):
                    faults.append(f"{name} with {wrong}: {found!r} instead of {wanted!r}")
            elif isinstance(found, Exception) or not torch.allclose(
                found, wanted, 1e-4, 1e-4, equal_nan=True
            ):
                faults.append(f"{name} with {wrong}: {found!r} instead of {wanted}")
    return faults
