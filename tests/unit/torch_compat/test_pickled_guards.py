"""Sources of guards as bytes, with the fields that torch computes when it makes one."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest
from torch._dynamo.source import AttrSource, DefaultsSource, GetItemSource, LocalSource
from torch._guards import Source

from polyfuse.torch_compat.captures.guards import pickled

FUNCTION = AttrSource(LocalSource("model"), "forward")
SOURCES = (
    DefaultsSource(FUNCTION, 1),
    DefaultsSource(FUNCTION, "mask", is_kw=True),
    GetItemSource(LocalSource("x"), slice(1, None, 2)),
)


def _with_all_fields(source: Source) -> tuple[Any, ...]:
    """`Source.__reduce__` of torch 2.11."""
    return type(source), tuple(getattr(source, each.name) for each in dataclasses.fields(source))


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: type(source).__name__)
def test_all_fields_come_back(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(source), "__reduce__", _with_all_fields)
    assert hash(source)  # which torch stores
    (again, number) = pickle.loads(pickled((source, 1)))
    assert number == 1 and type(again) is type(source) and again == source and hash(again) == hash(source)
    for each in dataclasses.fields(source):
        assert getattr(again, each.name) == getattr(source, each.name)


def test_torchs_own_way_with_computed_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DefaultsSource, "__reduce__", _with_all_fields)
    with pytest.raises(TypeError, match="positional arguments"):
        pickle.loads(pickle.dumps(SOURCES[0]))
