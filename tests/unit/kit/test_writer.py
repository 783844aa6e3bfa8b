"""Indented text."""

from __future__ import annotations

from polyfuse.kit import Writer


def test_lines_and_blocks():
    out = Writer("  ")
    with out.block("for (;;)"):
        out.line("a();")
        with out.indented(2):
            out.line("b();")
        with out.block():
            out.line("c();")
    assert out.text() == "for (;;) {\n  a();\n      b();\n  {\n    c();\n  }\n}\n"


def test_detached_lines_are_added_later():
    out = Writer()
    with out.indented(), out.detached() as body:
        out.line("inside")
    out.line("head:")
    out.add(body)
    assert out.text() == "head:\n    inside\n"
