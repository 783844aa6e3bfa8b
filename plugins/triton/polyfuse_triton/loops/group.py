"""Several kernels as one Triton function: each runs in programs of its own, by their numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from polyfuse.ir.kernel import Kernel
from polyfuse.kit import Writer
from polyfuse.plugin import Source
from polyfuse_triton.build.meta import KernelMeta
from polyfuse_triton.loops.kernel import KernelText, parameter_names

_PROGRAM = "tl.program_id(0)"


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
    calls: list[tuple[int, str]] = []
    total = 0
    for part in kernel.parts:
        source, meta = parts[part.kernel]
        programs = meta.grid[0]
        assert isinstance(programs, int)
        given = [names[name] for name in part.args] + [f"{value}" for _, value in meta.constexprs]
        calls.append((total, f"{symbols[source.text]}({', '.join([*given, f'program - {total}'])})"))
        total += programs
    out = Writer()
    out.line("@triton.jit")
    out.line(f"def {Source.SYMBOL}({', '.join(names.values())}):")
    with out.indented():
        out.line(f"program = {_PROGRAM}")
        _choose(out, calls)
    return KernelText("".join([*functions, out.text()]), tuple(names.values()), (), total)


def _choose(out: Writer, calls: Sequence[tuple[int, str]]) -> None:
    """The call whose programs begin at or before `program`, found by halves."""
    if len(calls) == 1:
        out.line(calls[0][1])
        return
    middle = len(calls) // 2
    out.line(f"if program < {calls[middle][0]}:")
    with out.indented():
        _choose(out, calls[:middle])
    out.line("else:")
    with out.indented():
        _choose(out, calls[middle:])
