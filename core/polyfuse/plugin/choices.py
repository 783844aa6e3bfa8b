"""Implementations that plugins offer for operators, to be timed against what torch calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polyfuse.base.config import Config
    from polyfuse.ir.nodes import Buffer, ExternCall, Pointwise, TemplateCall, View
    from polyfuse.plugin.claims import Claim
    from polyfuse.plugin.source import Source
    from polyfuse.symbolic import IndexLike


@dataclass(frozen=True)
class CallSite:
    """A call that a choice may implement, with its buffers and its reader.

    Attributes:
        call: the operator with its arguments; views name buffers.
        buffers: of the graph.
        reader: the loop that alone reads the result and writes one of its own at the same offsets, perhaps
            under other sizes, so that an implementation may do its work too; None where there is none.
        static: names of buffers that are parameters of the model, which stay where they are.
        inference: whether no gradients are wanted.
        hints: a likely value of each symbol in sizes.
        freezing: whether constants are folded from parameters (the option `freezing`).
        packing: whether some parameters may be packed once without that option: those for which the copies
            are worth their memory.
    """

    call: TemplateCall
    buffers: Mapping[str, Buffer]
    reader: Pointwise | None = None
    static: frozenset[str] = frozenset()
    inference: bool = True
    hints: Mapping[str, int] = field(default_factory=dict)
    freezing: bool = False
    packing: bool = False

    @property
    def output(self) -> Buffer:
        """Where the result of the call goes."""
        return self.buffers[self.call.outputs[0]]

    def can_precompute(self, operand: object) -> bool:
        """Whether an operand is a whole parameter, and what follows from it may be computed once."""
        buffer = self.buffers.get(getattr(operand, "buffer", ""))
        once = (self.freezing or self.packing) and self.inference
        return once and buffer is not None and buffer.name in self.static and operand == buffer.view()

    def precompute(
        self, name: str, op: str, operand: View, args: tuple[object, ...], result: Buffer
    ) -> ExternCall:
        """A call for `ReplacementCalls`, done once for each parameter, and again when that has changed.

        Args:
            op: an operator that takes a parameter, then plain values.
            operand: a parameter for which `can_precompute` is true.
            result: a new buffer; of kind `object` where only calls understand what is in it.
        """
        from polyfuse.ir.nodes import ExternCall
        from polyfuse.runtime.frozen import once

        # nothing may be written over the result, which lives as long as the parameter does
        aliases = (operand.buffer,)
        return ExternCall(
            name, once(op, self.freezing), (operand, *args), (), (result.name,), aliases=aliases
        )


@dataclass(frozen=True)
class ReplacementCalls:
    """An implementation of a call by other calls.

    Attributes:
        nodes: the calls, in order; the last one writes the call's result, or that of the reader, with the
            sizes and strides of that buffer.
        buffers: new ones between them.
        takes_reader: whether they do what `CallSite.reader` does too.
    """

    nodes: tuple[ExternCall, ...]
    buffers: tuple[Buffer, ...] = ()
    takes_reader: bool = False


@dataclass(frozen=True)
class TemplateSource:
    """Source that a backend builds and loads: the plugin's, or the one that the choice names.

    Attributes:
        source: the text.
        operands: what it is launched with, in order: names of buffers, from their start, and sizes.
        takes_reader: whether it does what `CallSite.reader` does too.
    """

    source: Source
    operands: tuple[str | IndexLike, ...]
    takes_reader: bool = False


@dataclass(frozen=True)
class Choice:
    """One implementation of some operators: either other calls or source of its own.

    Attributes:
        name: unique in its plugin, without spaces.
        ops: operators by name, such as `aten.addmm.out`.
        applies: whether it can do a call, and if not, why.
        instead: the calls that replace it.
        emit: source for it in one configuration.
        configs: configurations of the source, the best guess first; without it, there is one, None.
        preferred: whether other calls are known to be faster on this machine than what torch calls, so that
            `gemm="known"` takes them without timing; without it, they are not.
        backend: name of the backend that builds the source, such as one whose language it is; empty: that of
            the plugin, which needs none otherwise.
    """

    name: str
    ops: tuple[str, ...]
    applies: Callable[[CallSite], Claim]
    instead: Callable[[CallSite], ReplacementCalls] | None = None
    emit: Callable[[CallSite, Config | None], TemplateSource] | None = None
    configs: Callable[[CallSite], Sequence[Config]] | None = None
    preferred: Callable[[CallSite], bool] | None = None
    backend: str = ""

    def __post_init__(self) -> None:
        if (self.instead is None) == (self.emit is None):
            raise ValueError(f"choice {self.name} must have either `instead` or `emit`")
        if self.preferred is not None and self.instead is None:
            raise ValueError(f"choice {self.name} is source, of which nothing is known without timing")
        if not self.name or len(self.name.split()) != 1:
            raise ValueError(f"choice {self.name!r} has no name of one word")
