"""Kernels whose arguments, axes, row buffers, sizes and values have names that mean something else in C++."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from cpp_kernels import KernelBuilder, backend, compiled
from polyfuse.ir.kernel import Alias, Kernel
from polyfuse.ir.types import DType
from polyfuse.symbolic import symbol
from polyfuse_cpp.loops.entry import plainly_named
from strange_names import NAMES, batches

HOSTILE = (
    *NAMES,
    *("if", "for", "int", "class", "import", "POLYFUSE_KERNEL", "PF_W", "PF_INLINE", "i64", "u8", "i386"),
    *("a.b", "a-b", "a_b", "a b", "", " ", "0", "1st", '"', "//", "*/", "\\", "}", "名.b", "x" * 3000),
    *("v1", "p0", "r0", "in0", "row0", "s0", "val_0", "axis_0", "arg_0", "acc_v1", "v1_1", "p0_b", "p0q"),
    *("chunk", "chunks", "part0_0_0", "part_v1", "total_0", "packed_a", "sum", "table_v1", "items", "alone"),
)
BATCHES = batches([name for name in HOSTILE if name], 60)


class Named(KernelBuilder):
    """A builder whose values have given names."""

    values: Iterator[str]

    def fresh(self, dtype: DType) -> str:
        name = next(self.values)
        self.types[name] = dtype
        return name


def mixed(names: tuple[str, ...]) -> Kernel:
    """The softmax of a sum of rows, each weighted by its number, over an extent that is an argument."""
    axes = {names[0]: 5}
    builder = Named(axes, {names[1]: symbol(names[2])}, (5, 40))
    builder.values = iter([f"{name}{mark}" for mark in ("", "'", "''", "!") for name in names])
    inputs = [builder.arg(f"{name}#") for name in names[3:]]
    out = builder.out(names[3])
    builder.size(names[2])
    row = builder.local(names[4], 128)
    index = builder[names[0]] * symbol(names[2]) + builder[names[1]]
    first, second = builder.section(True), builder.section(True)
    total = first.const(0.0)
    for number, name in enumerate(inputs, 1):
        total = first.op("add", total, first.op("mul", first.load(name, index), first.const(float(number))))
    first.store(row, builder[names[1]], total)
    top, scale = first.reduce("online_softmax", total)
    value = second.op("exp", second.op("sub", second.load(row, builder[names[1]]), top))
    second.store(out, index, second.op("div", value, scale))
    return builder.build()


@pytest.mark.quick(2)
@pytest.mark.parametrize("number", range(len(BATCHES)))
def test_hostile_names(number: int) -> None:
    names = (*BATCHES[number], "one", "two", "three")[-63:]
    kernel = mixed(names)
    generator = torch.Generator().manual_seed(number)
    rows = [torch.randn(5, 40, generator=generator) for _ in names[3:]]
    out = torch.empty(5, 40)
    compiled(kernel)(*rows, out, 40)
    want = sum(row.double() * factor for factor, row in enumerate(rows, 1))
    assert isinstance(want, torch.Tensor)
    torch.testing.assert_close(out, want.softmax(-1).float(), rtol=1e-3, atol=1e-5)


def test_no_two_things_share_a_name() -> None:
    for names in BATCHES:
        kernel = mixed((*names, "one", "two", "three"))
        named = plainly_named(kernel)
        found = [a.name for a in named.args] + [b.name for b in named.row_buffers]
        found += [t for part in named.sections for s in part.body for t in s.targets]
        assert len(found) == len(set(found))
        assert all(name.isascii() and name.isidentifier() and len(name) < 16 for name in found)


def test_a_long_reduction_of_hostile_names() -> None:
    builder = Named({}, {"chunk": 100_000})
    builder.values = iter(["part_v1", "chunks", "acc_v1"])
    builder.arg("part0_0_0"), builder.out("chunks")
    body = builder.section(True)
    result = body.reduce("sum", body.load("part0_0_0", builder["chunk"]))
    builder.section().store("chunks", 0, result)
    numbers, total = torch.randn(100_000), torch.empty(1)
    compiled(builder.build())(numbers, total)
    torch.testing.assert_close(total[0], numbers.sum(), rtol=1e-4, atol=1e-2)


def test_refused_aliases_have_the_kernels_names() -> None:
    builder = Named({}, {"r.0": 100_000})
    builder.values = iter("abcdefgh")
    builder.arg("in.0"), builder.out("out.0")
    scale = builder.section().load("in.0", 0)
    first, second = builder.section(True), builder.section(True)
    total = first.reduce("sum", first.load("in.0", builder["r.0"]))
    second.reduce("sum", second.op("mul", total, second.load("in.0", builder["r.0"])))
    builder.section().store("out.0", 0, scale)
    kernel = builder.build()
    pair = Alias("out.0", "in.0")
    aliased = Kernel(**{**kernel.__dict__, "aliases": (pair,)})
    assert backend("avx2").emit(aliased).refused_aliases == (pair,)
