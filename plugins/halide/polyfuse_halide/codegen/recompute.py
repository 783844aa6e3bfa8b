"""Values of a loop that are both stored and reduced, which are two stages of a pipeline."""

from __future__ import annotations

from polyfuse.ir.kernel import Kernel, Section
from polyfuse.ir.statements import Statement, Store
from polyfuse.symbolic import axis_size
from polyfuse_halide.codegen.ops import MATH

__all__ = ["needed_again"]

_MOST = 512 << 10
"""Bytes of scratch that a thread's own cache holds."""


def needed_again(kernel: Kernel, section: Section, columns: int) -> str:
    """The value of a loop that is worth keeping until it is needed again, or an empty text; `columns`: how
    many points are computed side by side.
    """
    local = {b.name for b in kernel.row_buffers}
    stores = [(part, s) for part in kernel.sections for s in part.body if isinstance(s, Store)]
    outer = [(part, s) for part, s in stores if s.buffer not in local]
    plain = all(not s.indirect and s.mode == "set" and s.mask is None for _, s in outer)
    here = [s.value for part, s in outer if part is section]
    if not kernel.axes or not plain or len(here) != 1 or len(stores) != len(outer):
        return ""
    steps = columns
    for variable in kernel.raxes:
        size = axis_size(variable)
        steps *= size if isinstance(size, int) else _MOST
    made = {t: s for s in section.body for t in s.targets}
    reduced = {a for s in section.body if s.op == "reduce" for a in s.args}
    value = here[0]
    if value not in made or value not in _parts(made, reduced):
        return ""
    needed = [made[name] for name in _parts(made, {value})]
    if any(s.op == "scan" for s in needed) or not any(s.op in MATH for s in needed):
        return ""
    return value if steps * made[value].dtype.itemsize <= _MOST else ""


def _parts(made: dict[str, Statement], roots: set[str]) -> set[str]:
    """Values of a section that some of its values are made of, themselves included."""
    found: set[str] = set()
    waiting = [name for name in roots if name in made]
    while waiting:
        name = waiting.pop()
        found.add(name)
        waiting += [a for a in made[name].args if a in made and a not in found]
    return found
