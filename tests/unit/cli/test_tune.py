from __future__ import annotations

import os

import pytest
import torch

from polyfuse import cli
from polyfuse.cache.timings import TimingStore

PROGRAM = """
import sys, torch
model = torch.nn.Linear(16, 16).requires_grad_(False)
torch.compile(model, backend="polyfuse")(torch.ones(4, 16))
sys.exit(3)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A cache folder and a program; what the command sets in the environment is taken back."""
    for name in ("GEMM", "TUNE_KERNELS", "AUTOTUNE_BACKENDS", "GRAPH_CACHE", "MAX_AUTOTUNE_SECONDS"):
        monkeypatch.setenv(f"POLYFUSE_{name}", "")
        monkeypatch.delenv(f"POLYFUSE_{name}")
    monkeypatch.setenv("POLYFUSE_CACHE_DIR", str(tmp_path / "here"))
    monkeypatch.setenv("POLYFUSE_TUNE_IN_PROCESS", "1")
    (tmp_path / "program.py").write_text(PROGRAM)
    torch.compiler.reset()
    return tmp_path


def test_a_program_is_tuned_and_the_result_travels(folder, capsys, monkeypatch):
    file = folder / "tuned.pft"
    assert cli.main(["tune", "--budget", "1m", "-o", str(file), str(folder / "program.py")]) == 3
    out = capsys.readouterr().out
    assert "addmm of float32[16]" in out and "1 problem, 1 searched to the end" in out
    assert os.environ["POLYFUSE_MAX_AUTOTUNE_SECONDS"] == "60"
    ((key, record),) = TimingStore(folder / "here").entries()
    monkeypatch.setenv("POLYFUSE_CACHE_DIR", str(folder / "elsewhere"))
    assert cli.main(["tune", "load", str(file)]) == 0
    assert "measurements added, 0 were there" in capsys.readouterr().out
    assert list(TimingStore(folder / "elsewhere").entries()) == [(key, record)]
    torch.compiler.reset()
    cli.main(["tune", str(folder / "program.py")])
    assert list(TimingStore(folder / "elsewhere").entries()) == [(key, record)], "nothing is timed again"


def test_a_program_that_compiles_nothing(folder, capsys):
    (folder / "program.py").write_text("")
    assert cli.main(["tune", str(folder / "program.py")]) == 0
    assert "nothing was tuned" in capsys.readouterr().out
    assert cli.main(["tune", str(folder / "none.py")]) == 1


def test_budgets(capsys):
    with pytest.raises(SystemExit):
        cli.main(["tune", "--budget", "soon", "program.py"])
    assert "write 90s, 5m or 1h" in capsys.readouterr().err


def test_a_file_that_is_none(folder, capsys):
    assert cli.main(["tune", "load", str(folder / "none")]) == 1
    assert "cannot be read" in capsys.readouterr().err
