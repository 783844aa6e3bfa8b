"""A dumped graph or kernel, compiled again and run beside the interpreter on random inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from polyfuse.base.config import Config
from polyfuse.base.errors import IRError, PolyfuseError, UnsupportedError
from polyfuse.base.names import plain_word
from polyfuse.base.settings import Settings
from polyfuse.checking import tally
from polyfuse.checking.compare import agree, mismatch
from polyfuse.checking.launch import CheckResult, check_launch
from polyfuse.checking.operands import layout_of
from polyfuse.checking.repro import CallRepro, read_call, read_repro
from polyfuse.compiler.reports.clock import Clock
from polyfuse.compiler.reports.dump import Dump
from polyfuse.compiler.session import CompileSession, session_for
from polyfuse.compiler.stages import compile_graph
from polyfuse.ir.graph import Graph
from polyfuse.ir.interpreter.interpret import run_graph
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.nodes import ExternCall
from polyfuse.ir.text.parse import parse, parse_kernel
from polyfuse.plugin import Backend
from polyfuse.schedule import UnclaimedError, claim_nodes
from polyfuse.symbolic import IndexLike, evaluate
from polyfuse.torch_compat import ops

_TOLERANCES = {torch.float64: 1e-8, torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 3e-3}
_UNKNOWN_SIZE = 16
"""The value of a size for which the text gives no example."""


@dataclass(frozen=True)
class Difference:
    """How one buffer or result differs from the interpreter's; `problem` is empty if it does not."""

    name: str
    problem: str


def replay(text: str, session: CompileSession, seed: int = 0) -> tuple[Difference, ...]:
    """Compile the graph or kernel that a text describes, run it and the interpreter, and compare.

    Raises:
        ParseError: the text is malformed.
        UnsupportedError: what is needed to run it is not in the text.
    """
    item = parse(text)
    if isinstance(item, Kernel):
        return _replay_kernel(item, session, seed)
    if isinstance(item, Graph):
        return _replay_graph(item, session, seed)
    raise UnsupportedError(f"the text describes a {type(item).__name__}; give a graph or a kernel")


def replay_launch(path: Path) -> tuple[str, str]:
    """Generate and build a kernel as a file of `polyfuse.checking.repro` says, and launch it beside the
    interpreter.

    Returns:
        What was found when the file was written, and how the kernel differs now; empty where it agrees.
    """
    call = read_call(path)
    if call is not None:
        return call.about, _called_again(call)
    device = parse_kernel(read_repro(path).kernel).device
    held = read_repro(path, device)
    kernel = parse_kernel(held.kernel)
    session = session_for(Settings.resolve(None, {**held.options, "strict": True}))
    backend = session.plugins.backend(held.backend)
    config = Config.parse(held.config) if held.config else None
    operands: Sequence[Any] = held.operands or _operands(kernel, 0, True)
    operands = [
        o.view(a.dtype.torch) if isinstance(o, Tensor) else o
        for a, o in zip(kernel.args, operands, strict=True)
    ]
    found = _launched(kernel, backend, config, session, operands)
    return held.about, found.problem or (f"it could not be checked: {found.unknown}" if found.unknown else "")


def _called_again(call: CallRepro) -> str:
    """How a call of a kernel that is written by hand differs now; empty where it agrees."""
    function = ops.resolve(call.operator)
    options = {**call.options, "check": "first", "graph_cache": False}
    tensors = [value for value in call.args if isinstance(value, Tensor)]

    def compute(*given: Tensor) -> Any:
        rest = iter(given)
        args = [next(rest) if isinstance(value, Tensor) else value for value in call.args]
        return function(*args, **call.kwargs)

    tally.begin(forget=True)
    try:
        with torch.no_grad():
            torch.compile(compute, backend="polyfuse", options=options)(*tensors)
        found = tally.result()
    finally:
        tally.begin(forget=False)
    if found.findings:
        return found.findings[0].problem
    return "" if found.kernels else f"it could not be checked: {call.plugin} has no kernel for it here"


def _launched(
    kernel: Kernel, backend: Backend, config: Config | None, session: CompileSession, operands: Sequence[Any]
) -> CheckResult:
    """Build a kernel, and launch it beside the interpreter."""
    source = backend.emit(kernel, config)
    outcome = session.pool.submit(backend, [source], session.store).outcomes()[source.key]
    if isinstance(outcome, PolyfuseError):
        raise outcome
    layout = layout_of(kernel, operands)
    assert layout is not None
    return check_launch(kernel, outcome, operands, layout, backend.synchronize)


