"""Names of a package that are imported when somebody asks for them (PEP 562), dataclasses whose methods are
made when somebody calls them, and what imports are spared."""

from __future__ import annotations

import dataclasses
import gc
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, Final

_YOUNG = 50_000
"""New objects after which the young ones are collected; Python's own 700. A hundred such collections may be
followed by a look at all that torch and its imports made, which takes some 0.2 s: after 70000 objects, of
which importing Dynamo, or tracing a small network, makes several times as many."""


@contextmanager
def rare_collections() -> Iterator[None]:
    """Inside, where many objects are made of which nearly all stay, garbage is looked for less often, unless
    somebody made that rarer still. Of memory this takes what 50000 objects of garbage hold."""
    before = gc.get_threshold()
    if not 0 < before[0] < _YOUNG:  # 0: never
        yield
        return
    rarer = (_YOUNG, *before[1:])
    gc.set_threshold(*rarer)
    try:
        yield
    finally:
        if gc.get_threshold() == rarer:
            gc.set_threshold(*before)


def attribute(package: str, import_paths: Mapping[str, str], name: str) -> object:
    """What a package's `__getattr__` returns.

    Args:
        package: its name.
        import_paths: `"module:attribute"` for each of its names, or `"module"` where it is one.
        name: the one that is asked for.

    Raises:
        AttributeError: the package has no such name.
    """
    if name not in import_paths:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    module, _, found = import_paths[name].partition(":")
    with rare_collections():  # it may import torch and Dynamo
        imported = import_module(module)
    return getattr(imported, found) if found else imported


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass  # noqa: PLC0414 - type checkers see it as offered
else:

    def dataclass(cls: type | None = None, /, **options: bool) -> Any:
        """As the library's, at a sixth of its time, which is most of what importing a small module takes.

        The library compiles the text of up to six methods for each class. Here `__init__` is compiled when
        the first instance is made, and the others need no text. Options other than `frozen`, classes that
        extend a dataclass and those without fields are the library's.
        """
        if cls is None:
            return lambda cls: dataclass(cls, **options)
        kinds = inspect.get_annotations(cls)
        extends = any(hasattr(base, _FIELDS) for base in cls.__bases__)
        if (
            extends
            or not kinds
            or any("InitVar" in str(k) for k in kinds.values())
            or options.keys() - {"frozen"}
        ):
            return dataclasses.dataclass(cls, **options)
        return _with_late_methods(cls, **options)


_FIELDS: Final = "__dataclass_fields__"


class _Missing:
    """The value of an argument for which a factory is called; shown as the library shows it."""

    def __repr__(self) -> str:
        return "<factory>"


_MISSING: Final = _Missing()


def _with_late_methods(cls: type, frozen: bool = False) -> type:
    own = cls.__dict__
    dataclasses.dataclass(init=False, repr=False, eq=False)(cls)
    made = dataclasses.fields(cls)
    texts = {"__init__": _init_text, "__eq__": _equality_text, "__hash__": _hash_text}
    methods: dict[str, Any] = {name: _late(cls, name, text, frozen) for name, text in texts.items()}
    methods |= {
        "__repr__": _shown([f.name for f in made if f.repr]),
        "__signature__": _Signature(cls, frozen),
    }
    if own.get("__hash__") is not None:
        del methods["__hash__"]
    elif not frozen:
        # as Python does for a class that says what is equal and nothing of hashes
        methods["__hash__"] = None
    if frozen:
        methods |= _refusing(cls, frozenset(f.name for f in made))
    for name, method in methods.items():
        if name not in own or name == "__hash__":
            setattr(cls, name, method)
    # who extends it is asked for the same
    parameters = own["__dataclass_params__"]
    parameters.init = parameters.repr = parameters.eq = True
    parameters.frozen = frozen
    return cls


_Text = Callable[[Any, bool], tuple[str, dict[str, Any]]]
"""What makes the text of a method of a class, which may be frozen, and the values of names in it."""


