"""The page about IR text shows text that parses."""

from __future__ import annotations

import re
from pathlib import Path

from polyfuse.ir.text.parse import parse
from polyfuse.ir.text.print import text
from polyfuse.ir.verifier.verify import verify_graph, verify_kernel

PAGE = Path(__file__).resolve().parents[3] / "docs" / "ir-text.md"


def test_examples_parse_print_and_verify():
    blocks = re.findall(r"```text\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    found = {block.split()[0]: block for block in blocks}
    kernel, graph = parse(found["kernel"]), parse(found["graph"])
    verify_kernel(kernel)
    verify_graph(graph)
    assert text(kernel) == found["kernel"]
    assert text(graph) == re.sub(r"  #.*", "", found["graph"])
