"""From a native host program to what it is opened with inside Python: a function for each request, and a plan
of its arguments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.nodes import Opaque
from polyfuse.plugin.host import Constant, HostProgram, Operand, Request
from polyfuse.runtime.checks import Aligned, realigned
from polyfuse.runtime.native import operator, tensor_data_ptr_address
from polyfuse.runtime.native_program import RUNTIME, Answer, Explainer, HostTables, Plan
from polyfuse.symbolic.text import host_value

_CONSTANT, _REFERENCE, _INTEGER, _TUPLE = range(4)


def host_tables(
    program: HostProgram,
    addresses: Sequence[int],
    launchables: Mapping[str, Callable[..., Any]],
    objects: Mapping[str, Any],
    aligned: Aligned,
) -> HostTables:
    """What a program is opened with.

    Args:
        program: which.
        addresses: of the kernels that it calls directly.
        launchables: the others, by their names.
        objects: the graph's object table.
        aligned: which inputs kernels take to be aligned, for copies of those that are not.

    Raises:
        UnsupportedError: this torch gives native code no access to its tensors.
    """
    data_pointer = tensor_data_ptr_address()
    if data_pointer is None:
        raise UnsupportedError("this torch does not tell native code where a tensor's data are")

    def answer(request: Request) -> Answer:
        values = (*request.args, *(value for _, value in request.kwargs))
        keywords = tuple(name for name, _ in request.kwargs)
        return Answer(
            _function(request, launchables, objects),
            _plan(values, request.operands, objects),
            len(request.args),
            keywords,
            request.results,
            request.several,
        )

    kinds = "".join("r" if isinstance(r, str) else "i" for r in program.results)
    origins = tuple(request.origin for request in program.requests)
    subjects = tuple(request.subject for request in program.requests)

    def again(call: Callable[[list[Any]], Any], args: list[Any]) -> Any:
        return realigned(call, args, aligned)

    return HostTables(
        name=program.name,
        inputs="".join(item.kind for item in program.inputs),
        results=kinds,
        kernels=tuple(addresses),
        constants=tuple(objects[key] for key in program.constant_keys),
        requests=tuple(map(answer, program.requests)),
        returns=_plan((program.returns,), kinds, objects),
        tensor_type=torch.Tensor,
        realigned=again,
        explain=Explainer(tuple(item.label or item.name for item in program.inputs), origins, subjects),
        data_pointer=data_pointer,
    )


def _function(
    request: Request, launchables: Mapping[str, Callable[..., Any]], objects: Mapping[str, Any]
) -> Callable[..., Any]:
    if request.name == "host_number":
        return _host_number
    if request.kind == "runtime":
        return RUNTIME[request.name]
    if request.kind == "kernel":
        return launchables[request.name]
    if request.kind == "object":
        found: Callable[..., Any] = objects[request.name]
        return found
    return operator(request.name, request.kind == "out")


def _host_number(text: str, names: tuple[str, ...], *values: int) -> Any:
    """A number that is written as Python, over symbols with these values."""
    return host_value(text, dict(zip(names, values, strict=True)))


def _plan(values: Sequence[Any], letters: str, objects: Mapping[str, Any]) -> Plan:
    """Arguments as steps on a stack. What depends on no operand is one constant."""
    code: list[int] = []
    constants: list[Any] = []
    depth = [0, 0]

    def grow(by: int) -> None:
        depth[0] += by
        depth[1] = max(depth)

    def push(value: Any) -> None:
        if isinstance(value, Operand):
            code.append(value.position * 4 + (_REFERENCE if letters[value.position] == "r" else _INTEGER))
            grow(1)
        elif isinstance(value, tuple) and _varies(value):
            for item in value:
                push(item)
            code.append(len(value) * 4 + _TUPLE)
            grow(1 - len(value))
        else:
            code.append(len(constants) * 4 + _CONSTANT)
            constants.append(_fixed(value, objects))
            grow(1)

    for value in values:
        push(value)
    return Plan(tuple(code), tuple(constants), depth[1])


def _varies(value: Any) -> bool:
    """Whether a value has an operand in it."""
    return isinstance(value, Operand) or (isinstance(value, tuple) and any(map(_varies, value)))


def _fixed(value: Any, objects: Mapping[str, Any]) -> Any:
    """A value that is the same in each call."""
    if isinstance(value, tuple):
        return tuple(_fixed(item, objects) for item in value)
    if isinstance(value, Constant):
        return objects[value.key]
    if isinstance(value, Opaque):
        return eval(value.text, {"torch": torch, "math": math})
    return value
