from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath

import pytest

from polyfuse.base.digest import DIGEST_LENGTH, digest, digest_files, stable_json


def test_spelling():
    address = digest("x")
    assert len(address) == DIGEST_LENGTH == 51
    assert address == address.lower() and address.isalnum()
    assert address == digest(b"x")


def test_parts_do_not_run_together():
    assert len({digest("ab", "c"), digest("a", "bc"), digest("abc"), digest("abc", "")}) == 4


def test_files(tmp_path):
    (tmp_path / "a").write_text("1")
    (tmp_path / "b").write_text("2")
    both = digest_files([tmp_path / "a", tmp_path / "b"])
    assert both != digest_files([tmp_path / "b", tmp_path / "a"])


@dataclass(frozen=True)
class Point:
    x: int
    y: tuple[int, ...]


def test_stable_json():
    value = {"b": 1, "a": [Point(1, (2,)), None, True, 1.5, PurePosixPath("p/q"), b"\x01"]}
    assert stable_json(value) == '{"a":[{"x":1,"y":[2]},null,true,1.5,"p/q","01"],"b":1}'


@pytest.mark.parametrize("value", [{1, 2}, object(), {1: 2}])
def test_what_has_no_stable_text_is_refused(value):
    with pytest.raises(TypeError):
        stable_json(value)
