"""`polyfuse new-backend`: what it writes installs, passes the kit for what it claims, and compiles."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from house.source_tree import ROOT
from polyfuse import cli
from polyfuse.base.settings import child_environment
from wheels import install

pytest.importorskip("hatchling", reason="builds wheels; part of the extra `dev`")


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH", ""))))
    variables = child_environment(PYTHONPATH=path, POLYFUSE_CACHE_DIR=str(folder / "cache"))
    done = subprocess.run(
        [sys.executable, *command], env=variables, capture_output=True, text=True, cwd=folder, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done


@pytest.fixture
def site(tmp_path, monkeypatch, capsys) -> Path:
    """The folder with a new backend installed; its sources are beside it."""
    monkeypatch.chdir(tmp_path)
    assert cli.main(["new-backend", "my_own"]) == 0
    assert "next: pip install -e ./polyfuse-my-own" in capsys.readouterr().out
    return install(tmp_path / "polyfuse-my-own", tmp_path / "site")


def test_the_distribution_installs_and_is_found(site) -> None:
    rows = json.loads(run(site, "-m", "polyfuse", "backends", "--json").stdout)
    assert next(row["state"] for row in rows if row["name"] == "my_own") == "available"


@pytest.mark.slow
def test_the_distribution_passes_for_what_it_claims(site, tmp_path) -> None:
    out = run(
        site,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-rN",
        str(tmp_path / "polyfuse-my-own" / "tests"),
    )
    assert " passed" in out.stdout and "failed" not in out.stdout
    matrix = run(site, "-m", "polyfuse", "conformance", "my_own", "--quick", "--format", "markdown").stdout
    assert matrix.startswith("## my_own") and ", 0 failed." in matrix and "| add | ✓ |" in matrix


@pytest.mark.slow
def test_a_device_is_written_too(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["new-backend", "mine", "--device", "sim", "--extension", "polyfuse_sim"]) == 0
    site = install(ROOT / "examples" / "accelerator", tmp_path / "site")
    install(tmp_path / "polyfuse-mine", site)
    matrix = run(
        site, "-m", "polyfuse", "conformance", "mine", "--quick", "--device", "sim", "--format", "markdown"
    ).stdout
    assert ", 0 failed." in matrix and "| events measure time | ✓ |" in matrix
    run(site, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path / "polyfuse-mine" / "tests"))


def test_the_next_command_names_the_folder_wherever_it_is(tmp_path, capsys) -> None:
    folder = tmp_path / "elsewhere"
    assert cli.main(["new-backend", "mine", "--folder", str(folder)]) == 0
    assert f"next: pip install -e {folder} &&" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (["Mine"], "no name"),
        (["mine", "--extension", "x"], "for a device"),
        (["mine"], "not empty"),
        (["cpp"], "has a plugin named 'cpp'"),
        (["cuda"], "a module 'polyfuse_cuda'"),
        (["mine", "--device", "cpu"], "torch itself"),
    ],
)
def test_what_cannot_be_written_is_refused(words, cause, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "polyfuse-mine").mkdir()
    (tmp_path / "polyfuse-mine" / "file").touch()
    assert cli.main(["new-backend", *words]) == 1
    assert cause in capsys.readouterr().err
