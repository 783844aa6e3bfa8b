"""docs/coming-from-inductor.md: each option exists, on both sides."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
import torch

from house.source_tree import ROOT
from polyfuse.base.settings import option_infos


def options() -> list[tuple[list[str], list[str], str]]:
    """(names on the left, names on the right, all of the right) of each row of the table."""
    page = (ROOT / "docs" / "coming-from-inductor.md").read_text(encoding="utf-8")
    table = page.partition("<!-- options -->\n")[2].partition("<!-- end of options -->")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return [(re.findall(r"`(\w+)", left), re.findall(r"`(\w+)", right), right) for left, right, _ in rows]


def test_the_options_of_polyfuse_exist() -> None:
    known = option_infos()
    for left, right, words in options():
        assert left and (right or words in ("none", "none needed")), left
        assert all(name in known for name in right), right


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="the table is of torch 2.13")
def test_the_options_of_inductor_exist() -> None:
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.origin is not None
    # read and not imported: nothing here needs Inductor
    source = (Path(spec.origin).parent / "_inductor" / "config.py").read_text(encoding="utf-8")
    known = set(re.findall(r"^(\w+)\s*[:=]", source, re.MULTILINE))
    missing = [name for left, _, _ in options() for name in left if name not in known]
    assert not missing


def test_no_option_is_listed_twice() -> None:
    names = [name for left, _, _ in options() for name in left]
    assert len(names) == len(set(names)) > 60
