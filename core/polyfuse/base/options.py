"""What is known about one option, and how its values are read and checked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import Field, dataclass, field
from functools import partial
from typing import Any, Final

from polyfuse.base.errors import InvalidOptionError
from polyfuse.base.text import join_words, nearest

PREFIX: Final = "POLYFUSE_"
"""How the names of variables of the environment begin."""

_TRUE: Final = ("1", "true", "yes", "on")
_FALSE: Final = ("0", "false", "no", "off", "")


@dataclass(frozen=True)
class OptionInfo:
    """Description of one option: what it is called, what it takes and what it does."""

    name: str
    kind: str
    default: object
    variable: str
    doc: str
    choices: tuple[object, ...] = ()
    minimum: int | None = None
    affects_code: bool = False


def parse_bool(text: str, where: str) -> bool:
    """Read a truth value: `1`, `true`, `yes`, `on` or `0`, `false`, `no`, `off`, in any case.

    Raises:
        InvalidOptionError: it is another word.
    """
    word = text.strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise InvalidOptionError(f"{where} is {text!r}, which is no truth value", "use 1 or 0")


def parse_text(info: OptionInfo, text: str, where: str) -> object:
    """Turn the text of an environment variable into a value of the option's kind.

    Raises:
        InvalidOptionError: it is no integer or truth value where the option takes one.
    """
    if info.kind == "bool":
        return parse_bool(text, where)
    if info.kind == "int | None" and text.strip().lower() in ("", "none"):
        return None
    if info.kind in ("int", "int | None"):
        try:
            return int(text)
        except ValueError:
            raise InvalidOptionError(f"{where} is {text!r}, which is no integer", "use digits") from None
    return text


def validate(info: OptionInfo, value: object, where: str) -> object:
    """Return `value` as the option keeps it, or raise `InvalidOptionError` saying what it may be."""
    value = _coerced(info, value, where)
    if info.choices and value not in info.choices:
        allowed = join_words([repr(choice) for choice in info.choices], "or")
        raise InvalidOptionError(f"{where} is {value!r}", f"use {allowed}")
    for number in value if isinstance(value, tuple) else (value,):
        if info.minimum is not None and isinstance(number, int) and number < info.minimum:
            raise InvalidOptionError(f"{where} is {number}", f"use {info.minimum} or more")
    return value


def _coerced(info: OptionInfo, value: object, where: str) -> object:
    if info.kind == "bool":
        if isinstance(value, bool) or value in (0, 1):
            return bool(value)
        raise _wrong(where, value, "True or False")
    if info.kind in ("int", "int | None"):
        if value is None and info.kind == "int | None":
            return None
        if isinstance(value, int):
            return int(value)
        raise _wrong(where, value, "an integer")
    if info.kind == "tuple[int, ...]":
        return _integers(value, where)
    if info.kind.startswith("tuple"):
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        if isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
            return tuple(value)
        raise _wrong(where, value, "a list of names")
    if isinstance(value, str):
        return value
    if info.name in ("cache_dir", "dump") and hasattr(value, "__fspath__"):
        return str(value)
    raise _wrong(where, value, "text")


def _integers(value: object, where: str) -> tuple[int, ...]:
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
        if all(part.lstrip("-").isdigit() for part in value):
            return tuple(int(part) for part in value)
    elif isinstance(value, (list, tuple)) and all(type(item) is int for item in value):
        return tuple(value)
    raise _wrong(where, value, "a list of integers")


def _wrong(where: str, value: object, wanted: str) -> InvalidOptionError:
    return InvalidOptionError(f"{where} is {value!r}", f"use {wanted}")


def option(
    default: object,
    doc: str,
    *,
    choices: tuple[object, ...] = (),
    minimum: int | None = None,
    affects_code: bool = True,
) -> Any:
    """Declare an option. `affects_code` puts its value into cache keys."""
    metadata = {"doc": doc, "choices": choices, "minimum": minimum, "affects_code": affects_code}
    return field(default=default, metadata=metadata)


neutral = partial(option, affects_code=False)
"""Declare an option that leaves compiled code as it is."""


def info_of(item: Field[Any]) -> OptionInfo:
    """Describe an option by the field that declares it."""
    return OptionInfo(
        name=item.name,
        kind=str(item.type),
        default=item.default,
        variable=PREFIX + item.name.upper(),
        doc=item.metadata["doc"],
        choices=item.metadata["choices"],
        minimum=item.metadata["minimum"],
        affects_code=item.metadata["affects_code"],
    )


def unknown(what: str, name: str, known: Iterable[str]) -> InvalidOptionError:
    """The error over a name that is no option; it names the nearest ones."""
    # a common prefix would make any two variables look alike
    bare = {word.removeprefix(PREFIX): word for word in known}
    close = tuple(bare[word] for word in nearest(name.removeprefix(PREFIX), bare))
    fix = f"did you mean {join_words(close, 'or')}?" if close else "docs/reference/settings.md lists them all"
    return InvalidOptionError(f"{what} is unknown", fix)
