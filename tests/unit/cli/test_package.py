from __future__ import annotations

import json
import zipfile

import pytest
import torch

from packaged_models import exported, mixed
from polyfuse import cli
from polyfuse.aot import package
from polyfuse.aot.container import FORMAT


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return package(exported(mixed()), path=tmp_path_factory.mktemp("packages") / "mixed.pf")


def test_info(path, capsys):
    assert cli.main(["package", "info", str(path)]) == 0
    out = capsys.readouterr().out
    for words in (
        *("entry forward(x, y, scale)", "y: float32[6] on cpu, written to", "scale: 3", "in 2..64"),
        *("weights: 5, ", "needs: cpu", f"with torch {torch.__version__}", "kernels of cpp: "),
        "without Python: no",
    ):
        assert words in out


def test_info_as_json(path, capsys):
    assert cli.main(["package", "info", "--json", str(path)]) == 0
    manifest = json.loads(capsys.readouterr().out)
    assert manifest["format"] == list(FORMAT) and list(manifest["entries"]) == ["forward"]


def test_verify(path, tmp_path, capsys):
    assert cli.main(["package", "verify", str(path)]) == 0
    assert "members are as they were written" in capsys.readouterr().out
    changed = tmp_path / "changed.pf"
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(changed, "w") as new:
        for info in old.infolist():
            content = old.read(info)
            other = content[:-1] + b" " if info.filename == "programs/forward.py" else content
            new.writestr(info, other)
    assert cli.main(["package", "verify", str(changed)]) == 1
    assert "programs/forward.py in the package" in capsys.readouterr().err
    assert cli.main(["package", "info", str(tmp_path / "none.pf")]) == 1
    assert "there is no file" in capsys.readouterr().err


def test_extract(path, tmp_path, capsys):
    assert cli.main(["package", "extract", str(path), str(tmp_path / "all")]) == 0
    assert str(tmp_path / "all") in capsys.readouterr().out
    with zipfile.ZipFile(path) as archive:
        for name in set(archive.namelist()) - {"package.json"}:
            assert (tmp_path / "all" / name).read_bytes() == archive.read(name)
    assert cli.main(["package", "extract", str(path)]) == 1
    assert "polyfuse package extract FILE FOLDER" in capsys.readouterr().err
    assert cli.main(["package", "info", str(path), str(tmp_path)]) == 1


def test_members_outside_of_the_folder_are_not_extracted(path, tmp_path, capsys):
    changed = tmp_path / "changed.pf"
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(changed, "w") as new:
        manifest = json.loads(old.read("package.json"))
        manifest["members"]["../outside"] = manifest["members"]["programs/forward.py"]
        new.writestr("../outside", old.read("programs/forward.py"))
        for name in set(old.namelist()) - {"package.json"}:
            new.writestr(name, old.read(name))
        new.writestr("package.json", json.dumps(manifest))
    assert cli.main(["package", "extract", str(changed), str(tmp_path / "inside")]) == 1
    assert "../outside" in capsys.readouterr().err and not (tmp_path / "outside").exists()
