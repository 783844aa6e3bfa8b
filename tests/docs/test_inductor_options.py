"""docs/coming-from-inductor.md: its table is made from the code, and each option exists, on both sides."""

from __future__ import annotations

import pytest
import torch

from docs.blocks import check
from house.source_tree import ROOT
from polyfuse.base.settings import option_infos
from polyfuse.torch_compat.options.counterparts import COUNTERPARTS, inductor_options, table


def test_the_page_has_the_table(request: pytest.FixtureRequest) -> None:
    update = request.config.getoption("--update-golden")
    check(ROOT / "docs" / "coming-from-inductor.md", {"options": table()}, update)


def test_the_options_of_polyfuse_exist() -> None:
    names = {name for row in COUNTERPARTS for name in row.ours if "." not in name}
    assert names <= option_infos().keys()


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="the table is of torch 2.13")
def test_the_options_of_inductor_exist() -> None:
    names = {name for row in COUNTERPARTS for name in row.names}
    assert not names - inductor_options()


def test_no_option_is_listed_twice() -> None:
    names = [name for row in COUNTERPARTS for name in row.names]
    assert len(names) == len(set(names)) > 60
