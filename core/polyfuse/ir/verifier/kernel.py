"""The rules of a kernel, checked."""

from __future__ import annotations

from collections.abc import Iterator

from polyfuse.base.errors import VerifyError
from polyfuse.ir.aliasing import AliasRule
from polyfuse.ir.kernel import Kernel, Section
from polyfuse.ir.ops import CHECK_MODE, GROUP_MODES, STORE_MODES
from polyfuse.ir.statements import IndexValue, Load, Reduce, Scan, Statement, Store
from polyfuse.ir.text.print import Printer
from polyfuse.ir.types import DType
from polyfuse.ir.verifier.rules import extent_fault, index_fault, operation_fault, result_types
from polyfuse.symbolic import Index, IndexLike, axis_name, axis_size

_NEIGHBOURS = 4
"""Statements shown on either side of a faulty one."""

_MODES = (*STORE_MODES, *GROUP_MODES, CHECK_MODE)


def verify_kernel(kernel: Kernel) -> None:
    """Check every rule of `polyfuse.ir.kernel`.

    Raises:
        VerifyError: a rule is broken; the message shows the statement among its neighbours.
    """
    fault = _head_fault(kernel)
    if fault:
        raise VerifyError(f"kernel {kernel.name}: {fault}")
    if kernel.parts:
        fault = _parts_fault(kernel)
        if fault:
            raise VerifyError(f"kernel {kernel.name}: {fault}")
        for part in dict.fromkeys(part.kernel for part in kernel.parts):
            verify_kernel(part)
        return
    check = _Check(kernel)
    for at, section in enumerate(kernel.sections):
        check.section(at, section)
    rule = AliasRule(kernel) if kernel.aliases else None
    for alias in kernel.aliases:
        fault = rule.fault(alias) if rule is not None else ""
        if fault:
            raise VerifyError(f"kernel {kernel.name}: {fault}")


def _parts_fault(kernel: Kernel) -> str:
    """Why parts cannot be launched as one kernel; empty where they can."""
    if kernel.axes or kernel.raxes or kernel.sections or kernel.row_buffers:
        return "a kernel of parts has no loops of its own"
    declared = {arg.name: arg for arg in kernel.args}
    writers: dict[str, int] = {}
    for number, part in enumerate(kernel.parts):
        if part.kernel.parts:
            return "a part has parts itself"
        if part.kernel.device != kernel.device or len(part.args) != len(part.kernel.args):
            return f"part {number} is for another device, or has another number of arguments"
        for name, arg in zip(part.args, part.kernel.args, strict=True):
            whole = declared.get(name)
            if whole is None or (whole.kind, whole.dtype) != (arg.kind, arg.dtype):
                return f"argument {arg.name} of part {number} is not what the whole declares as {name!r}"
            if arg.kind in ("out", "inout") and writers.setdefault(name, number) != number:
                return f"two parts write {name!r}"
    inner = {
        (names[pair.output], names[pair.input])
        for part in kernel.parts
        for names in (dict(zip((a.name for a in part.kernel.args), part.args, strict=True)),)
        for pair in part.kernel.aliases
    }
    if any((pair.output, pair.input) not in inner for pair in kernel.aliases):
        return "an alias of the whole is none of its parts"
    return ""


def _head_fault(kernel: Kernel) -> str:
    names = [a.name for a in kernel.args] + [row.name for row in kernel.row_buffers]
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        return f"the name {twice[0]!r} is declared twice"
    axes = [axis_name(a) for a in kernel.axes + kernel.raxes]
    twice = sorted({n for n in axes if axes.count(n) > 1})
    if twice:
        return f"the axis {twice[0]!r} is declared twice"
    for arg in kernel.args:
        if arg.kind not in ("in", "out", "inout", "size"):
            return f"argument {arg.name} is of the unknown kind {arg.kind!r}"
        if arg.kind == "size" and (arg.dtype is not DType.i64 or arg.numel is not None):
            return f"argument {arg.name} is a size, which is i64 and has no extent"
        if arg.kind != "size" and arg.numel is None:
            return f"argument {arg.name} is a buffer without extent"
    if kernel.size_hints and len(kernel.size_hints) != len(axes):
        return f"there are {len(kernel.size_hints)} size hints for {len(axes)} axes"
    if kernel.numerics not in ("fast", "eager"):
        return f"numerics {kernel.numerics!r} is unknown"
    sizes = tuple(a.name for a in kernel.args if a.kind == "size")
    if len(set(kernel.aliases)) != len(kernel.aliases):
        return "an alias is declared twice"
    for index in _declared(kernel):
        fault = index_fault(index, (), symbols=sizes)
        if fault:
            return fault
    return ""


def _declared(kernel: Kernel) -> Iterator[IndexLike]:
    for found in kernel.axes + kernel.raxes:
        yield axis_size(found)
    for arg in kernel.args:
        if arg.numel is not None:
            yield arg.numel
    for row in kernel.row_buffers:
        yield row.size


