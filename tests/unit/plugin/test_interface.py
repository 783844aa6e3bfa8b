"""The public interface of plugins, as text: what a plugin may rely on changes only with `API_VERSION`.

Where this test fails, the interface has changed. Something added: raise the minor version, which starts a
new file. Something removed or changed: keep the old one for two minors with a warning that names the new one
(`polyfuse.plugin.deprecation`), or raise the major version. Then run `pytest --update-golden` on this file,
and keep the files of earlier versions: the reference says by them since when each name is there.
`docs/decisions/plugin-interface-versions.md` says more.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from types import MemberDescriptorType, ModuleType
from typing import Any, get_args

import pytest

import polyfuse.plugin as door
from polyfuse import testing
from polyfuse.base.errors import IncompatibleBackendError
from polyfuse.plugin import API_VERSION, check_api
from polyfuse.plugin.hooks import specs

OPTIONS = "Settings"
"""Its fields are the options, which docs/reference/settings.md lists; plugins rely on their own."""

HOOKS = [name for name in specs.__all__ if name.startswith("polyfuse_")]


def described(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, ModuleType):
        for part in value.__all__:
            yield from described(f"{name}.{part}", getattr(value, part))
    elif isinstance(value, Mapping):  # tables: further rows are no change
        kinds = {type(row).__name__ for row in value.values()}
        yield f"{name}: mapping of str to {' or '.join(sorted(kinds))}"
    elif isinstance(value, type):
        yield f"class {name}({', '.join(base.__name__ for base in value.__bases__)})"
        yield from members(value)
    elif callable(value) and not get_args(value):
        yield f"def {name}{signature(value)}"
    else:
        yield f"{name}: {type(value).__name__} = {value!r}"


def members(kind: type) -> Iterator[str]:
    if issubclass(kind, enum.Enum):
        yield from (f"    {member.name} = {member.value!r}" for member in kind)
    if dataclasses.is_dataclass(kind) and kind.__name__ != OPTIONS:
        yield from (f"    {field.name}: {field.type}{default(field)}" for field in dataclasses.fields(kind))
    known = {field.name for field in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()
    for name, value in list(vars(kind).items()):
        if name in known or (name.startswith("_") and name != "__init__") or isinstance(value, enum.Enum):
            continue
        if name == "__init__" and known:
            continue
        if isinstance(value, (staticmethod, classmethod)):
            yield f"    {type(value).__name__} {name}{signature(value.__func__)}"
        elif isinstance(value, (property, cached_property)):
            function: Any = value.fget if isinstance(value, property) else value.func
            yield f"    property {name}: {inspect.signature(function).return_annotation}"
        elif inspect.isfunction(value):
            mark = "abstract " if getattr(value, "__isabstractmethod__", False) else ""
            yield f"    {mark}def {name}{signature(value)}"
        elif isinstance(value, MemberDescriptorType):
            yield f"    {name}: {kind.__annotations__[name]}"
        elif not callable(value):
            annotated = kind.__annotations__.get(name, type(value).__name__)
            yield f"    {name}: {annotated} = {value!r}"


def default(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        return f" = {field.default!r}"
    return "" if field.default_factory is dataclasses.MISSING else " = ..."


def signature(function: Any) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", str(inspect.signature(function)))  # of functions that are defaults


def interface() -> str:
    lines = [f"version {API_VERSION[0]}.{API_VERSION[1]}", ""]
    for name in sorted(door.__all__):
        if name != "API_VERSION":
            lines += [*described(name, getattr(door, name)), ""]
    for name in testing.__all__:
        lines += [*described(f"polyfuse.testing.{name}", getattr(testing, name)), ""]
    for name in sorted(HOOKS):
        options = getattr(specs, name).polyfuse_spec
        marks = [mark for mark, given in sorted(options.items()) if given]
        lines += [f"hook {name}{signature(getattr(specs, name))}{''.join(f' {mark}' for mark in marks)}"]
    return "\n".join(lines) + "\n"


def test_the_interface_is_what_its_version_promises(golden):
    golden(f"interface-{API_VERSION[0]}.{API_VERSION[1]}.txt", interface())


def test_the_text_holds_fields_methods_and_hooks():
    text = interface()
    for line in (
        "    priority: Mapping[str, int] = ...",
        "    abstract def claims(self, node: 'Node') -> 'Claim'",
        "class Backend(ABC)",
    ):
        assert line in text, line
    assert all(f"hook {name}(" in text for name in HOOKS)
    assert "hook polyfuse_doctor(settings: 'Settings') -> 'Sequence[Finding]'" in text
    assert "settings: 'Settings') -> 'Timer' firstresult" in text


@pytest.mark.parametrize("version", [(1, 0), (API_VERSION[0] + 1, 0), (API_VERSION[0], API_VERSION[1] + 1)])
def test_a_plugin_of_another_version_is_refused_in_one_sentence(version):
    with pytest.raises(IncompatibleBackendError) as caught:
        check_api("old", version)
    text = str(caught.value)
    fix = "install a newer version of 'old'" if version < API_VERSION else "upgrade polyfuse"
    assert f"built for plugin interface {version[0]}.{version[1]}" in text and text.endswith(fix)
    assert "\n" not in text
