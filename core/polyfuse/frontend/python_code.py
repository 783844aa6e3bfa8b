"""A Python function as text that says what it does, the same in every process: its byte code, and all that it
reads, followed down to functions of torch and of Python.

A custom operator's gradient and the policy of a selective checkpoint are traced by AOTAutograd, which a graph
that is found in the graph cache is spared; so their text is part of its key. Whatever cannot be followed is
refused: methods and classes of others, modules that are passed around, imports inside functions, tensors.
"""

from __future__ import annotations

import builtins
import dis
import enum
import functools
import sys
import types
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from polyfuse.frontend.addresses import PLAIN, TORCH_NAMESPACES, address_of
from polyfuse.torch_compat import ops
from polyfuse.torch_compat.custom_operators import Untraceable, described, overload_of

if TYPE_CHECKING:
    from polyfuse.torch_compat.ops import OpOverload


class Unreadable(Exception):
    """Why there is no text for a function."""


# Modules whose functions depend on their arguments alone, and on switches of torch that are part of the key.
_PURE = frozenset(
    {"_collections", "_functools", "_operator", "builtins", "collections", "enum", "functools", "itertools"}
    | {"math", "operator", "typing"}
    | {"torch", "torch._C", "torch._C._VariableFunctions", "torch._C._nn", "torch._tensor"}
    | {
        "torch.autograd.function",
        "torch.compiler",
        "torch.functional",
        "torch.library",
        "torch.nn.functional",
    }
    | {"torch.utils.checkpoint", "torch.utils._pytree"}
)
_HOMES = frozenset(name.partition(".")[0] for name in _PURE)

# Through these a function can reach what its code does not name.
_OPEN_ENDED = frozenset(
    {
        "__import__",
        "breakpoint",
        "compile",
        "eval",
        "exec",
        "globals",
        "id",
        "input",
        "locals",
        "open",
        "vars",
    }
)

# What attributes of are looked up here; those of anything else belong to the text of the value.
_NAMESPACES = (types.ModuleType, type, *ops.NAMESPACE_TYPES)

# What is read further, and may be met again.
_FOLLOWED = (list, tuple, dict, set, frozenset, functools.partial, types.FunctionType)

# Instructions that change neither what is on the stack nor what a name means.
_SKIPPED = frozenset({"EXTENDED_ARG", "NOP", "PUSH_NULL", "CACHE", "PRECALL", "RESUME"})

_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD")

_UNFOLLOWED = {
    "IMPORT_NAME": "imports a module when it is called",
    "LOAD_BUILD_CLASS": "makes a class when it is called",
    "STORE_GLOBAL": "changes a global variable",
    "DELETE_GLOBAL": "changes a global variable",
}


def function_text(function: Any) -> str:
    """Return what a function or a partial call of one does, as text.

    Raises:
        Unreadable: it depends on something that has no text.
    """
    return f"python {sys.version} {_Reader().value(function)}"


def operator_text(op: Any) -> str:
    """Return how an operator that is not torch's own is traced, as text.

    Raises:
        Unreadable: nobody can say how, or a function of it depends on something that has no text.
    """
    return f"python {sys.version} {_Reader().value(op)}"


