"""How shape symbols get their values from a program's inputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from functools import cache
from typing import Any

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.nodes import View
from polyfuse.program.steps import BindSymbol, ProgramInput, Read, Step
from polyfuse.symbolic import Index, IndexLike, atoms, free_symbols
from polyfuse.symbolic.index import of_atom


def bind_symbols(inputs: Sequence[ProgramInput], needed: Iterable[str]) -> tuple[BindSymbol, ...]:
    """Bind every needed symbol once.

    A symbol comes from an input that is the number itself, else from a size, else from a stride; else it is
    solved for in an expression, such as ``2*s0 + 1``, whose other symbols are known.

    Raises:
        UnsupportedError: a symbol occurs in no input, or only where it cannot be solved for.
    """
    missing = dict.fromkeys(needed)
    readable = list(_readable(inputs))
    bound: list[BindSymbol] = []
    for read, expression in readable:
        names = free_symbols(expression)
        if len(names) == 1 and names[0] in missing and _is_plain(expression):
            bound.append(BindSymbol(names[0], read))
            del missing[names[0]]
    progress = True
    while missing and progress:
        progress = False
        for read, expression in readable:
            unknown = [n for n in free_symbols(expression) if n in missing]
            step = _solve(read, expression, unknown[0]) if len(unknown) == 1 else None
            if step is not None:
                # what the solution depends on must itself be bound, and before it
                extra = _first_unbound(step, bound, missing)
                if extra:
                    missing.update(dict.fromkeys(extra))
                else:
                    bound.append(step)
                    del missing[step.symbol]
                progress = True
    if missing:
        raise _unsolvable(next(iter(missing)), readable)
    return tuple(bound)


def _readable(inputs: Sequence[ProgramInput]) -> Iterator[tuple[Read, IndexLike]]:
    """Every number that can be read from the inputs, with what it stands for; the cheapest first."""
    for item in inputs:
        if item.kind == "symint" and item.value is not None:
            yield Read("value", item.name), item.value
    for kind in ("size", "stride"):
        for item in inputs:
            if item.kind == "tensor":
                for dim, expression in enumerate(item.size if kind == "size" else item.stride):
                    if not isinstance(expression, int):
                        yield Read(kind, item.name, dim), expression


def _is_plain(expression: IndexLike) -> bool:
    if isinstance(expression, int) or expression.const or len(expression.terms) != 1:
        return False
    monomial, factor = expression.terms[0]
    return factor == 1 and len(monomial) == 1 and monomial[0].kind == "sym"


def _solve(read: Read, expression: IndexLike, symbol: str) -> BindSymbol | None:
    """`symbol` from ``factor * symbol**power + offset == read``, or None where that is not its form."""
    if isinstance(expression, int):
        return None
    factor: IndexLike = 0
    offset: IndexLike = expression.const
    power = 0
    for monomial, scale in expression.terms:
        rest: IndexLike = scale
        count = 0
        for atom in monomial:
            if atom.kind == "sym" and atom.name == symbol:
                count += 1
            elif any(symbol in free_symbols(argument) for argument in atom.args):
                return None
            else:
                rest = rest * of_atom(atom)
        if count == 0:
            offset = offset + rest
        elif power in (0, count):
            power = count
            factor = factor + rest
        else:
            return None
    return BindSymbol(symbol, read, factor, offset, power) if 0 < power <= 2 else None


def _first_unbound(
    step: BindSymbol, bound: Sequence[BindSymbol], missing: dict[str, None]
) -> tuple[str, ...]:
    known = {b.symbol for b in bound}
    used = (*free_symbols(step.factor), *free_symbols(step.offset))
    return tuple(n for n in used if n not in known and n not in missing)


def _unsolvable(symbol: str, readable: Sequence[tuple[Read, IndexLike]]) -> UnsupportedError:
    where = [f"{e} ({r.kind} {r.dim} of {r.name})" for r, e in readable if symbol in free_symbols(e)]
    cause = f"the size {symbol} is needed at run time but "
    cause += f"cannot be solved for in {where[0]}" if where else "no input of the graph tells its value"
    return UnsupportedError(cause, "mark that dimension static, or pass the size itself to the function")


def symbols_in(expressions: Iterable[IndexLike]) -> Iterator[str]:
    """Names of the symbols in some expressions, in order of occurrence, repeated."""
    for expression in expressions:
        for atom in atoms(expression):
            if atom.kind == "sym":
                yield atom.name


def expressions(steps: Iterable[Step]) -> Iterator[IndexLike]:
    """Every size expression in some steps."""
    for step in steps:
        kind: Any = type(step)
        for name in _sized(kind):
            yield from _sizes_in(getattr(step, name))


@cache
def _sized(kind: type) -> tuple[str, ...]:
    """The fields of a kind of step that may hold sizes."""
    return tuple(item.name for item in fields(kind) if item.name != "origins")


def _sizes_in(value: Any) -> Iterator[IndexLike]:
    if isinstance(value, Index):
        yield value
    elif isinstance(value, View):
        yield from (*value.size, *value.stride, value.offset)
    elif isinstance(value, (tuple, list)):
        for item in value:
            if not isinstance(item, (int, str)):
                yield from _sizes_in(item)
