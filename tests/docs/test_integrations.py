"""The examples of docs/integrations.md are on the page, and run where their library is installed."""

from __future__ import annotations

import ast
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


def test_the_page_shows_the_examples(request: pytest.FixtureRequest) -> None:
    blocks = {name: fenced("python", path.read_text(encoding="utf-8")) for name, path in EXAMPLES.items()}
    check(ROOT / "docs" / "integrations.md", blocks, request.config.getoption("--update-golden"))


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_compiles_with_polyfuse_and_compares(name: str) -> None:
    tree = ast.parse(EXAMPLES[name].read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    backends = [k.value for call in calls for k in call.keywords if k.arg in ("backend", "dynamo_backend")]
    assert [ast.literal_eval(value) for value in backends] == ["polyfuse"]
    compared = any(ast.unparse(call.func) == "torch.testing.assert_close" for call in calls)
    assert compared or any(isinstance(node, ast.Assert) for node in ast.walk(tree))


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs(name: str) -> None:
    library = name.partition("_")[0]
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed; pip install {library}")
    torch._dynamo.reset()
    torch.manual_seed(0)
    runpy.run_path(str(EXAMPLES[name]), run_name="__main__")
