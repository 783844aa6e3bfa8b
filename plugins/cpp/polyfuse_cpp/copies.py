"""Half floats that are only moved: copied as the integers of their bits, without a detour by wider floats."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from polyfuse.ir.kernel import Kernel, Section, Stmt
from polyfuse.ir.types import DType

__all__ = ["moved_as_bits"]

_HALVES = (DType.bf16, DType.f16)
_BITS = DType.i16


def moved_as_bits(kernel: Kernel) -> Kernel:
    """The kernel with every half float that is only loaded, chosen and stored as an integer of 16 bits.

    That is so for a buffer or not: where one of its elements is computed with, all stay what they are, and so
    does what is stored beside them.
    """
    halves = {a.name for a in kernel.args if a.dtype in _HALVES}
    if not halves:
        return kernel
    stmts = [s for part in kernel.sections for s in part.body]
    mixed = {*_computed_with(stmts), *(b.name for b in kernel.locals if b.dtype in _HALVES)}
    links = list(_links(stmts))
    while True:
        more = {name for link in links if mixed & link for name in link} - mixed
        if not more:
            break
        mixed |= more
    if halves <= mixed:
        return kernel
    args = tuple(replace(a, dtype=_BITS) if a.name in halves - mixed else a for a in kernel.args)
    sections = tuple(Section(p.looped, tuple(_as_bits(s, mixed) for s in p.body)) for p in kernel.sections)
    return replace(kernel, args=args, sections=sections)


def _computed_with(stmts: list[Stmt]) -> Iterator[str]:
    """Names of values and buffers that something needs as floats; other names do no harm."""
    for stmt in stmts:
        if stmt.op == "load":
            continue
        if stmt.op == "store":
            if stmt.attrs[3] != "set":
                yield stmt.attrs[0]
        elif stmt.op != "where":
            yield from stmt.args
            if stmt.op != "const":
                yield from stmt.targets


def _links(stmts: list[Stmt]) -> Iterator[set[str]]:
    """Sets of names of values and buffers that hold the same elements."""
    for stmt in stmts:
        if stmt.dtype not in _HALVES:
            continue
        if stmt.op == "load":
            other = stmt.args[-1:] if stmt.attrs[3] else ()
            yield {stmt.targets[0], stmt.attrs[0], *other}
        elif stmt.op == "store":
            yield {stmt.attrs[0], stmt.args[0]}
        elif stmt.op == "where":
            yield {stmt.targets[0], *stmt.args[1:]}


def _as_bits(stmt: Stmt, mixed: set[str]) -> Stmt:
    name = stmt.targets[0] if stmt.targets else stmt.attrs[0] if stmt.op == "store" else ""
    if stmt.dtype not in _HALVES or not name or name in mixed:
        return stmt
    if stmt.op == "const":
        bits = torch.tensor(stmt.attrs[0], dtype=stmt.dtype.torch).view(torch.int16)
        return replace(stmt, dtype=_BITS, attrs=(int(bits),))
    return replace(stmt, dtype=_BITS)