class _Check:
    """What is known while the sections are gone through in order."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.sizes = tuple(a.name for a in kernel.args if a.kind == "size")
        self.buffers: dict[str, tuple[DType, IndexLike]] = {
            a.name: (a.dtype, a.numel) for a in kernel.args if a.numel is not None
        }
        self.buffers.update({row.name: (row.dtype, row.size) for row in kernel.row_buffers})
        self.readable = {a.name for a in kernel.args if a.kind in ("in", "inout")}
        self.writable = {a.name for a in kernel.args if a.kind in ("out", "inout")}
        self.writable |= {row.name for row in kernel.row_buffers}
        self.defined: set[str] = set()
        self.visible: dict[str, DType] = {}

    def section(self, at: int, section: Section) -> None:
        """Check a section, and make known what later ones may use."""
        if section.looped and not self.kernel.raxes:
            raise VerifyError(f"kernel {self.kernel.name}: section {at} is looped without reduction axes")
        axes = self.kernel.axes + (self.kernel.raxes if section.looped else ())
        inside = dict(self.visible)
        later: dict[str, DType] = {}
        for number, stmt in enumerate(section.body):
            fault = self._statement(stmt, section.looped, axes, inside, later)
            if fault:
                raise VerifyError(f"kernel {self.kernel.name}: {fault}, at\n{self._excerpt(at, number)}")
        self.visible.update(later if section.looped else inside)

    def _statement(
        self,
        stmt: Statement,
        looped: bool,
        axes: tuple[Index, ...],
        inside: dict[str, DType],
        later: dict[str, DType],
    ) -> str:
        for name in stmt.args:
            if name not in inside:
                hint = " (it is known only outside that loop)" if name in self.defined else ""
                return f"{stmt.op} uses {name!r}, which is not known there{hint}"
        for name in stmt.targets:
            if name in self.defined:
                return f"{name!r} is defined twice"
            self.defined.add(name)
        operands = tuple(inside[name] for name in stmt.args)
        match stmt:
            case Store():
                return self._store(stmt, operands, axes)
            case Reduce():
                return self._carried(stmt, looped, operands, later)
            case Scan():
                return self._carried(stmt, looped, operands, inside)
        inside[stmt.target] = stmt.dtype
        fault = operation_fault(stmt.op, operands, stmt.dtype, stmt.payload)
        if fault:
            return fault
        match stmt:
            case IndexValue():
                return index_fault(stmt.index, axes, symbols=self.sizes)
            case Load():
                if stmt.buffer in self.buffers and stmt.buffer not in self.readable:
                    return f"{stmt.buffer!r} is read before anything is stored to it"
                return self._access(stmt, axes)
        return ""

    def _carried(
        self, stmt: Reduce | Scan, looped: bool, operands: tuple[DType, ...], known: dict[str, DType]
    ) -> str:
        if not looped:
            return f"{stmt.op} stands in a section that is not looped"
        if stmt.op == "scan" and len(self.kernel.raxes) != 1:
            return f"scan runs along one reduction axis, and there are {len(self.kernel.raxes)}"
        found = result_types(stmt.op, stmt.kind, operands)
        if isinstance(found, str):
            return found
        if len(found) != len(stmt.targets):
            return f"{stmt.op} {stmt.kind} defines {len(found)} values, not {len(stmt.targets)}"
        if stmt.dtype is not found[0]:
            return f"{stmt.op} {stmt.kind} gives {found[0]} here, not {stmt.dtype}"
        known.update(zip(stmt.targets, found, strict=True))
        return ""

    def _store(self, stmt: Store, operands: tuple[DType, ...], axes: tuple[Index, ...]) -> str:
        name, mode, count = stmt.buffer, stmt.mode, len(stmt.indirect)
        if mode not in _MODES:
            return f"store mode {mode!r} is unknown; the modes are {', '.join(_MODES)}"
        if operands[0] is not stmt.dtype:
            return f"a value of type {operands[0]} is stored as {stmt.dtype}"
        if any(t is not DType.i64 for t in operands[1 : 1 + count]):
            return "an indirect operand is not i64"
        if stmt.mask is not None and operands[-1] is not DType.bool:
            return f"the mask is {operands[-1]}, not bool"
        if name in self.buffers and name not in self.writable:
            return f"{name!r} is an input, and is stored to"
        if mode not in GROUP_MODES:
            self.readable.add(name)
        elif name in self.readable:
            return f"{name!r} is combined from nothing, and is read or stored to otherwise"
        return self._access(stmt, axes)

    def _access(self, stmt: Load | Store, axes: tuple[Index, ...]) -> str:
        if stmt.buffer not in self.buffers:
            return f"buffer {stmt.buffer!r} is not declared"
        held, numel = self.buffers[stmt.buffer]
        if held is not stmt.dtype:
            return f"buffer {stmt.buffer!r} holds {held}, not {stmt.dtype}"
        fault = index_fault(stmt.index, axes, len(stmt.indirect), self.sizes)
        if fault or stmt.mask is not None:
            return fault
        return extent_fault(stmt.index, numel, axes)

    def _excerpt(self, at: int, number: int) -> str:
        printer = Printer(comments=False)
        printer.scope.loops(self.kernel.axes, self.kernel.raxes)
        body = self.kernel.sections[at].body
        first = max(0, number - _NEIGHBOURS)
        lines = [f"    {'loop' if self.kernel.sections[at].looped else 'once'} {{"]
        if first:
            lines.append("      ...")
        for n in range(first, min(len(body), number + _NEIGHBOURS + 1)):
            lines.append(f"{'  >   ' if n == number else '      '}{printer.statement(body[n])}")
        return "\n".join(lines)
