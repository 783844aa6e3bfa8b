"""The examples of docs/integrations.md are on the page, and run where their library is installed."""

from __future__ import annotations

import importlib.util
import runpy

import pytest
import torch

from docs.blocks import check, fenced
from house.source_tree import ROOT

EXAMPLES = {
    path.stem.removeprefix("with_"): path
    for path in sorted((ROOT / "examples" / "integrations").glob("with_*.py"))
}
QUICK = "transformers"


def test_the_page_shows_the_examples(request: pytest.FixtureRequest) -> None:
    blocks = {name: fenced("python", path.read_text(encoding="utf-8")) for name, path in EXAMPLES.items()}
    check(ROOT / "docs" / "integrations.md", blocks, request.config.getoption("--update-golden"))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == QUICK else pytest.mark.slow) for name in EXAMPLES]
)
def test_an_example_runs(name: str) -> None:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed; pip install {name}")
    torch._dynamo.reset()
    torch.manual_seed(0)
    runpy.run_path(str(EXAMPLES[name]), run_name="__main__")
