from __future__ import annotations

import json
import subprocess
import sys

import pytest

from polyfuse import cli
from polyfuse.base.version import version


def test_help_and_version(capsys):
    assert cli.main([]) == 2
    assert cli.main(["--version"]) == 0
    out = capsys.readouterr().out
    assert version() in out
    for name in cli.COMMANDS:
        assert name in out


def test_backends(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    cli.main(["backends", "--json"])
    rows = json.loads(capsys.readouterr().out)
    assert isinstance(rows, list)
    cli.main(["backends"])
    table = capsys.readouterr().out
    assert "distribution" in table or not rows
    (line,) = [line for line in table.splitlines() if " quantized " in line]
    assert "no code generator" in line


def test_doctor(capsys):
    cli.main(["doctor"])
    assert "torch" in capsys.readouterr().out


def test_doctor_counts_artifacts(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("POLYFUSE_CACHE_DIR", str(tmp_path))
    (tmp_path / "compiled" / "key").mkdir(parents=True)
    (tmp_path / "compiled" / "key" / "entry").write_bytes(bytes(3 << 20))
    cli.main(["doctor", "interpreter"])
    out = capsys.readouterr().out
    assert "compiled graphs stored: 1, 3.0 MiB" in out and "units of kernels stored: 0, 0.0 MiB" in out


def test_doctor_of_an_unknown_backend(capsys):
    assert cli.main(["doctor", "no-such-backend"]) == 1
    assert "is not installed" in capsys.readouterr().err


def test_settings(capsys, monkeypatch):
    monkeypatch.setenv("POLYFUSE_FUEL", "7")
    assert cli.main(["settings", "--changed", "--mode", "max-autotune"]) == 0
    out = capsys.readouterr().out
    assert "fuel = 7" in out and "max_fusion_size" not in out


def test_unknown_command():
    with pytest.raises(SystemExit):
        cli.main(["frobnicate"])


def test_as_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "polyfuse", "--version"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and done.stdout.strip() == version()
