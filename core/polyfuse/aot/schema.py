"""Plain data of a file, as the dataclasses that describe it: every field is there, nothing else is, and each
value has the type that the dataclass declares. What does not fit is named by the path of its field.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from functools import cache
from typing import Any, Final, TypeVar, Union, cast, get_args, get_origin, get_type_hints

_T = TypeVar("_T")

# No number of ours, nor any that C code reads, needs more bits, and no text is longer.
_BITS: Final = 63
_TEXT: Final = 1 << 20
_ROWS: Final = 1 << 20

_PLAIN: Final = (bool, int, float, str, type(None))


class SchemaError(ValueError):
    """A value is missing, unknown or of another type; the text says which."""


def typed(kind: type[_T], value: object, where: str = "it") -> _T:
    """A value of a dataclass, from the data that JSON gave.

    Raises:
        SchemaError: it does not fit.
    """
    return cast(_T, _typed(kind, value, where))


def _typed(kind: Any, value: object, where: str) -> Any:
    origin = get_origin(kind)
    if dataclasses.is_dataclass(kind):
        return _row(kind, value, where)
    if origin in (Union, types.UnionType):
        return _one_of(get_args(kind), value, where)
    if origin is tuple:
        return _tuple(get_args(kind), value, where)
    if origin is not None and issubclass(origin, Mapping):
        _expect(isinstance(value, dict) and len(value) <= _ROWS, f"{where} is no object", value)
        assert isinstance(value, dict)
        rest = get_args(kind)[1]
        return {_typed(str, key, where): _typed(rest, item, f"{where}.{key}") for key, item in value.items()}
    if kind is object:
        _expect(isinstance(value, _PLAIN), f"{where} is no plain value", value)
        return value
    fits = type(value) is kind or (kind is float and type(value) is int)
    _expect(fits, f"{where} is no {kind.__name__}", value)
    if isinstance(value, int):
        _expect(value.bit_length() <= _BITS, f"{where} is too large", value)
    if isinstance(value, str):
        _expect(len(value) <= _TEXT and "\0" not in value, f"{where} is no text that we write", value)
    return value


def _row(kind: Any, value: object, where: str) -> Any:
    _expect(isinstance(value, dict), f"{where} is no object", value)
    assert isinstance(value, dict)
    hints = _hints(kind)
    unknown = [name for name in value if name not in hints]
    _expect(not unknown, f"{where} has the field {str(unknown[:1])[:80]}, which is not known", value)
    required = [f.name for f in dataclasses.fields(kind) if f.default is dataclasses.MISSING]
    absent = [name for name in required if name not in value]
    _expect(not absent, f"{where} lacks {absent[:1]}", value)
    return kind(**{name: _typed(hints[name], item, f"{where}.{name}") for name, item in value.items()})


def _one_of(kinds: tuple[Any, ...], value: object, where: str) -> Any:
    for kind in kinds:
        if type(value) is kind:
            return _typed(kind, value, where)
    names = " or ".join(kind.__name__ for kind in kinds)
    raise SchemaError(f"{where} is no {names} but a {type(value).__name__}")


def _tuple(kinds: tuple[Any, ...], value: object, where: str) -> tuple[Any, ...]:
    _expect(isinstance(value, (list, tuple)) and len(value) <= _ROWS, f"{where} is no list", value)
    assert isinstance(value, (list, tuple))
    if len(kinds) == 2 and kinds[1] is ...:
        return tuple(_typed(kinds[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    _expect(len(value) == len(kinds), f"{where} has {len(value)} elements", value)
    return tuple(_typed(kind, item, f"{where}[{i}]") for i, (kind, item) in enumerate(zip(kinds, value)))


@cache
def _hints(kind: type) -> Mapping[str, Any]:
    return get_type_hints(kind)


def _expect(right: bool, words: str, value: object) -> None:
    if not right:
        raise SchemaError(f"{words} ({type(value).__name__})")
