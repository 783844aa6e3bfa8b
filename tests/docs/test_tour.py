"""docs/tour.md shows the text of each stage as it is; `make docs` writes it again."""

from __future__ import annotations

import platform
import re
from pathlib import Path
from types import ModuleType

import pytest
import torch

from docs.blocks import check, fenced
from house.source_tree import ROOT

STAGES = {
    "aten": ("aten.txt", "text"),
    "graph": ("graph.ir", "text"),
    "schedule": ("schedule.txt", "text"),
    "kernel": ("kernel0.ir", "text"),
    "source": ("kernel0.c++", "cpp"),
    "program": ("program.py", "python"),
}


CURRENT = platform.machine() == "x86_64" and torch.__version__.startswith("2.13.")


@pytest.mark.skipif(
    not CURRENT,
    reason="the page shows what torch 2.13 on x86-64 gives, and this is another torch or processor",
)
def test_the_tour_is_current(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = ROOT / "examples" / "tour.py"
    # by a name that is as long wherever the clone lies, since lines with it are shortened
    monkeypatch.chdir(ROOT)
    tour = ModuleType("tour")
    exec(compile(example.read_text(), "examples/tour.py", "exec"), tour.__dict__)
    torch._dynamo.reset()
    options = {"dump": str(tmp_path), "strict": True, "backends": ["cpp"], "cpp.isa": "avx2"}
    with torch.no_grad():
        found = torch.compile(tour.scores, backend="polyfuse", options=options)(*tour.INPUTS)
    torch.testing.assert_close(found, tour.scores(*tour.INPUTS))
    (folder,) = tmp_path.iterdir()
    blocks = {
        name: fenced(language, neutral((folder / file).read_text(), folder.name))
        for name, (file, language) in STAGES.items()
    }
    blocks["schedule"] = blocks["schedule"].partition("call ")[0].rstrip() + "\n```"
    blocks["example"] = fenced("python", "\n".join(example.read_text().splitlines()[5:8]))
    check(ROOT / "docs" / "tour.md", blocks, request.config.getoption("--update-golden"))


def neutral(text: str, graph: str) -> str:
    """Without what differs between runs: folders, the graph's number, keys of kernels."""
    text = text.replace(f"{ROOT}/", "").replace(graph, "tour")
    return re.sub(r"\bk_[a-z2-7]{20,}", "POLYFUSE_KERNEL", text)


def test_the_files_to_read_are_there() -> None:
    """From the operator's lowering to the launch, a reader opens at most twelve files."""
    page = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\d+\. `([\w/]+\.py)`", page, re.MULTILINE)
    folders = [ROOT / "core" / "polyfuse", ROOT / "plugins" / "cpp"]
    assert 8 <= len(listed) <= 12
    assert not [name for name in listed if not any((folder / name).is_file() for folder in folders)]
