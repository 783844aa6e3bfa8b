"""Dataclasses whose methods are made when they are called: as the library's."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from dataclasses import field
from typing import Any, ClassVar

import pytest

from polyfuse.base.lazy import dataclass


def _classes(dataclass: Any) -> dict[str, type]:
    """One of each kind."""

    @dataclass(frozen=True)
    class Frozen:
        """Frozen."""

        count: ClassVar[int] = 3
        a: int
        b: tuple[int, ...] = ()
        c: list[int] = field(default_factory=list)
        d: str = field(default="d", repr=False, compare=False)
        e: int = field(default=4, kw_only=True)

    @dataclass
    class Plain:
        """Plain."""

        a: int
        b: dict[str, int] = field(default_factory=dict)
        doubled: int = field(init=False)
        seen: list[int] = field(init=False, default_factory=list)
        constant: int = field(init=False, default=7)

        def __post_init__(self) -> None:
            self.doubled = 2 * self.a

    @dataclass(frozen=True)
    class Own:
        """With methods of its own."""

        a: int

        def __eq__(self, other: object) -> bool:
            return isinstance(other, int)

        def __hash__(self) -> int:
            return 5

        def __repr__(self) -> str:
            return "own"

    @dataclass(frozen=True)
    class Empty:
        """Empty."""

    @dataclass(frozen=True)
    class Extended(Frozen):
        """More."""

        f: int = 1

    @dataclass
    class Ordered:
        """By itself."""

        a: Any

    return {
        c.__name__: c for c in (Frozen, Plain, Own, Empty, Extended, Ordered, dataclass(order=True)(Ordered))
    }


OURS, LIBRARYS = _classes(dataclass), _classes(dataclasses.dataclass)
CALLS = [
    ("Frozen", (1,), {}),
    ("Frozen", (1, (2, 3), [4], "x"), {"e": 5}),
    ("Frozen", (1,), {"c": [1], "b": (7,)}),
    ("Plain", (1,), {}),
    ("Plain", (2,), {"b": {"x": 1}}),
    ("Own", (1,), {}),
    ("Empty", (), {}),
    ("Extended", (1,), {"f": 3, "e": 2}),
    ("Ordered", (1,), {}),
]


@pytest.mark.parametrize("name, args, kwargs", CALLS)
def test_instances(name: str, args: Any, kwargs: Any) -> None:
    made = [classes[name](*args, **kwargs) for classes in (OURS, LIBRARYS)]
    assert made[0].__dict__ == made[1].__dict__
    assert repr(made[0]).split(".")[-1] == repr(made[1]).split(".")[-1]
    again = OURS[name](*args, **kwargs)
    other = LIBRARYS[name](*args, **kwargs)
    assert (made[0] == again) == (made[1] == other)
    assert made[0] != made[1] or name == "Own"
    for one in zip(made, (again, other), strict=True):
        assert _hashes(*one) == _hashes(*made)
    assert dataclasses.asdict(made[0]) == dataclasses.asdict(made[1])
    if args and name != "Plain":
        assert dataclasses.replace(made[0], a=9).a == dataclasses.replace(made[1], a=9).a == 9
    assert copy.deepcopy(made[0]).__dict__ == made[0].__dict__


def _hashes(first: Any, second: Any) -> Any:
    """Whether hashes agree, or the error of asking."""
    try:
        return hash(first) == hash(copy.copy(first)), hash(second) == hash(copy.copy(second))
    except TypeError as error:
        return str(error)


@pytest.mark.parametrize("name", OURS)
def test_classes(name: str) -> None:
    ours, librarys = OURS[name], LIBRARYS[name]
    assert str(inspect.signature(ours)) == str(inspect.signature(librarys))
    assert [f.name for f in dataclasses.fields(ours)] == [f.name for f in dataclasses.fields(librarys)]
    assert ours.__match_args__ == librarys.__match_args__  # type: ignore[attr-defined]
    assert (ours.__hash__ is None) == (librarys.__hash__ is None)


@pytest.mark.parametrize("name, args", [("Frozen", (1,)), ("Empty", ()), ("Extended", (1,))])
def test_frozen_instances_stay_as_they_are(name: str, args: Any) -> None:
    for attribute in ("a", "unknown"):
        messages = []
        for classes in (OURS, LIBRARYS):
            made = classes[name](*args)
            with pytest.raises(dataclasses.FrozenInstanceError) as set_error:
                setattr(made, attribute, 2)
            with pytest.raises(dataclasses.FrozenInstanceError) as delete_error:
                delattr(made, attribute)
            messages.append((str(set_error.value), str(delete_error.value)))
        assert messages[0] == messages[1]


@pytest.mark.parametrize("args, kwargs", [((), {}), ((1, 2, 3, 4, 5), {}), ((1,), {"g": 1})])
def test_wrong_arguments(args: Any, kwargs: Any) -> None:
    for classes in (OURS, LIBRARYS):
        with pytest.raises(TypeError, match=r"__init__\(\)"):
            classes["Frozen"](*args, **kwargs)


def test_others_extend_them() -> None:
    class Sub(OURS["Frozen"]):  # type: ignore[misc]
        def __init__(self, a: int) -> None:
            super().__init__(a, (a,))

    class Plain(OURS["Frozen"]):  # type: ignore[misc]
        pass

    assert Sub(3).b == (3,) and Plain(3).a == 3 and Plain(3) == Plain(3) != OURS["Frozen"](3)
    with pytest.raises(TypeError, match="cannot inherit non-frozen"):

        @dataclasses.dataclass
        class Thawed(OURS["Frozen"]):  # type: ignore[misc]
            g: int = 1

    @dataclasses.dataclass(frozen=True)
    class More(OURS["Frozen"]):  # type: ignore[misc]
        g: int = 1

    assert More(1, g=2).g == 2 and [f.name for f in dataclasses.fields(More)][-1] == "g"


def test_instances_that_another_process_made() -> None:
    """Nothing of the class was called before an instance is unpickled."""
    kinds = _classes(dataclass)
    for name, values in {"Frozen": {"a": 1, "b": (), "c": [], "e": 4}, "Ordered": {"a": 2}}.items():
        first, second = (object.__new__(kinds[name]) for _ in range(2))
        for instance in (first, second):
            instance.__dict__.update(copy.deepcopy(values))
        assert first == second and repr(first) == repr(second)
        second.__dict__["a"] = 5
        assert first != second
    first, second = (object.__new__(_classes(dataclass)["Empty"]) for _ in range(2))
    assert hash(first) == hash(second)
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.a = 1  # type: ignore[attr-defined]
