"""Whole-number expressions over a kernel's size arguments, as postfix programs that the launcher runs.

A program is a flat list of numbers: an operation, followed by its operand where it has one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum

from polyfuse.base.errors import KernelLoadError
from polyfuse_triton.build.meta import Extent

MAX_STACK = 32
"""Most numbers that a program may hold at once; the launcher has room for as many."""


class _Op(IntEnum):
    """In the order of the launcher's own list."""

    CONST = 0
    ARG = 1
    ADD = 2
    SUB = 3
    MUL = 4
    DIV = 5
    MOD = 6
    MIN = 7
    MAX = 8
    LT = 9
    LE = 10
    GT = 11
    GE = 12
    EQ = 13
    NE = 14
    AND = 15
    OR = 16
    NEG = 17


_BINARY: Mapping[type[ast.AST], _Op] = {
    ast.Add: _Op.ADD,
    ast.Sub: _Op.SUB,
    ast.Mult: _Op.MUL,
    ast.FloorDiv: _Op.DIV,
    ast.Mod: _Op.MOD,
    ast.Lt: _Op.LT,
    ast.LtE: _Op.LE,
    ast.Gt: _Op.GT,
    ast.GtE: _Op.GE,
    ast.Eq: _Op.EQ,
    ast.NotEq: _Op.NE,
    ast.And: _Op.AND,
    ast.Or: _Op.OR,
}
_CALLS: Mapping[str, _Op] = {"min": _Op.MIN, "max": _Op.MAX}


def postfix(expression: Extent, arguments: Sequence[str]) -> list[int]:
    """The program of an expression; names are looked up in `arguments`. Raises `KernelLoadError` for what is
    no such expression.
    """
    if isinstance(expression, int):
        return [_Op.CONST, int(expression)]
    try:
        program = list(_walk(ast.parse(expression, mode="eval").body, arguments))
    except (SyntaxError, ValueError) as error:
        raise KernelLoadError(
            f"{expression!r} is no expression over {', '.join(arguments)} ({error})", "report it"
        ) from None
    if _height(program) > MAX_STACK:
        raise KernelLoadError(f"{expression!r} is nested too deeply to be a grid", "report it")
    return program


def evaluate(program: Sequence[int], values: Sequence[int]) -> int:
    """Run a program, as the launcher does."""
    stack: list[int] = []
    words = iter(program)
    for op in words:
        if op == _Op.CONST:
            stack.append(next(words))
        elif op == _Op.ARG:
            stack.append(values[next(words)])
        elif op == _Op.NEG:
            stack[-1] = -stack[-1]
        else:
            b, a = stack.pop(), stack.pop()
            stack.append(_apply(_Op(op), a, b))
    return stack[-1]


def _walk(node: ast.expr, arguments: Sequence[str]) -> Iterator[int]:
    match node:
        case ast.Constant(value=int(number)):
            yield from (_Op.CONST, int(number))
        case ast.Name(id=name):
            yield from (_Op.ARG, arguments.index(name))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            yield from (*_walk(operand, arguments), _Op.NEG)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            yield from (*_walk(left, arguments), *_walk(right, arguments), _BINARY[type(op)])
        case ast.Call(func=ast.Name(id=name), args=[first, *others], keywords=[]) if name in _CALLS:
            yield from _walk(first, arguments)
            for other in others:
                yield from (*_walk(other, arguments), _CALLS[name])
        case ast.BoolOp(op=op, values=[first, *others]):
            yield from _walk(first, arguments)
            for other in others:
                yield from (*_walk(other, arguments), _BINARY[type(op)])
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _BINARY:
            yield from (*_walk(left, arguments), *_walk(right, arguments), _BINARY[type(op)])
        case _:
            raise ValueError(f"{ast.unparse(node)} cannot be in it")


def _height(program: Sequence[int]) -> int:
    height = most = 0
    words = iter(program)
    for op in words:
        if op in (_Op.CONST, _Op.ARG):
            next(words)
            height += 1
            most = max(most, height)
        elif op != _Op.NEG:
            height -= 1
    return most


def _apply(op: _Op, a: int, b: int) -> int:
    match op:
        case _Op.ADD:
            return a + b
        case _Op.SUB:
            return a - b
        case _Op.MUL:
            return a * b
        case _Op.DIV:
            return a // b
        case _Op.MOD:
            return a % b
        case _Op.MIN:
            return min(a, b)
        case _Op.MAX:
            return max(a, b)
        case _Op.LT:
            return int(a < b)
        case _Op.LE:
            return int(a <= b)
        case _Op.GT:
            return int(a > b)
        case _Op.GE:
            return int(a >= b)
        case _Op.EQ:
            return int(a == b)
        case _Op.NE:
            return int(a != b)
        case _Op.AND:
            return int(bool(a) and bool(b))
        case _:
            return int(bool(a) or bool(b))
