"""Kernels of real programs (tests/corpus, written by tools/kernel_corpus.py), replayed by every backend.

The kit's cases are written by hand, one subject each; these are what the scheduler makes of models, with many
subjects in one kernel.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from polyfuse.base.settings import Settings
from polyfuse.compiler.reports.replay import replay
from polyfuse.compiler.session import session_for
from polyfuse.ir.expr import apply, load
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.nodes import Node, Pointwise, Reduction
from polyfuse.ir.statements import Compute, Reduce
from polyfuse.ir.text.parse import parse_kernel
from polyfuse.ir.types import DType
from polyfuse.plugin import Backend, Yes
from polyfuse.symbolic import axis
from requirements import HALIDE, TRITON

KERNELS = sorted((Path(__file__).parents[1] / "corpus").glob("*.ir"))


def claimed(backend: Backend, kernel: Kernel) -> bool:
    """Whether a backend claims nodes with the operations and reductions of a kernel."""
    types: dict[str, DType] = {}
    nodes: list[Node] = []
    for statement in (s for section in kernel.sections for s in section.body):
        types.update(dict.fromkeys(statement.targets, statement.dtype))
        read = tuple(load("x", 0, types[name]) for name in getattr(statement, "args", ()))
        match statement:
            # the second result of a reduction may have another type, that of an index
            case Compute(op=op) if len({x.dtype for x in read[-2:]}) == 1:
                nodes.append(Pointwise("node", (), (), "y", 0, apply(op, *read)))
            case Reduce(kind=kind):
                nodes.append(Reduction("node", (), (axis("r0", 2),), ("y",), 0, kind, read))
    return all(isinstance(backend.claims(node), Yes) for node in nodes)


def faults(backend: str, paths: list[Path]) -> list[str]:
    """What a backend computes otherwise than the interpreter; kernels that it refuses are left out."""
    session = session_for(Settings.resolve(None, {"backends": (backend,)}))
    found, done = [], 0
    for path in paths:
        text = path.read_text(encoding="utf-8")
        if not claimed(session.plugins.backend(backend), parse_kernel(text)):
            continue
        differences = replay(text, session)
        done += 1
        found += [f"{path.name}: {d.name}: {d.problem}" for d in differences if d.problem]
    if not done:
        found.append(f"{backend} refuses every kernel")
    return found


def interpreted_faults(paths: list[Path]) -> list[str]:
    """`faults` of Triton, in the process where Triton interprets."""
    from triton_interpreted import offer

    offer()
    return faults("interpreted", paths)


@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("backend", ["interpreter", "cpp", "halide"])
def test_kernels_of_programs(backend: str, every: int) -> None:
    if backend == "halide":
        pytest.importorskip("halide", reason=HALIDE)
    assert not faults(backend, KERNELS[::every])


# A few by default: Triton's interpreter takes a second for a kernel.
@pytest.mark.parametrize("part", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 3))])
def test_kernels_of_programs_in_tritons_interpreter(part: int) -> None:
    pytest.importorskip("triton", reason=TRITON)
    from triton_interpreted import in_interpreter

    assert not in_interpreter(interpreted_faults, KERNELS[part::4])