def _replay_graph(graph: Graph, session: CompileSession, seed: int) -> tuple[Difference, ...]:
    held = [n.op for n in graph.nodes if isinstance(n, ExternCall) and n.op.startswith("object.")]
    if held:
        raise UnsupportedError(
            f"the graph calls {held[0]}, which its text does not hold; replay its kernels one by one"
        )
    for buffer in graph.buffers.values():
        # the program prints it as it is
        if not isinstance(getattr(torch, buffer.torch_dtype, None), torch.dtype):
            raise UnsupportedError(f"{buffer.torch_dtype[:80]!r} is no type of elements")
    graph = replace(graph, name=plain_word(graph.name))
    sizes = dict(graph.symbol_hints)
    graph = replace(graph, objects={**graph.objects, **_constants(graph, sizes, seed)})
    for small in (False, True):
        inputs = _graph_inputs(graph, sizes, seed, small)
        truth = [_copy(x) for x in inputs]
        try:
            torch.manual_seed(seed)
            wanted = run_graph(graph, truth)
            break
        except (IRError, IndexError, RuntimeError):
            if small:
                raise
    claims = claim_nodes(graph, session.backends, session.settings)
    if claims.refused:
        raise UnclaimedError(claims.refused)
    built = compile_graph(claims, session, Dump.open(session.settings, graph.name), Clock())
    mine = [_copy(x) for x in inputs]
    torch.manual_seed(seed)
    found = built.module(list(mine))
    pairs = [(f"result {i}", a, b) for i, (a, b) in enumerate(zip(found, wanted, strict=True))]
    names = [item.name for item in graph.inputs]
    changed = graph.mutated_inputs()
    pairs += [(f"input {n}", a, b) for n, a, b in zip(names, mine, truth, strict=True) if n in changed]
    return tuple(Difference(name, _difference(a, b)) for name, a, b in pairs)


def _replay_kernel(kernel: Kernel, session: CompileSession, seed: int) -> tuple[Difference, ...]:
    backends = session.plugins.backends(kernel.device)
    if not backends:
        raise PolyfuseError(f"no backend works for {kernel.device}", "run polyfuse backends to see why")
    for small in (False, True):
        found = _launched(kernel, backends[0], None, session, _operands(kernel, seed, small))
        if not found.unknown:
            return (Difference(kernel.name, found.problem),)
    raise PolyfuseError(
        f"kernel {kernel.name} cannot be compared ({found.unknown})", "report it with its text"
    )


def _operands(kernel: Kernel, seed: int, small: bool) -> list[Any]:
    sizes = {a.name: a.hint or _UNKNOWN_SIZE for a in kernel.args if a.kind == "size"}
    operands: list[Any] = []
    for number, arg in enumerate(kernel.args):
        if arg.kind == "size":
            operands.append(sizes[arg.name])
        else:
            made = _random(_value(arg.numel or 0, sizes), arg.dtype.torch, seed + number, small)
            operands.append(made.to(kernel.device))
    return operands


def _constants(graph: Graph, sizes: Mapping[str, int], seed: int) -> dict[str, Tensor]:
    return {
        b.name: _tensor(
            b.size, b.stride, getattr(torch, b.torch_dtype), sizes, seed + 100 + i, True, b.device
        )
        for i, b in enumerate(graph.buffers.values())
        if b.kind == "constant"
    }


def _graph_inputs(graph: Graph, sizes: Mapping[str, int], seed: int, small: bool) -> list[Any]:
    inputs: list[Any] = []
    for i, item in enumerate(graph.inputs):
        buffer = graph.buffers.get(item.name)
        if item.kind == "symint":
            inputs.append(_value(item.value or 0, sizes))
        elif item.kind != "tensor" or buffer is None:
            inputs.append(None)
        else:
            dtype = getattr(torch, buffer.torch_dtype)
            inputs.append(_tensor(buffer.size, buffer.stride, dtype, sizes, seed + i, small, buffer.device))
    return inputs


def _tensor(
    size: Sequence[IndexLike],
    stride: Sequence[IndexLike],
    dtype: torch.dtype,
    sizes: Mapping[str, int],
    seed: int,
    small: bool,
    device: str,
) -> Tensor:
    shape, steps = [_value(n, sizes) for n in size], [_value(n, sizes) for n in stride]
    count = 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, steps, strict=True))
    return _random(count, dtype, seed, small).to(device).as_strided(shape, steps)


def _value(index: IndexLike, sizes: Mapping[str, int]) -> int:
    if isinstance(index, int):
        return index
    from polyfuse.symbolic import free_symbols

    return evaluate(index, {name: sizes.get(name, _UNKNOWN_SIZE) for name in free_symbols(index)})


def _random(count: int, dtype: torch.dtype, seed: int, small: bool) -> Tensor:
    """Random contents; integers are small, as they may be indices, or zero where 1 is too large."""
    made = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(count, generator=made).to(dtype)
    return torch.randint(0, 1 if small else 2, (count,), generator=made).to(dtype)


def _copy(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    copy = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return copy.copy_(value)


def _difference(found: Any, wanted: Any) -> str:
    if not isinstance(wanted, Tensor) or not isinstance(found, Tensor):
        return "" if found == wanted else f"{found!r} instead of {wanted!r}"
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return f"{found.dtype} {tuple(found.shape)} instead of {wanted.dtype} {tuple(wanted.shape)}"
    if wanted.is_complex():
        found, wanted = torch.view_as_real(found), torch.view_as_real(wanted)
    tolerance = _TOLERANCES.get(wanted.dtype, 0.0)
    # sums of many terms are as exact as their largest ones
    size = wanted.double().abs().nan_to_num(0.0, 0.0)
    scale = max(1.0, float(size.max())) if size.numel() else 1.0
    allowed = tolerance * (size + scale)
    return str(mismatch("", found, wanted, allowed, agree(found, wanted, allowed, False)) or "")
