"""Several kernels as one C++ function, which calls the function of each."""

from __future__ import annotations

from collections.abc import Mapping

from polyfuse.ir.kernel import Alias, Kernel, KernelArg
from polyfuse.kit import Writer
from polyfuse.plugin import Source
from polyfuse_cpp.loops.entry import KernelText, entry, plainly_named
from polyfuse_cpp.memory.copies import moved_as_bits


def distinct_parts(kernel: Kernel) -> tuple[Kernel, ...]:
    """The different kernels among a kernel's parts."""
    return tuple(dict.fromkeys(part.kernel for part in kernel.parts))


def grouped_text(kernel: Kernel, texts: Mapping[Kernel, KernelText]) -> KernelText:
    """The function that calls the parts of a kernel, behind the functions of these, equal ones once."""
    symbols: dict[str, str] = {}
    functions: dict[str, str] = {}
    for found in texts.values():
        symbol = symbols.setdefault(found.text, f"{Source.SYMBOL}_part{len(symbols)}")
        functions[symbol] = found.text.replace(Source.SYMBOL, symbol)
    named = plainly_named(kernel)
    plain = {old.name: new.name for old, new in zip(kernel.args, named.args, strict=True)}
    refused: list[Alias] = []
    out = Writer("  ")
    with entry(named, out):
        for part in kernel.parts:
            found = texts[part.kernel]
            taken = zip(moved_as_bits(part.kernel).args, part.kernel.args, part.args, strict=True)
            given = (_given(as_bits, arg, plain[name]) for as_bits, arg, name in taken)
            out.line(f"{symbols[found.text]}({', '.join(given)});")
            names = dict(zip((arg.name for arg in part.kernel.args), part.args, strict=True))
            refused += [Alias(names[pair.output], names[pair.input]) for pair in found.refused_aliases]
    body = f"namespace pf {{\n{out.text()}}}  // namespace pf\nusing pf::{Source.SYMBOL};\n"
    features = {name for found in texts.values() for name in found.features}
    signature = "".join("i" if arg.kind == "size" else "p" for arg in kernel.args)
    return KernelText("".join(functions.values()) + body, tuple(sorted(features)), signature, tuple(refused))


def _given(as_bits: KernelArg, arg: KernelArg, name: str) -> str:
    """An argument of the group as a part takes it: floats that the part only moves as integers."""
    constant = "const " if arg.kind == "in" else ""
    return name if as_bits.dtype is arg.dtype else f"({constant}{as_bits.dtype}*){name}"