class _Reader:
    """Reads one value, and everything that it refers to once."""

    def __init__(self) -> None:
        # the values themselves keep others from being made at their addresses
        self._seen: dict[int, tuple[int, Any]] = {}

    def value(self, value: Any) -> str:
        """The text of what a function refers to."""
        if isinstance(value, enum.Enum):
            return f"{self._address(type(value))}.{value.name} = {self.value(value.value)}"
        if type(value) in PLAIN or type(value) is bytes:
            return f"{type(value).__name__} {value!r}"
        operator = overload_of(value)
        value = value if operator is None else operator
        if operator is not None and operator.namespace in TORCH_NAMESPACES:
            return str(operator)
        if operator is None and not isinstance(value, _FOLLOWED):
            return self._address(value)
        if id(value) in self._seen:
            return f"@{self._seen[id(value)][0]}"
        number = len(self._seen)
        self._seen[id(value)] = number, value
        return f"@{number} = {self._new(value) if operator is None else self._operator(operator)}"

    def _operator(self, op: OpOverload) -> str:
        try:
            found = described(op)
        except Untraceable as error:
            raise Unreadable(str(error)) from error
        functions = (f"{use} {self.value(function)}" for use, function in found.functions)
        return f"operator({', '.join((found.facts, *functions))})"

    def _new(self, value: Any) -> str:
        kind = type(value)
        if kind in (list, tuple, torch.Size):
            return f"{kind.__name__}({', '.join(map(self.value, value))})"
        if kind in (set, frozenset):
            # numbers of what was seen would depend on the order
            return f"{kind.__name__}({', '.join(sorted(_Reader().value(item) for item in value))})"
        if kind is dict:
            items = (f"{self.value(key)}: {self.value(item)}" for key, item in value.items())
            return f"dict({', '.join(items)})"
        if kind is functools.partial:
            parts = (value.func, value.args, value.keywords)
            return f"partial({', '.join(map(self.value, parts))})"
        if kind is types.FunctionType:
            inside = str(value.__module__).partition(".")[0] in _HOMES and address_of(value, _HOMES)
            return self._address(value) if inside else self._function(value)
        raise Unreadable(f"it depends on a {kind.__name__}")

    def _address(self, value: Any) -> str:
        """Where a function or class is found that depends on its arguments alone."""
        address = address_of(value, _HOMES)
        module, _, name = address.partition(":")
        if module in _PURE and name not in _OPEN_ENDED:
            return address
        named = getattr(value, "__qualname__", "") or f"a {type(value).__name__}"
        raise Unreadable(f"{named} has no text that says what it does")

    def _function(self, function: types.FunctionType) -> str:
        try:
            free = {
                name: cell.cell_contents
                for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
            }
        except ValueError as error:
            raise Unreadable("it depends on a variable that is not set yet") from error
        defaults = self.value(function.__defaults__), self.value(function.__kwdefaults__)
        return (
            f"function({', '.join((*defaults, *self._code(function.__code__, function.__globals__, free)))})"
        )

    def _code(self, code: types.CodeType, names: Mapping[str, Any], free: Mapping[str, Any]) -> Iterator[str]:
        """A code object and those inside it, with what their global and free variables are."""
        yield f"{code.co_code.hex()} {code.co_exceptiontable.hex()} {code.co_flags}"
        yield f"{code.co_argcount} {code.co_posonlyargcount} {code.co_kwonlyargcount}"
        yield f"{code.co_names} {code.co_varnames} {code.co_freevars} {code.co_cellvars}"
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                # free variables of its own that are local here hold what this code computes
                inner = {name: free[name] for name in constant.co_freevars if name in free}
                yield from self._code(constant, names, inner)
            else:
                yield self.value(constant)
        yield from self._reads(code, names, free)

    def _reads(
        self, code: types.CodeType, names: Mapping[str, Any], free: Mapping[str, Any]
    ) -> Iterator[str]:
        steps = [step for step in dis.get_instructions(code) if step.opname not in _SKIPPED]
        for at, step in enumerate(steps):
            if step.opname in _UNFOLLOWED:
                raise Unreadable(f"it {_UNFOLLOWED[step.opname]}")
            name = step.argval
            if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                if name not in names and not hasattr(builtins, name):
                    yield f"{name} is not defined"
                    continue
                value = names[name] if name in names else getattr(builtins, name)
            elif "DEREF" in step.opname or "CLOSURE" in step.opname:
                if name not in free:
                    continue
                value = free[name]
            else:
                continue
            following = iter(steps[at + 1 :])
            while (read := next(following, None)) is not None and read.opname in _ATTRIBUTE:
                if isinstance(value, types.FunctionType):
                    raise Unreadable(f"it reads an attribute of the function {name}")
                if not isinstance(value, _NAMESPACES):
                    break
                if not hasattr(value, read.argval):
                    raise Unreadable(f"it reads {name}.{read.argval}, which is not there")
                name, value = f"{name}.{read.argval}", getattr(value, read.argval)
            yield f"{name} is {self.value(value)}"
