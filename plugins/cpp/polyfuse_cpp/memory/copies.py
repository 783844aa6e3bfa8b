"""Floats of 16 and 8 bits that are only moved: copied as the integers of their bits, and never widened."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from polyfuse.ir.kernel import Kernel, Section
from polyfuse.ir.statements import Constant, Load, Statement, Store
from polyfuse.ir.types import DType

_BITS = {2: DType.i16, 1: DType.u8}
"""What stands for a type, by its bytes."""


def moved_as_bits(kernel: Kernel) -> Kernel:
    """The kernel with every narrow float that is only loaded, chosen and stored as an integer of its size.

    That is so for a buffer or not: where one of its elements is computed with, all stay what they are, and so
    does what is stored beside them.
    """
    halves = {a.name for a in kernel.args if a.dtype.is_storage}
    if not halves:
        return kernel
    stmts = [s for part in kernel.sections for s in part.body]
    mixed = {*_computed_with(stmts), *(b.name for b in kernel.row_buffers if b.dtype.is_storage)}
    links = list(_links(stmts))
    while True:
        more = {name for link in links if mixed & link for name in link} - mixed
        if not more:
            break
        mixed |= more
    if halves <= mixed:
        return kernel
    args = tuple(
        replace(a, dtype=_BITS[a.dtype.itemsize]) if a.name in halves - mixed else a for a in kernel.args
    )
    sections = tuple(Section(p.looped, tuple(_as_bits(s, mixed) for s in p.body)) for p in kernel.sections)
    return replace(kernel, args=args, sections=sections)


def _computed_with(stmts: list[Statement]) -> Iterator[str]:
    """Names of values and buffers that something needs as floats; other names do no harm."""
    for stmt in stmts:
        match stmt:
            case Load():
                continue
            case Store():
                if stmt.mode != "set":
                    yield stmt.buffer
            case Constant():
                continue
            case _ if stmt.op != "where":
                yield from stmt.args
                yield from stmt.targets


def _links(stmts: list[Statement]) -> Iterator[set[str]]:
    """Sets of names of values and buffers that hold the same elements."""
    for stmt in stmts:
        if not stmt.dtype.is_storage:
            continue
        match stmt:
            case Load():
                yield {stmt.target, stmt.buffer, *(() if stmt.other is None else (stmt.other,))}
            case Store():
                yield {stmt.buffer, stmt.value}
            case _ if stmt.op == "where":
                yield {*stmt.targets, *stmt.args[1:]}


def _as_bits(stmt: Statement, mixed: set[str]) -> Statement:
    kind = _BITS.get(stmt.dtype.itemsize, stmt.dtype)
    name = stmt.buffer if isinstance(stmt, Store) else stmt.targets[0]
    if not stmt.dtype.is_storage or name in mixed:
        return stmt
    if isinstance(stmt, Constant):
        bits = torch.tensor(stmt.value, dtype=stmt.dtype.torch, device="cpu").view(kind.torch)
        return replace(stmt, dtype=kind, value=int(bits))
    return replace(stmt, dtype=kind)
