"""Examples of one file, of which pages show parts, run."""

from __future__ import annotations

import runpy

import pytest
import torch

from house.source_tree import ROOT


@pytest.mark.parametrize(
    "name", ["tiny_backend.py", "planted_defect.py", "kernel_text.py", "kernel_statements.py"]
)
def test_it_runs(name: str, warnings_seen) -> None:
    torch.compiler.reset()
    runpy.run_path(str(ROOT / "examples" / name))
    reported = [text for text in warnings_seen() if "elements differ" in text]
    assert len(reported) == (name == "planted_defect.py")
