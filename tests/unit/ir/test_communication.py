"""Collectives and waits in a graph: their text, their rules, and what runs where."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from polyfuse.base.errors import ParseError, VerifyError
from polyfuse.ir.communication import Running, never_awaited
from polyfuse.ir.graph import reads
from polyfuse.ir.nodes import Collective, Wait
from polyfuse.ir.text.parse import parse
from polyfuse.ir.text.print import text
from polyfuse.ir.verifier.verify import verify_graph
from schedule_builder import Maker, axes, gathered


def test_texts_read_back() -> None:
    m = gathered()
    m.wait("g", "a")
    m.start("b", 'a "group"')
    m.wait("b")
    graph = m.graph("g", "b")
    verify_graph(graph)
    shown = text(graph)
    assert parse(shown) == graph
    assert "= collective _c10d_functional.all_gather_into_tensor.default single {" in shown
    assert "= wait _c10d_functional.wait_tensor.default none {" in shown
    assert "holds a\n" in shown


@pytest.mark.parametrize(("word", "line"), (("extern", 'group "0"'), ("collective", "holds a")))
def test_only_their_own_parts_are_read(word: str, line: str) -> None:
    with pytest.raises(ParseError, match="is not a part of a call"):
        parse(f"node n = {word} aten.sin.default single {{\n  {line}\n}}\n")


def test_what_runs_at_a_point() -> None:
    m = gathered()
    m.wait("g", "a")
    _, start, other, end = m.nodes
    assert isinstance(start, Collective) and isinstance(end, Wait)
    assert reads(end) == ("g", "a")
    running = Running((start, other))
    assert (running.written(), running.touched()) == ({"g"}, {"a", "g"})
    assert running.of(("g",)) == [start] and not running.of(("a", "b"))
    assert never_awaited(m.nodes[:3]) == {"a", "g"}
    assert not never_awaited(m.nodes)


def read_early(m: Maker) -> None:
    (i,) = axes(4)
    m.buffer("c", 4)
    m.pointwise("c", (i,), m.load("g", i))


def overwritten_early(m: Maker) -> None:
    (i,) = axes(4)
    m.pointwise("a", (i,), m.load("x", i))


def let_go_early(m: Maker) -> None:
    m.wait("g")


def nameless(m: Maker) -> None:
    m.start("b", group="")


@pytest.mark.parametrize(
    ("step", "words"),
    (
        (read_early, "it reads 'g', which a collective writes"),
        (overwritten_early, "it writes 'a', which a collective uses"),
        (let_go_early, "it does not hold 'a'"),
        (nameless, "names no group"),
    ),
)
def test_broken_rules(step: Callable[[Maker], None], words: str) -> None:
    m = gathered()
    step(m)
    with pytest.raises(VerifyError, match=words):
        verify_graph(m.graph("b"))
