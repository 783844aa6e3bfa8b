"""Values of a loop that are both stored and reduced, which are two stages of a pipeline."""

from __future__ import annotations

from polyfuse.ir.kernel import Section
from polyfuse.ir.statements import Reduce, Scan, Statement, Store
from polyfuse.kit import KernelFacts, backward_slice
from polyfuse_halide.codegen.ops import MATH

_MOST = 512 << 10
"""Bytes of scratch that a thread's own cache holds."""


def reused_value(facts: KernelFacts, section: Section, columns: int) -> str:
    """The value of a loop that is worth storing until it is needed again, or an empty text; `columns`: how
    many points are computed side by side.
    """
    stores = [access.stmt for access in facts.accesses if access.is_store]
    plain = all(isinstance(s, Store) and s.mode == "set" and len(s.args) == 1 for s in stores)
    here = [s.args[0] for s in section.body if isinstance(s, Store)]
    rows_stored = not facts.written.isdisjoint(facts.row_buffers)
    if not facts.axes or not plain or len(here) != 1 or rows_stored:
        return ""
    steps = columns
    for size in facts.kernel.rsizes:
        steps *= size if isinstance(size, int) else _MOST
    reduced = {a for s in section.body if isinstance(s, Reduce) for a in s.args}
    (value,) = here
    needed = _sources(section, {value})
    if value not in {t for s in _sources(section, reduced) for t in s.targets}:
        return ""
    if any(isinstance(s, Scan) for s in needed) or not any(s.op in MATH for s in needed):
        return ""
    return value if steps * facts.dtypes[value].itemsize <= _MOST else ""


def _sources(section: Section, values: set[str]) -> tuple[Statement, ...]:
    """The statements of a section that values are computed from, reductions included."""
    return backward_slice(section.body, values, leave_out=lambda stmt: False)