def _late(cls: Any, name: str, text: _Text, frozen: bool) -> Callable[..., Any]:
    """A method that compiles the one that the class has from its first call on."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return _compiled(cls, name, text, frozen)(self, *args, **kwargs)

    return method


def _compiled(cls: Any, name: str, text: _Text, frozen: bool) -> Callable[..., Any]:
    source, known = text(cls, frozen)
    made: dict[str, Any] = {}
    exec(source, known, made)
    method: Callable[..., Any] = made[name]
    method.__qualname__ = f"{cls.__qualname__}.{name}"
    method.__module__ = cls.__module__
    setattr(cls, name, method)
    return method


def _init_text(cls: Any, frozen: bool) -> tuple[str, dict[str, Any]]:
    known: dict[str, Any] = {"_put": object.__setattr__, "_missing": _MISSING}
    heads: dict[bool, list[str]] = {False: [], True: []}
    body: list[str] = []
    for number, f in enumerate(dataclasses.fields(cls)):
        value, given = f.name, ""
        if f.default_factory is not dataclasses.MISSING:
            known[f"_factory{number}"] = f.default_factory
            value, given = f"_factory{number}()", "=_missing"
            if f.init:
                value = f"{value} if {f.name} is _missing else {f.name}"
        elif f.default is not dataclasses.MISSING:
            known[f"_default{number}"] = f.default
            given = f"=_default{number}"
        if f.init:
            heads[bool(f.kw_only)].append(f.name + given)
        elif f.default_factory is dataclasses.MISSING:
            continue  # the class has a default, or `__post_init__` sets it
        body.append(f"_put(self, {f.name!r}, {value})" if frozen else f"self.{f.name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    arguments = ", ".join(["self", *heads[False], *(["*", *heads[True]] if heads[True] else [])])
    return f"def __init__({arguments}):\n " + "\n ".join(body or ["pass"]), known


def _equality_text(cls: Any, frozen: bool) -> tuple[str, dict[str, Any]]:
    names = [f.name for f in dataclasses.fields(cls) if f.compare]
    mine, theirs = ("".join(f"{owner}.{name}, " for name in names) for owner in ("self", "other"))
    return (
        "def __eq__(self, other):\n"
        " if other.__class__ is not self.__class__:\n  return NotImplemented\n"
        f" return ({mine}) == ({theirs})"
    ), {}


def _hash_text(cls: Any, frozen: bool) -> tuple[str, dict[str, Any]]:
    fields = dataclasses.fields(cls)
    names = [f.name for f in fields if (f.compare if f.hash is None else f.hash)]
    return f"def __hash__(self):\n return hash(({''.join(f'self.{name}, ' for name in names)}))", {}


def _shown(names: list[str]) -> Callable[[Any], str]:
    @recursive_repr()
    def shown(self: Any) -> str:
        parts = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{self.__class__.__qualname__}({parts})"

    return shown


def _refusing(cls: Any, names: frozenset[str]) -> dict[str, Any]:
    """What keeps values as they are."""

    def put(self: Any, name: str, value: object) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def delete(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    return {"__setattr__": put, "__delattr__": delete}


class _Signature:
    """What a class is called with, for who asks before the first instance is made."""

    def __init__(self, cls: Any, frozen: bool) -> None:
        self._class, self._frozen = cls, frozen

    def __get__(self, instance: object, owner: type) -> inspect.Signature:
        if instance is not None or owner is not self._class:
            raise AttributeError("__signature__")
        _compiled(self._class, "__init__", _init_text, self._frozen)
        kinds = {f.name: f.type for f in dataclasses.fields(self._class)}
        found = inspect.signature(vars(self._class)["__init__"])
        given = [p.replace(annotation=kinds[name]) for name, p in found.parameters.items() if name in kinds]
        return found.replace(parameters=given, return_annotation=None)
