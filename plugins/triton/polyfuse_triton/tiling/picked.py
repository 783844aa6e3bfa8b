"""Rows from which data pick elements: `x.gather(-1, index)` and its like.

Neighbouring threads ask the first cache for elements of as many lines, which it gives out one at a time. So a
program reads the whole row, as other rows are read, and its threads exchange elements.
"""

from __future__ import annotations

from polyfuse.kit import Access
from polyfuse.symbolic import IndexLike, atoms, axis, coefficient, substitute
from polyfuse_triton.target import Target
from polyfuse_triton.tiling.plan import Dim, Plan
from polyfuse_triton.tiling.register_pressure import Facts

_WARP = 32
_POINTS = 16
"""Points of a row for each thread."""
_BYTES = (8192, 32768)
"""Of a row that is worth it, and of one that programs have room for in shared memory beside others."""
_NARROWEST = 2
"""Bytes of an element with which this was measured."""
_PROGRAMS = 4
"""Rows for each multiprocessor, with which it has enough to do."""
_INDIRECT = "@0"


def picked_plan(facts: Facts, lead: str, target: Target) -> Plan | None:
    """The plan of a kernel whose programs have whole rows along `lead`, of which data pick elements; None
    where none are picked, or a program cannot hold a row.
    """
    length = facts.sizes[lead]
    rest = tuple(a for a in facts.axes if a != lead)
    if not isinstance(length, int) or length & (length - 1):
        return None
    if facts.points(rest) < _PROGRAMS * target.multiprocessors:
        return None
    buffers = frozenset(a.buffer for a in facts.accesses if _is_picked(facts, a, lead, length))
    if not buffers:
        return None
    warps = max(1, min(16, length // (_WARP * _POINTS)))
    tile = Dim("x", (lead,), length, length)
    return Plan((tile,), None, rest, (), True, warps, 1, picked=buffers)


def row_of(index: IndexLike, dim: Dim) -> IndexLike | None:
    """The index of the whole row, along a tile's dimension, of which an index with one indirect value picks
    an element; None where it does not.
    """
    sizes = {atom.args[0] for atom in atoms(index) if atom.kind == "axis" and atom.name == _INDIRECT}
    if sizes != {dim.extent} or coefficient(index, _INDIRECT) != 1 or coefficient(index, dim.name) != 0:
        return None
    return substitute(index, {_INDIRECT: axis(dim.name, dim.extent)})


def _is_picked(facts: Facts, access: Access, lead: str, length: int) -> bool:
    """Whether data pick an element of a row for each point of one, and nobody writes it meanwhile."""
    if access.is_store or access.stmt.mask is not None or access.buffer in facts.may_change:
        return False
    if len(access.indirect) != 1 or lead not in facts.depends[access.indirect[0]]:
        return False
    least, most = _BYTES
    if access.itemsize < _NARROWEST or not least <= length * access.itemsize <= most:
        return False
    return row_of(access.index, Dim(lead, (lead,), length, length)) is not None
