"""Objects that guards compare by identity, as text that is the same in every process.

What is described is what tells one object from others that could be found instead: a function's code with
what it closes over, the address of a class or a module. Whatever has no such text is refused.
"""

from __future__ import annotations

import enum
import importlib
import sys
import types
from collections.abc import Callable, Iterator
from functools import lru_cache
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from polyfuse.base.digest import digest
from polyfuse.compiler.captures.files import file_text, is_versioned
from polyfuse.frontend.addresses import PLAIN
from polyfuse.torch_compat.captures.guards import Unstorable, is_constant
from polyfuse.torch_compat.ops import NAMESPACE_TYPES, HigherOrderOperator, OpOverload, OpOverloadPacket

_DEEPEST = 4
"""How far functions are followed into those that they close over."""

_HOMES = ("torch", "torch.nn.functional", "torch._C._nn", "builtins", "math", "operator")
"""Where functions of C lie that do not say so themselves."""

_COLLECTIONS = (tuple, list, set, frozenset, dict, torch.Size)

Outline = Callable[[object, int], str]
"""An object of a class as text, from how far it was followed."""
_IGNORED = frozenset(
    ("__doc__", "__dict__", "__weakref__", "__module__", "__annotations__", "__annotate__")
    + ("__annotations_cache__", "__abstractmethods__", "_abc_impl", "__firstlineno__")
    + ("__static_attributes__", "__orig_bases__", "__parameters__", "__subclasshook__", "__slots__")
)
_PLAIN = (int, float, complex, bool, str, bytes, type(None))
_STANDARD = frozenset(("torch", "builtins", "abc", "collections", "typing", "enum", "functools"))


def described(value: object, depth: int = 0) -> str:
    """What an object is.

    Raises:
        Unstorable: it has no text.
    """
    if type(value) in PLAIN or type(value) is bytes:
        return f"{type(value).__name__} {value!r}"
    if isinstance(value, enum.Enum):
        return f"{described(type(value), 1)}.{value.name} {_outlined(value.value, depth + 1)}"
    if isinstance(value, NAMESPACE_TYPES):
        return f"operators {value.__name__}"
    if isinstance(value, ModuleType):
        return _module(value)
    if isinstance(value, type):
        return _class(value, depth)
    if isinstance(value, CodeType):
        return code_text(value)
    if isinstance(value, FunctionType) and depth < _DEEPEST:
        return _function(value, depth)
    if isinstance(value, MethodType):
        of = value.__self__
        # of an object, what the method uses has guards of its own
        owner = described(of) if isinstance(of, type) else f"a {described(type(of), 1)}"
        return f"{described(value.__func__, depth)} of {owner}"
    if isinstance(value, (OpOverload, OpOverloadPacket)):
        return f"operator {value}"
    if isinstance(value, HigherOrderOperator):
        return f"operator {value.name()}"
    if type(value) in _COLLECTIONS and depth < _DEEPEST:
        return _collection(value, depth + 1)
    if type(value) in (slice, range):
        return f"{value!r}"
    if is_constant(value) and depth < _DEEPEST:  # it is what its state is, to Dynamo too
        parts = [described(part, depth + 1) for part in value.__reduce_ex__(2)]
        return f"constant {described(type(value), 1)} {parts}"
    return f"{type(value).__name__} {_address(value)}"


def _class(value: type, depth: int) -> str:
    try:
        address = _address(value)
    except Unstorable:
        if depth >= _DEEPEST:
            raise
        # made by a program, as `fully_shard` does: what it is of, and all that it holds itself
        of = [described(base) for base in value.__bases__]
        made_by = described(type(value), depth + 1)
        return f"class {value.__qualname__} of {of} by {made_by}: {own_text(value, described)}"
    # of one that something refers to, what is used has guards of its own
    return f"class {address}{'' if depth else f' {class_text(value, _outlined)}'}"


def _collection(value: Any, depth: int) -> str:
    items = value.items() if isinstance(value, dict) else value
    parts = [described(item, depth) for item in items]
    if isinstance(value, set | frozenset):
        parts.sort()
    return f"{type(value).__name__}({', '.join(parts)})"


def _outlined(value: object, depth: int) -> str:
    """What is known of an object that no guard compares by itself; of some, their type alone."""
    try:
        return described(value, depth)
    except Unstorable:
        return f"a {type(value).__module__}.{type(value).__qualname__}"


