"""Which lines belong together: of the model, of a kernel's IR, and of the code generated from it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from polyfuse.ir.kernel import Kernel
from polyfuse.ir.nodes import Origin
from polyfuse.ir.statements import Load, Statement, Store
from polyfuse.ir.text.print import text
from polyfuse.schedule import Launch

_WORD = re.compile(r"[A-Za-z_]\w*")
_SUFFIX = re.compile(r"^(?:acc_)?(v\d+)(?:_\w+)?$")
_ASSIGNED = re.compile(r"^([^=(]*[\w\]])\s*=(?!=)(.*)$")
_ALIKE = {
    "mean": {"reduce", "div", "mul"},
    "var_mean": {"reduce", "sub", "mul", "div"},
    "sum": {"reduce"},
    "amax": {"reduce"},
    "native_layer_norm": {"reduce", "sub", "mul", "rsqrt", "add"},
}
"""Statements that one operator becomes, where they are called otherwise."""


def kernel_text(kernel: Kernel) -> str:
    """A kernel's IR without the comment that lists what it comes from."""
    return text(kernel, comments=False)


def statement_lines(kernel: Kernel) -> list[tuple[int, Statement]]:
    """The line of `kernel_text`, from 0, of each statement."""
    lines = kernel_text(kernel).splitlines()
    found: list[tuple[int, Statement]] = []
    at = 0
    for section in kernel.sections:
        while lines[at].strip() not in ("loop {", "once {"):
            at += 1
        found += [(at + 1 + i, stmt) for i, stmt in enumerate(section.body)]
        at += 1 + len(section.body)
    return found


def code_links(kernel: Kernel, code: str) -> list[list[int]]:
    """For each line of `kernel_text`, the lines of generated code that compute it, both from 0.

    Arguments keep their names in all generated code. Where values do, too, with suffixes for unrolled loops,
    lines are found by names; else by data flow. A statement that generators merge with the one that uses its
    value has the lines of that one.
    """
    lines = [_Line.of(line) for line in code.splitlines()]
    statements = statement_lines(kernel)
    names = _same_names(statements, lines) or _matched_names(statements, lines)
    links: list[list[int]] = [[] for _ in kernel_text(kernel).splitlines()]
    for at, stmt in statements:
        if isinstance(stmt, Store):
            found = [n for n, line in enumerate(lines) if line.stores and stmt.buffer in line.words]
            links[at] = found or _defining(names.get(stmt.value, ""), lines)
        else:
            found = [n for name in stmt.targets for n in _defining(names.get(name, ""), lines)]
            links[at] = sorted(set(found))
    # a value that has no line is computed where it is used
    user: dict[str, int] = {}
    for at, stmt in reversed(statements):
        if not links[at] and not isinstance(stmt, Store):
            links[at] = next((links[user[name]] for name in stmt.targets if name in user), [])
        user |= dict.fromkeys(stmt.args, at)
    return links


@dataclass(frozen=True)
class _Line:
    """A line of generated code.

    Attributes:
        targets: what it defines, without what unrolling adds to names.
        words: the names on the right of its `=`, or all where it defines nothing.
        stores: whether it may write to memory.
    """

    targets: tuple[str, ...]
    words: frozenset[str]
    stores: bool

    @staticmethod
    def of(text: str) -> _Line:
        found = _ASSIGNED.match(text)
        left, right = (found.group(1), found.group(2)) if found is not None else ("", text)
        targets = tuple(_plain(_WORD.findall(part)[-1]) for part in left.split(",") if _WORD.search(part))
        stores = "store" in text.lower() or "atomic" in text.lower() or ("=" in text and "[" in left)
        words = frozenset(map(_plain, _WORD.findall(text if stores else right)))
        return _Line(targets, words, stores)


def _plain(word: str) -> str:
    """A value's name without what a generator adds to it."""
    found = _SUFFIX.match(word)
    return found.group(1) if found else word


def _defining(name: str, lines: Sequence[_Line]) -> list[int]:
    found = [n for n, line in enumerate(lines) if name in line.targets] if name else []
    # a value that is computed where it is used
    return found or [n for n, line in enumerate(lines) if name in line.words] if name else []


