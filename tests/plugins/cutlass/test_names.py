"""Matrix multiplications with names that generated text could take for something else, or for one another."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from cutlass_kernels import RESIDUAL, product
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.statements import Load, Statement, Store, with_index, with_names
from polyfuse.symbolic import IndexLike, axis, axis_size, substitute, symbol
from polyfuse_cutlass.build.meta import KernelMeta
from polyfuse_cutlass.launch.launcher import resolved
from polyfuse_cutlass.problem import problem_of
from polyfuse_cutlass.space import emit
from polyfuse_cutlass.target import Target
from strange_names import NAMES, batches


def renamed(kernel: Kernel, names: tuple[str, ...]) -> Kernel:
    """The kernel with these names for its arguments, and the same ones again for its values."""
    args = dict(zip((a.name for a in kernel.args), names, strict=False))
    made = [t for section in kernel.sections for s in section.body for t in s.targets]
    values = dict(zip(made, (*names, *(f"{name}_" for name in names)), strict=False))

    rows = axis("i0", symbol(args["s0"], 1, None))

    def index(of: IndexLike) -> IndexLike:
        return substitute(of, {"s0": axis_size(rows), "i0": rows})

    def statement(stmt: Statement) -> Statement:
        stmt = with_names(stmt, tuple(values[t] for t in stmt.targets), [values[a] for a in stmt.args])
        if isinstance(stmt, (Load, Store)):
            stmt = replace(stmt, buffer=args[stmt.buffer])
        return with_index(stmt, index)

    return replace(
        kernel,
        axes=(rows, *kernel.axes[1:]),
        args=tuple(
            replace(a, name=args[a.name], numel=None if a.numel is None else index(a.numel))
            for a in kernel.args
        ),
        sections=tuple(replace(s, body=tuple(map(statement, s.body))) for s in kernel.sections),
    )


PLAIN = product(300, 264, 64, epilogue=RESIDUAL, dynamic=True)
BATCHES = [names for names in batches(NAMES, 12) if len(names) == 12]


def test_every_name_is_another_one():
    for names in BATCHES:
        kernel = problem_of(renamed(PLAIN, names)).kernel
        values = [t for section in kernel.sections for s in section.body for t in s.targets]
        for found in ([a.name for a in kernel.args], values):
            assert len(set(found)) == len(found)
            assert all(re.fullmatch(r"[A-Za-z0-9_]+", name, re.ASCII) for name in found)


@pytest.mark.parametrize("names", BATCHES[::6], ids=lambda names: names[0])
def test_texts_say_the_same(names):
    """The text for strange names is that for usual ones, with other names."""
    usual, strange = (emit(kernel, None, Target()) for kernel in (PLAIN, renamed(PLAIN, names)))
    kernels = (problem_of(PLAIN).kernel, problem_of(renamed(PLAIN, names)).kernel)
    start = strange.text.index("struct Args {")
    end = strange.text.index("};", start)
    before, fields, text = strange.text[:start], strange.text[start:end], strange.text[end:]
    for old, new in zip(*(kernel.args for kernel in kernels), strict=True):
        text = re.sub(rf"\bargs\.{new.name}\b", f"args.#{old.name}", text)
        fields = fields.replace(f" {new.name};", f" #{old.name};")
    for old, new in zip(*(_values(kernel) for kernel in kernels), strict=True):
        text = re.sub(rf"\b([vp])_{new}\b", rf"\1_#{old}", text)
    assert f"{before}{fields}{text}".replace("#", "") == usual.text.replace("#", "")
    sizes = resolved(KernelMeta.parse(strange.meta), (300,))
    assert sizes == resolved(KernelMeta.parse(usual.meta), (300,))


def _values(kernel: Kernel) -> list[str]:
    return [t for section in kernel.sections for s in section.body for t in s.targets]
