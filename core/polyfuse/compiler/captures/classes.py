"""Classes as text that changes with what they do.

Dynamo compares which class an object has, and takes for granted what the class holds: methods, properties
and constants. In one process that holds unless somebody replaces one of them; another process may have done
so before it compiles anything, and a class between two others may have got a method of that name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

from polyfuse.base.digest import digest
from polyfuse.compiler.captures.files import is_versioned

Outline = Callable[[object, int], str]
"""An object of a class as text, from how far it was followed."""

_IGNORED = frozenset(
    ("__doc__", "__dict__", "__weakref__", "__module__", "__annotations__", "__annotate__")
    + ("__annotations_cache__", "__abstractmethods__", "_abc_impl", "__firstlineno__")
    + ("__static_attributes__", "__orig_bases__", "__parameters__", "__subclasshook__", "__slots__")
)

_PLAIN = (int, float, complex, bool, str, bytes, type(None))


def class_text(found: type, outline: Outline) -> str:
    """What a class and those that it inherits from hold.

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
            yield f"{name} {type(value).__name__} {[_function(each, outline) for each in functions]}"
        elif isinstance(value, _PLAIN):
            yield f"{name} {value!r}"
        elif not _is_original(base):
            yield f"{name} {outline(value, 1)}"


def _functions(value: Any) -> tuple[Any, ...]:
    if isinstance(value, classmethod | staticmethod):
        return (value.__func__,)
    return (value.fget, value.fset, value.fdel) if isinstance(value, property) else (value,)


def _function(function: FunctionType, outline: Outline) -> str:
    code = function.__code__
    if is_versioned(code.co_filename):
        return f"{code.co_filename}:{code.co_firstlineno} {code.co_qualname}"
    return outline(function, 1)


def _is_original(base: type) -> bool:
    """Whether a class came with torch or Python, whose versions say what it holds besides functions."""
    module = base.__module__.partition(".")[0]
    return module in _STANDARD


_STANDARD = frozenset(("torch", "builtins", "abc", "collections", "typing", "enum", "functools"))
