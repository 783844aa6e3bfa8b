"""Size arguments in the strides of a matmul's operands, which say whether rows are copied in wide chunks."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from polyfuse.ir.kernel import Kernel
from polyfuse.ir.statements import Load, Store
from polyfuse.symbolic import Index

_WIDE = 16
"""Elements of which strides are multiples where rows are copied in wide chunks."""


@dataclass(frozen=True)
class SizeInStrides:
    """What a size argument that multiplies an axis in some address must be for wide copies.

    Attributes:
        multiple: of what, so that each such stride is a multiple of 16 elements.
        alone: whether it is in strides without other sizes: then steps inside a tile fit in 32 bits if the
            size does with room.
    """

    multiple: int
    alone: bool


def sizes_in_strides(kernel: Kernel) -> dict[str, SizeInStrides]:
    """The size arguments that multiply an axis in some address."""
    found: dict[str, SizeInStrides] = {}
    for section in kernel.sections:
        for stmt in section.body:
            if not isinstance(stmt, (Load, Store)) or not isinstance(stmt.index, Index):
                continue
            for monomial, factor in stmt.index.terms:
                sizes = [atom.name for atom in monomial if atom.kind == "sym"]
                if len(sizes) == len(monomial):
                    continue
                for name in sizes:
                    use = found.get(name, SizeInStrides(1, True))
                    multiple = max(use.multiple, _WIDE // gcd(factor, _WIDE))
                    found[name] = SizeInStrides(multiple, use.alone and len(sizes) == 1)
    return found
