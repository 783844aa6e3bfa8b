"""What `polyfuse explain` prints of the examples, as README.md and docs/debugging.md show it."""

from __future__ import annotations

import inspect
import re
import runpy
from pathlib import Path

import pytest
import torch

from docs.blocks import check, fenced
from docs.test_tour import CURRENT
from house.source_tree import ROOT
from polyfuse.compiler.reports.explain import explain
from polyfuse.compiler.reports.report import reset_reports

EXAMPLES = ROOT / "examples"


def explained(example: str) -> str:
    """Its report, without what differs between runs: the graph's number and seconds."""
    torch._dynamo.reset()
    reset_reports()
    torch.manual_seed(0)
    runpy.run_path(str(EXAMPLES / example), run_name="__main__")
    text = re.sub(r"^graph \w+", "graph inference_0_0", explain(), flags=re.MULTILINE)
    return re.sub(r"^  seconds: .*\n", "", text, flags=re.MULTILINE)


def test_the_sections_that_are_annotated_exist() -> None:
    page = (ROOT / "docs" / "debugging.md").read_text(encoding="utf-8")
    section = page.partition("## explain, annotated\n")[2].partition("\n## ")[0]
    source = Path(inspect.getfile(explain)).read_text(encoding="utf-8")
    for words in re.findall(r"\*\*([^*]+)\*\*", section)[1:]:
        assert " ".join(words.split()) in source, f"explain has no {words}"


@pytest.mark.skipif(not CURRENT, reason="the pages show what torch 2.13 on x86-64 gives")
@pytest.mark.parametrize("page, example", [("README.md", "first.py"), ("docs/debugging.md", "explained.py")])
def test_the_report_on_a_page_is_current(
    page: str, example: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLYFUSE_GRAPH_CACHE", "0")
    path: Path = ROOT / page
    code = (EXAMPLES / example).read_text(encoding="utf-8").partition('"""\n\n')[2]
    blocks = {"explain": fenced("text", explained(example))}
    if page != "README.md":  # which leaves the program to the five-minute start
        blocks["first"] = fenced("python", code)
    check(path, blocks, request.config.getoption("--update-golden"))
