"""The notebook of examples/ runs: its cells as one program, and, among slow tests, in its own kernel."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from house.source_tree import ROOT

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def code_cells(path: Path) -> list[str]:
    cells: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def test_there_is_a_notebook() -> None:
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_its_cells_run_in_order(path: Path) -> None:
    torch._dynamo.reset()
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(code_cells(path)):
        exec(compile(cell, f"{path.name}, cell {number}", "exec"), names)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_stored_without_outputs(path: Path) -> None:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_in_a_kernel(path: Path, tmp_path: Path) -> None:
    if importlib.util.find_spec("nbclient") is None or importlib.util.find_spec("ipykernel") is None:
        pytest.skip("Jupyter is not installed; pip install 'polyfuse[docs]'")
    import nbclient
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert any(cell.get("outputs") for cell in notebook.cells)
