"""Which lines belong together: of the model, of a kernel's IR, and of the code generated from it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from polyfuse.ir.kernel import Kernel
from polyfuse.ir.nodes import Origin
from polyfuse.ir.statements import Statement, Store
from polyfuse.ir.text.print import text
from polyfuse.schedule import Launch

__all__ = ["code_links", "kernel_text", "source_links"]

_WORD = re.compile(r"[A-Za-z_]\w*")
_SUFFIX = re.compile(r"^(?:acc_)?(v\d+)(?:_\d+)*$")
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

    Generators keep the names of values and arguments, with suffixes where they unroll a loop. A line that
    defines or stores a value is linked; one that only uses it is not.
    """
    defined: dict[str, list[int]] = {}
    stored: dict[str, list[int]] = {}
    for number, line in enumerate(code.splitlines()):
        head, equals, _ = line.partition("=")
        if equals and (target := _target(head)):
            defined.setdefault(target, []).append(number)
        if "store" in line.lower() or "atomic" in line.lower() or (equals and "[" in head):
            for word in dict.fromkeys(_WORD.findall(line)):
                stored.setdefault(word, []).append(number)
    links: list[list[int]] = [[] for _ in kernel_text(kernel).splitlines()]
    for at, stmt in statement_lines(kernel):
        if isinstance(stmt, Store):
            links[at] = stored.get(stmt.buffer, [])
        else:
            links[at] = sorted({n for name in stmt.targets for n in defined.get(name, [])})
    return links


def _target(head: str) -> str:
    """The value that an assignment defines, without what unrolling added to its name."""
    words = _WORD.findall(head)
    found = _SUFFIX.match(words[-1]) if words else None
    return found.group(1) if found else (words[-1] if words else "")


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