@lru_cache(1 << 14)
def code_text(code: CodeType) -> str:
    """A code object with those inside it."""
    parts = [
        f"{code.co_qualname} {code.co_filename} {code.co_firstlineno} {code.co_flags} {code.co_argcount}",
        f"{code.co_posonlyargcount} {code.co_kwonlyargcount} {code.co_names} {code.co_varnames}",
        f"{code.co_freevars} {code.co_cellvars}",
        *(described(constant) for constant in code.co_consts),
    ]
    return f"code {digest(*parts, code.co_code, code.co_exceptiontable)}"


def _function(function: FunctionType, depth: int) -> str:
    try:
        cells = [described(cell.cell_contents, depth + 1) for cell in function.__closure__ or ()]
    except ValueError as error:
        raise Unstorable(f"{function.__qualname__} refers to a variable that is not set") from error
    defaults = [described(value, depth + 1) for value in function.__defaults__ or ()]
    named = sorted(
        (key, described(value, depth + 1)) for key, value in (function.__kwdefaults__ or {}).items()
    )
    return f"function {function.__module__} {code_text(function.__code__)} {defaults} {named} {cells}"


def _module(module: ModuleType) -> str:
    if sys.modules.get(module.__name__) is not module:
        raise Unstorable(f"the module {module.__name__} is not the one that is imported")
    return f"module {module.__name__}"


def _address(value: Any) -> str:
    """Where an object is found, and what the file is in which it lies."""
    named = getattr(value, "__qualname__", "") or getattr(value, "__name__", "")
    owner = getattr(value, "__objclass__", None)
    module = getattr(owner or value, "__module__", None)
    for home in (module, *_HOMES) if named else ():
        for name in (named, getattr(value, "__name__", named)):
            if isinstance(home, str) and _found(home, name) is value:
                return f"{home}:{name} {_file(home)}"
    of = getattr(value, "__self__", None) if isinstance(value, BuiltinFunctionType) else None
    name = str(getattr(value, "__name__", ""))
    if isinstance(of, (type, ModuleType)) and getattr(of, name, None) is value:
        return f"{described(of)}:{name}"
    for name in dir(types) if isinstance(value, type) else ():  # as that of methods, which say `builtins`
        if getattr(types, name) is value:
            return f"types:{name}"
    raise Unstorable(f"a {type(value).__name__} that it compares has no address: {named}")


def _found(module: str, name: str) -> object:
    try:
        found: Any = sys.modules.get(module) or importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError):
        return None
    return found


def _file(module: str) -> str:
    file = getattr(sys.modules.get(module), "__file__", None)
    return file_text(file) if isinstance(file, str) and file.endswith(".py") else ""


def class_text(found: type, outline: Outline) -> str:
    """What a class and those that it inherits from hold. Dynamo compares which class an object has, and takes
    for granted what the class holds; in another process somebody may have replaced a method of it.

    Args:
        outline: is asked for what is no function.
    """
    return digest(*(line for base in found.__mro__ for line in _lines(base, outline)))


def own_text(found: type, outline: Outline) -> str:
    """What a class holds itself, all of which `outline` is asked for."""
    held = sorted((name, value) for name, value in vars(found).items() if name not in _IGNORED)
    return digest(*(f"{name} {outline(value, 1)}" for name, value in held))


def _lines(base: type, outline: Outline) -> Iterator[str]:
    yield f"{base.__module__}.{base.__qualname__}"
    for name, value in sorted(vars(base).items()):
        if name in _IGNORED:
            continue
        functions = [each for each in _functions(value) if isinstance(each, FunctionType)]
        if functions:
            yield f"{name} {type(value).__name__} {[_function_text(each, outline) for each in functions]}"
        elif isinstance(value, _PLAIN):
            yield f"{name} {value!r}"
        elif not _is_original(base):
            yield f"{name} {outline(value, 1)}"


def _functions(value: Any) -> tuple[Any, ...]:
    if isinstance(value, classmethod | staticmethod):
        return (value.__func__,)
    return (value.fget, value.fset, value.fdel) if isinstance(value, property) else (value,)


def _function_text(function: FunctionType, outline: Outline) -> str:
    code = function.__code__
    if is_versioned(code.co_filename):
        return f"{code.co_filename}:{code.co_firstlineno} {code.co_qualname}"
    return outline(function, 1)


def _is_original(base: type) -> bool:
    """Whether a class came with torch or Python, whose versions say what it holds besides functions."""
    module = base.__module__.partition(".")[0]
    return module in _STANDARD
