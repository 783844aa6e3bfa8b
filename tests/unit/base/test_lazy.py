"""What is imported late, and what imports are spared."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest

from polyfuse.base.lazy import attribute, rare_collections


@pytest.fixture
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.parametrize("before", [(700, 10, 10), (700, 3, 4)])
def test_young_objects_are_collected_less_often_inside_alone(
    before: tuple[int, int, int], thresholds: None
) -> None:
    gc.set_threshold(*before)
    with rare_collections():
        assert gc.get_threshold() == (50_000, *before[1:])
        with rare_collections():
            pass
        assert gc.get_threshold()[0] == 50_000
    assert gc.get_threshold() == before


@pytest.mark.parametrize("before", [(0, 10, 10), (50_000, 10, 10), (1_000_000, 2, 2)])
def test_collections_that_are_rarer_are_left_alone(before: tuple[int, int, int], thresholds: None) -> None:
    gc.set_threshold(*before)
    with rare_collections():
        assert gc.get_threshold() == before
    assert gc.get_threshold() == before


def test_what_was_set_inside_stays(thresholds: None) -> None:
    gc.set_threshold(700, 10, 10)
    with rare_collections():
        gc.set_threshold(900, 5, 5)
    assert gc.get_threshold() == (900, 5, 5)


def test_garbage_is_collected_rarely_while_a_name_is_imported() -> None:
    """In a process of its own: the module must not be there yet."""
    code = """
import gc, sys, types
from polyfuse.base.lazy import attribute
gc.set_threshold(700, 10, 10)
seen = []
class Finder:
    def find_spec(self, name, path=None, target=None):
        seen.append(gc.get_threshold())
sys.meta_path.insert(0, Finder())
attribute("here", {"text": "wave:open"}, "text")
print(seen[0] == (50_000, 10, 10), gc.get_threshold() == (700, 10, 10))
"""
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert made.stdout.split() == ["True", "True"]


def test_a_name_that_is_not_there_is_named() -> None:
    with pytest.raises(AttributeError, match="module 'here' has no attribute 'gone'"):
        attribute("here", {}, "gone")