def _same_names(statements: Sequence[tuple[int, Statement]], lines: Sequence[_Line]) -> dict[str, str]:
    """Each value under its own name; empty where the code uses these names for something else."""
    for stmt in (stmt for _, stmt in statements if isinstance(stmt, Load)):
        made = [line for line in lines if stmt.target in line.targets]
        if made and not any(stmt.buffer in line.words for line in made):
            return {}
    values = {name for _, stmt in statements for name in stmt.targets}
    used = {name for line in lines for name in line.targets}
    # names that the IR does not have are a numbering of the generator's own
    if any(_SUFFIX.match(name) and name not in values for name in used):
        return {}
    return {name: name for name in values}


def _matched_names(statements: Sequence[tuple[int, Statement]], lines: Sequence[_Line]) -> dict[str, str]:
    """For each value the name that the code gives it: of the first line in the code's order that is not taken
    and reads what the statement reads.
    """
    names: dict[str, str] = {}
    parts: dict[str, frozenset[str]] = {}
    taken: set[int] = set()
    for _, stmt in statements:
        needed = frozenset[str]().union(*(parts.get(arg, frozenset()) for arg in stmt.args))
        if isinstance(stmt, Load):
            needed |= {stmt.buffer}
        number = next(
            (
                n
                for n, line in enumerate(lines)
                if n not in taken
                and len(line.targets) >= len(stmt.targets)
                and needed
                and needed <= line.words
            ),
            None,
        )
        if isinstance(stmt, Store) or number is None:
            parts |= dict.fromkeys(stmt.targets, needed)
            continue
        taken.add(number)
        for target, name in zip(stmt.targets, lines[number].targets, strict=False):
            names[target], parts[target] = name, frozenset({name})
    return names


def source_links(launch: Launch, sources: Sequence[str]) -> list[list[int]]:
    """For each line of the IR of a launch's kernel, the positions in `sources` that it comes from.

    A statement belongs to the nodes whose results need it; of their operators, to those that are called like
    the statement, where there are such.
    """
    kernel = launch.kernel
    position = {source: i for i, source in enumerate(sources)}
    owners = _owners(launch)
    links: list[list[int]] = [[] for _ in kernel_text(kernel).splitlines()]
    for at, stmt in statement_lines(kernel):
        origins = owners.get(id(stmt), ())
        chosen = [o for o in origins if _is_alike(stmt.op, o.op)] or list(origins)
        links[at] = sorted({position[o.source] for o in chosen if o.source in position})
    return links


def _owners(launch: Launch) -> dict[int, tuple[Origin, ...]]:
    """The origins of each statement, by its identity: those of the first node whose result needs it."""
    kernel = launch.kernel
    written = {name: node for node in launch.nodes for name in node.writes()}
    arguments = {
        arg.name: operand
        for arg, operand in zip(kernel.args, launch.operands, strict=False)
        if isinstance(operand, str)
    }
    statements = [stmt for section in kernel.sections for stmt in section.body]
    makers = {name: stmt for stmt in statements for name in stmt.targets}
    visible = {id(node) for stmt in statements if isinstance(stmt, Store)
               for node in [written.get(arguments.get(stmt.buffer, ""))]}  # fmt: skip
    hidden = tuple(o for node in launch.nodes if id(node) not in visible for o in node.origins)
    found: dict[int, tuple[Origin, ...]] = {}
    for stmt in statements:
        if isinstance(stmt, Store):
            node = written.get(arguments.get(stmt.buffer, ""))
            origins = (*(node.origins if node is not None else ()), *hidden)
            _assign(stmt, origins, makers, found)
    return found


def _assign(
    root: Statement,
    origins: tuple[Origin, ...],
    makers: dict[str, Statement],
    found: dict[int, tuple[Origin, ...]],
) -> None:
    stack = [root]
    while stack:
        stmt = stack.pop()
        if id(stmt) not in found:
            found[id(stmt)] = origins
            stack += [makers[name] for name in stmt.args if name in makers]


def _is_alike(op: str, aten: str) -> bool:
    parts = aten.split(".")
    name = parts[1] if len(parts) > 1 else parts[0]
    return op == name or op in _ALIKE.get(name, ())
