"""The Kernel: all that a backend receives to generate code for one fused group.

A kernel iterates its parallel axes; at each parallel point its sections run in order. A section that is not
looped runs once per parallel point; a looped one runs over all the kernel's reduction axes, and what its
``reduce`` statements yield is known after the loop. Statements are in single-assignment form: a name is
defined once in a kernel.

Visibility: a value defined in a section that is not looped may be used after it in that section and in all
later ones; a result of ``reduce`` in all later sections; any other value defined in a looped section only
after it in that section.

A kernel may instead consist of parts (`Kernel.parts`): kernels that one launch computes side by side, each
over axes of its own. It has no axes, no sections and no row buffers then, only arguments.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from polyfuse.symbolic import Index, IndexLike, axis_size

if TYPE_CHECKING:
    from polyfuse.ir.nodes import Origin
    from polyfuse.ir.statements import Statement
    from polyfuse.ir.types import DType


@dataclass(frozen=True)
class KernelArg:
    """One argument, in calling order.

    Attributes:
        name: as statements name it.
        kind: ``"in"``, ``"out"``, ``"inout"`` (pointer to elements), or ``"size"`` (i64 shape symbol).
        dtype: element type; i64 for sizes.
        numel: extent in elements that may be accessed, from the pointer on (buffers); None for sizes.
        aligned: whether the address is known to be a multiple of what the backend asks for
            (`TargetInfo.alignment`).
        hint: example value of a size.
    """

    name: str
    kind: str
    dtype: DType
    numel: IndexLike | None = None
    aligned: bool = False
    hint: int | None = None


@dataclass(frozen=True)
class Alias:
    """Two arguments that may be one memory: `output` is written where `input` was read for the last time.

    A launch may pass one address for both, or two that are apart; a kernel must be right either way. What it
    takes for such a pair to make sense is in `polyfuse.ir.aliasing`.
    """

    output: str
    input: str


@dataclass(frozen=True)
class RowBuffer:
    """Scratch of one parallel point: `size` elements, indexed by statements like any buffer. It holds a row
    that is computed in one section and read in a later one."""

    name: str
    dtype: DType
    size: IndexLike


@dataclass(frozen=True)
class Section:
    """Statements that run together: once per parallel point, or (`looped`) over all reduction axes."""

    looped: bool
    body: tuple[Statement, ...]


@dataclass(frozen=True)
class KernelPart:
    """A kernel that one launch computes beside others: no part writes what another one accesses.

    Attributes:
        kernel: the part, with arguments of its own names.
        args: which argument of the whole each of these is.
    """

    kernel: Kernel
    args: tuple[str, ...]


@dataclass(frozen=True)
class Kernel:
    """One fused kernel, or several that are launched as one.

    Attributes:
        name: symbol name, free of graph-specific numbers so that equal kernels have equal text.
        device: torch device type as text (``"cpu"``).
        axes: parallel axis variables, outermost first (sizes in the variables).
        raxes: reduction axis variables, outermost first.
        args: calling order.
        row_buffers: scratch of each parallel point.
        sections: in order.
        size_hints: example extent of every axis, in the order axes + raxes.
        deterministic: whether colliding atomic stores must be avoided.
        numerics: ``"fast"`` or ``"eager"``.
        aliases: pairs of arguments that may be one memory; all others are apart, or only read.
        parts: what one launch computes side by side, in place of `sections`.
        origins: operators it came from; no part of its text or equality.
    """

    name: str
    device: str
    axes: tuple[Index, ...]
    raxes: tuple[Index, ...]
    args: tuple[KernelArg, ...]
    row_buffers: tuple[RowBuffer, ...]
    sections: tuple[Section, ...]
    size_hints: tuple[int, ...] = ()
    deterministic: bool = False
    numerics: str = "fast"
    aliases: tuple[Alias, ...] = ()
    parts: tuple[KernelPart, ...] = ()
    origins: tuple[Origin, ...] = field(default=(), compare=False)

    @property
    def sizes(self) -> tuple[IndexLike, ...]:
        """Extents of the parallel axes."""
        return tuple(axis_size(a) for a in self.axes)

    @property
    def rsizes(self) -> tuple[IndexLike, ...]:
        """Extents of the reduction axes."""
        return tuple(axis_size(a) for a in self.raxes)
