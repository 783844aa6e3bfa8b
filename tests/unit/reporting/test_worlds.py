"""The page of `polyfuse explain --world`."""

from __future__ import annotations

import itertools
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from polyfuse.base.errors import PolyfuseError
from polyfuse.reporting.worlds import worlds_page, write_worlds_page

NASTY = "</title><script>window.harmed = true</script>"


def flight(kind: str, begun: float, done: float, exposed: float) -> dict[str, Any]:
    return {
        "kind": kind,
        "nbytes": 1 << 20,
        "ranks": 8,
        "begun": begun,
        "done": done,
        "exposed": exposed,
    }


def world(**changes: Any) -> dict[str, Any]:
    """A step of ten milliseconds: a gather of which half is hidden, and one that waits for the network."""
    found = {
        "ranks": 8,
        "per_host": 8,
        "costs": "given",
        "steps": 3,
        "seconds": 0.010,
        "computing": 0.007,
        "exposed": 0.003,
        "communication": 0.005,
        "collectives": {"all_gather": [2, 2 << 20]},
        "peak_bytes": 96 << 20,
        "flights": [flight("all_gather", 0.001, 0.004, 0.001), flight("all_gather", 0.002, 0.006, 0.002)],
    }
    return found | changes


class Boxes(HTMLParser):
    """What is drawn: kind, left edge, width and row of each box; and that each tag is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.boxes: list[tuple[str, float, float, float]] = []
        self.open: list[str] = []
        self.scripts = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.scripts += tag == "script"
        if tag not in ("meta", "line"):
            self.open.append(tag)
        if tag == "rect":
            x, width, y = (float(given[name] or 0) for name in ("x", "width", "y"))
            self.boxes.append((given["class"] or "", x, width, y))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag == "line"

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_timeline_shows_what_is_exposed() -> None:
    drawn = Boxes(worlds_page([world()], "train.py"))
    assert not drawn.open
    rows: dict[float, dict[str, float]] = {}
    for kind, _, width, y in drawn.boxes:
        row = rows.setdefault(y, {})
        row[kind] = row.get(kind, 0.0) + width
    rank, network = (rows[y] for y in sorted(rows))
    assert rank["exposed"] == pytest.approx(network["exposed"], abs=0.05)
    assert rank["compute"] / rank["exposed"] == pytest.approx(7 / 3, rel=1e-3)
    assert network["hidden"] / network["exposed"] == pytest.approx(2 / 3, rel=1e-3)
    # one thing at a time in each row
    for y in rows:
        spans = sorted((x, x + width) for _, x, width, row in drawn.boxes if row == y)
        assert all(b <= c + 0.02 for (_, b), (c, _) in itertools.pairwise(spans))


def test_the_table_has_a_row_for_each_world() -> None:
    text = worlds_page([world(), world(ranks=64, steps=0, flights=[], seconds=0.0, collectives={})], "a.py")
    assert re.findall(r"<tr><td>(\d+)</td>", text) == ["8", "64"]
    assert "96 MiB" in text and "2 all_gather (2.0 MiB)" in text and "3.00 ms" in text
    assert "No step repeats" in text and "Nothing was played" in text


def test_names_are_text_and_nothing_is_loaded(tmp_path: Path) -> None:
    text = worlds_page([world(costs=NASTY)], NASTY)
    assert Boxes(text).scripts == 0
    assert "default-src 'none'" in text and not re.search(r"(src|href)=", text)
    write_worlds_page(tmp_path / "page.html", [world()], "a.py")
    assert (tmp_path / "page.html").read_text() == worlds_page([world()], "a.py")
    with pytest.raises(PolyfuseError, match="cannot be written"):
        write_worlds_page(tmp_path / "page.html" / "inside", [world()], "a.py")
