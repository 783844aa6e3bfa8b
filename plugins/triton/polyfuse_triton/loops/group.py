"""Several kernels as one Triton function: each runs in programs of its own, by their numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from polyfuse.ir.kernel import Kernel
from polyfuse.kit import Writer
from polyfuse.plugin import Source
from polyfuse_triton.build.meta import KernelMeta, is_matmul
from polyfuse_triton.loops.kernel import KernelText, parameter_names

_PROGRAM = "tl.program_id(0)"


@dataclass(frozen=True)
class _Call:
    """The programs from `begin` to `end` of a launch, which call one function of a part.

    Attributes:
        arguments: what stands for each parameter, as text.
        program: the number of the program among those of the part.
        tiles: whether the function has tiles in shared memory.
    """

    begin: int
    end: int
    symbol: str
    arguments: tuple[str, ...]
    program: str
    tiles: bool

    def joined(self, after: _Call) -> _Call:
        """One call for the programs of both, with arguments that the program's number chooses: of two calls,
        some versions of Triton lay the tiles side by side.
        """

        def choose(one: str, other: str) -> str:
            return one if one == other else f"tl.where(program < {self.end}, {one}, {other})"

        given = tuple(map(choose, self.arguments, after.arguments))
        program = choose(self.program, after.program)
        return replace(self, end=after.end, arguments=given, program=program)


def grouped_text(kernel: Kernel, parts: Mapping[Kernel, tuple[Source, KernelMeta]]) -> KernelText:
    """The functions of the parts, equal ones once, and the function that calls them."""
    symbols: dict[str, str] = {}
    functions: list[str] = []
    for source, _ in parts.values():
        if source.text not in symbols:
            symbols[source.text] = f"{Source.SYMBOL}_part{len(symbols)}"
            # the number of the program among those of the part is its last argument
            head, body = source.text.split("):\n", 1)
            text = f"{head}, among):\n{body.replace(_PROGRAM, 'among')}"
            functions.append(text.replace(Source.SYMBOL, symbols[source.text]))
    names = parameter_names(kernel)
    calls: list[_Call] = []
    total = 0
    order = list(symbols.values())
    for part in sorted(kernel.parts, key=lambda part: order.index(symbols[parts[part.kernel][0].text])):
        source, meta = parts[part.kernel]
        programs = meta.grid[0]
        assert isinstance(programs, int)
        given = (*(names[name] for name in part.args), *(f"{value}" for _, value in meta.constexprs))
        end = total + programs
        found = _Call(total, end, symbols[source.text], given, f"program - {total}", is_matmul(meta))
        total = end
        if calls and found.tiles and calls[-1].symbol == found.symbol:
            calls[-1] = calls[-1].joined(found)
        else:
            calls.append(found)
    out = Writer()
    out.line("@triton.jit")
    out.line(f"def {Source.SYMBOL}({', '.join(names.values())}):")
    with out.indented():
        out.line(f"program = {_PROGRAM}")
        _choose(out, calls)
    return KernelText("".join([*functions, out.text()]), tuple(names.values()), (), total)


def _choose(out: Writer, calls: Sequence[_Call]) -> None:
    """The call whose programs begin at or before `program`, found by halves."""
    if len(calls) == 1:
        out.line(f"{calls[0].symbol}({', '.join([*calls[0].arguments, calls[0].program])})")
        return
    middle = len(calls) // 2
    out.line(f"if program < {calls[middle].begin}:")
    with out.indented():
        _choose(out, calls[:middle])
    out.line("else:")
    with out.indented():
        _choose(out, calls[middle:])
