"""Which outputs may share memory with an input: hosts let a result take over what is read for the last time.

It does so where every load of the input is at the element that the one plain store of the output writes, and
comes before it. A kernel's text does not say whether it happens.
"""

from __future__ import annotations

from polyfuse.ir.kernel import Kernel

__all__ = ["shared_outputs"]


def shared_outputs(kernel: Kernel) -> frozenset[str]:
    """Outputs that may lie where an input lies."""
    stores: dict[str, list[tuple[tuple[int, int], object, bool]]] = {}
    loads: dict[str, list[tuple[tuple[int, int], object, bool]]] = {}
    for number, section in enumerate(kernel.sections):
        for place, stmt in enumerate(section.body):
            if stmt.op == "load":
                loads.setdefault(stmt.attrs[0], []).append(
                    ((number, place), stmt.attrs[1], not stmt.attrs[2])
                )
            elif stmt.op == "store":
                plain = not stmt.attrs[2] and stmt.attrs[3] == "set" and not stmt.attrs[4]
                stores.setdefault(stmt.attrs[0], []).append(((number, place), stmt.attrs[1], plain))
    found: set[str] = set()
    for output in (a for a in kernel.args if a.kind in ("out", "inout")):
        writes = stores.get(output.name, [])
        if len(writes) != 1 or not writes[0][2]:
            continue
        at, index, _ = writes[0]
        for source in (a for a in kernel.args if a.kind == "in"):
            reads = loads.get(source.name, [])
            fits = source.dtype.itemsize == output.dtype.itemsize and source.numel == output.numel
            if fits and reads and all(p and w < at and i == index for w, i, p in reads):
                found.add(output.name)
    return frozenset(found)
