"""Packages of models whose operators call functions: branches of conditions, bodies of loops and scans."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._higher_order_ops.map import map as mapped
from torch.export import Dim, export

from called_functions import running, writes
from packaged_models import BATCH, Halving, in_a_process
from polyfuse.aot import load, package
from polyfuse.base.errors import PackageError
from polyfuse.compiler import subgraphs

INTERPRETED = {"backends": ["interpreter"]}

SCRIPT = """
import json, sys, torch
from polyfuse.aot import load
found = load(sys.argv[1])
print(json.dumps([[found(torch.full((3, 4), value)).tolist() for value in (1.0, -1.0)], list(sys.modules)]))
"""


@pytest.fixture(scope="module")
def model() -> Halving:
    torch.manual_seed(0)
    return Halving().eval()


@pytest.fixture(scope="module")
def path(model: Halving, tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = export(model, (torch.randn(3, 4),), dynamic_shapes=({0: Dim("batch", **BATCH)},))
    return package(program, path=tmp_path_factory.mktemp("packages") / "halving.pf")


def test_functions_below_functions(model: Halving, path: Path) -> None:
    for check in ("", "all"):
        found = load(path, check=check)
        for x in (torch.ones(5, 4), -torch.ones(2, 4), torch.full((3, 4), 1e3), torch.ones(4, 7).t()):
            torch.testing.assert_close(found(x), model.wanted(x))


def test_they_are_loaded_without_a_compiler(model: Halving, path: Path, tmp_path: Path) -> None:
    results, modules = in_a_process(SCRIPT, str(path), POLYFUSE_CACHE_DIR=str(tmp_path))
    for value, result in zip((1.0, -1.0), results, strict=True):
        torch.testing.assert_close(torch.tensor(result), model.wanted(torch.full((3, 4), value)))
    compiler = {f"polyfuse.{name}" for name in ("compiler", "frontend", "lowering", "schedule", "program")}
    assert sorted({*compiler, "torch._dynamo", "sympy"} & set(modules)) == []


def test_scans_and_maps(tmp_path: Path) -> None:
    class Rows(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return running(x), mapped(lambda row, factor: row.softmax(-1) * factor, x, x[0].clone())

    x = torch.randn(5, 4)
    path = package(Rows(), (x,), path=tmp_path / "rows.pf", options=INTERPRETED)
    torch.testing.assert_close(load(path)(x * 2), Rows()(x * 2))


class Branch(torch.nn.Module):
    """One of its branches calls an operator that writes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, writes, lambda x: x.cos() * 2, (x,)) * 3


def test_functions_that_cannot_be_compiled_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    x = torch.randn(4)
    monkeypatch.setattr(subgraphs, "_compiled", lambda *_: None)
    with pytest.raises(PackageError, match=r"calls the function .*, which could not be compiled"):
        package(
            Branch(), (x,), path=tmp_path / "eager.pf", options=INTERPRETED, modules=("called_functions",)
        )


def test_without_python_they_are_refused(tmp_path: Path) -> None:
    given = {"path": tmp_path / "native.pf", "modules": ("called_functions",)}
    with pytest.raises(PackageError, match=r"needs Python: the operator higher_order\.cond"):
        package(Branch(), (torch.randn(4),), **given, native=True)
    path = package(Branch(), (torch.randn(4),), **given, options=INTERPRETED)
    for x in (torch.ones(4), -torch.ones(4)):
        torch.testing.assert_close(load(path)(x), (writes(x) if x.sum() > 0 else x.cos() * 2) * 3)


def _dense(function: dict[str, Any]) -> None:
    function["operands"][0]["kind"] = "sparse"


MALFORMED = {
    "a program": (lambda function: function.update(program="programs/none.py"), "is missing"),
    "a kernel": (lambda function: function.update(kernels={"k": ["none", ""]}), "is in no unit"),
    "a constant": (lambda function: function.update(objects={"c": 99}), "reads a constant"),
    "an argument": (_dense, "is of no kind"),
    "a key": (lambda function: function.update(key="other"), "cannot be loaded"),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_malformed_functions_are_refused(path: Path, tmp_path: Path, what: str) -> None:
    change, words = MALFORMED[what]
    target = tmp_path / "other.pf"
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(target, "w") as new:
        for info in old.infolist():
            content = old.read(info)
            if info.filename == "package.json":
                manifest = json.loads(content)
                change(manifest["entries"]["forward"]["functions"][0])
                content = json.dumps(manifest).encode()
            new.writestr(info, content)
    with pytest.raises(PackageError, match=words):
        load(target)(torch.ones(3, 4))
