from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys

import pytest
import torch

from fake_plugins import install, plugin
from polyfuse import cli
from polyfuse.base.code import version
from polyfuse.base.log import reset_warned
from polyfuse.testing import conformance
from polyfuse.testing.matrix import Cell, Matrix, Status


def test_help_and_version(capsys):
    assert cli.main([]) == 2
    assert cli.main(["--version"]) == 0
    out = capsys.readouterr().out
    assert version() in out
    for name in cli.COMMANDS:
        assert name in out


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_has_help_with_an_example(name, capsys):
    with pytest.raises(SystemExit) as left:
        cli.main([name, "--help"])
    out = capsys.readouterr().out
    assert left.value.code == 0
    assert f"polyfuse {name}" in out.partition("example:\n")[2]


def test_a_reader_that_goes_away_ends_the_command_quietly():
    reader, writer = os.pipe()
    os.close(reader)  # before anything is written: a reader in a shell may live until all is
    command = [sys.executable, "-m", "polyfuse", "settings", "--json"]
    with open(writer, "wb") as output:
        done = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, timeout=120)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("command", ["explain", "check", "bisect"])
def test_only_the_program_is_required(command, capsys):
    with pytest.raises(SystemExit):
        cli.main([command])
    assert "are required: program\n" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["explain", "report", "tune", "check", "bench"])
def test_a_missing_program_is_reported(command, capsys):
    assert cli.main([command, "absent.py"]) == 1
    assert "there is no file absent.py; name a Python program" in capsys.readouterr().err


def test_a_missing_program_is_reported_before_torch_is_imported():
    script = "import sys; from polyfuse import cli; cli.main(sys.argv[1:]); sys.exit('torch' in sys.modules)"
    for command in ("explain", "report", "tune"):
        done = subprocess.run(
            [sys.executable, "-c", script, command, "absent.py"], capture_output=True, timeout=120
        )
        assert b"there is no file" in done.stderr and done.returncode == 0


class TestBackends:
    def test_as_json(self, capsys):
        assert cli.main(["backends", "--json"]) == 0
        rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
        assert rows["interpreter"]["status"] == "ready" and rows["interpreter"]["offers"] == ["kernels"]

    def test_fits_the_terminal_and_tells_what_is_offered(self, capsys, monkeypatch):
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.setenv("POLYFUSE_DISABLE", "halide")
        cli.main(["backends"])
        out = capsys.readouterr().out
        assert max(map(len, out.splitlines())) <= 80
        assert "quantized    ready  no code generator" in out and "offers lowerings, rewrites: " in out
        assert "halide       disabled" in out and "listed in the option `disable`" in out

    @pytest.mark.quick(1)
    @pytest.mark.skipif(torch.cuda.is_available(), reason="the machine has the device that should be absent")
    @pytest.mark.parametrize("arguments", [["backends", "--load"], ["doctor"]])
    def test_a_backend_for_an_absent_device_is_no_fault(self, arguments, capsys, caplog):
        reset_warned()
        cli.main([*arguments, "--json"])
        found = json.loads(capsys.readouterr().out)
        rows = {row["name"]: row["status"] for row in found} if isinstance(found, list) else found["backends"]
        assert rows["triton"] == rows["cutlass"] == "not applicable here"
        assert not caplog.records


class TestDoctor:
    @pytest.fixture(autouse=True)
    def cache_folder(self, tmp_path, monkeypatch):
        monkeypatch.setenv("POLYFUSE_CACHE_DIR", str(tmp_path))

    def test_what_is_well_is_one_line(self, capsys):
        assert cli.main(["doctor"]) == 0
        out = capsys.readouterr().out.splitlines()
        assert len(out) == 2 and out[1].startswith("Ready: cpu: cpp")

    def test_findings_by_weight_with_their_fix(self, capsys, monkeypatch):
        monkeypatch.setenv("CXX", "/nonexistent")
        monkeypatch.setenv("POLYFUSE_CACHE", "0")
        assert cli.main(["doctor"]) == 1
        out = capsys.readouterr().out
        assert out.index("error   cpp: compiler") < out.index("warning cache: off")
        assert "\nReady: cpu: halide" in out or "\nNot ready" in out
        out = " ".join(out.split())
        assert "'/nonexistent', named by CXX or the option cpp.compiler, does not exist" in out
        assert "fix: unset or correct it" in out

    def test_without_a_code_generator_nothing_is_ready(self, capsys, monkeypatch):
        monkeypatch.setenv("POLYFUSE_DISABLE", "cpp,halide")
        assert cli.main(["doctor", "--json"]) == 1
        found = json.loads(capsys.readouterr().out)
        assert not found["ok"] and found["ready"]["cpu"] == []
        assert found["findings"][0]["subject"] == "no compiler for the CPU" and found["findings"][0]["fix"]

    def test_counts_artifacts_and_prints_no_keys(self, capsys, monkeypatch, tmp_path):
        monkeypatch.setenv("POLYFUSE_CACHE_DIR", str(tmp_path))
        (tmp_path / "compiled" / "key").mkdir(parents=True)
        (tmp_path / "compiled" / "key" / "entry").write_bytes(bytes(3 << 20))
        cli.main(["doctor", "interpreter"])
        out = " ".join(capsys.readouterr().out.split())
        assert f"{tmp_path}, 3.0 MiB: 1 compiled graphs" in out
        for backend in ("cpp", "halide"):
            cli.main(["doctor", backend])
            assert not re.search(r"\b[a-z2-7]{16,}\b", capsys.readouterr().out)

    def test_of_an_unknown_backend(self, capsys):
        assert cli.main(["doctor", "no-such-backend"]) == 1
        assert "is not installed" in capsys.readouterr().err


def test_backends_and_doctor_agree_on_an_old_plugin_and_fit_the_terminal(
    capsys, monkeypatch, caplog, tmp_path
):
    """Neither prints a line of more than 80 columns, a key, or a warning of what it shows."""
    reset_warned()
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("POLYFUSE_CACHE_DIR", str(tmp_path))
    old = plugin(monkeypatch, "oldfashioned_accelerators", api=(1, 0), priority={"cpu": 1000})
    raising = plugin(monkeypatch, "raising", load="nowhere:Nothing")
    install(monkeypatch, old, raising)
    assert cli.main(["doctor", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert cli.main(["backends", "--load", "--json"]) == 1
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert found["backends"] == {name: row["status"] for name, row in rows.items()}
    assert rows["oldfashioned_accelerators"]["status"] == "unusable"
    texts = []
    for command in (["backends", "--load"], ["doctor", "--verbose"], ["doctor", "oldfashioned_accelerators"]):
        cli.main(command)
        texts.append(capsys.readouterr())
    lines = [line for text in texts for line in (text.out + text.err).splitlines()]
    assert max(len(line) for line in lines if " " in line.strip()) <= 80, "a path stays whole"
    assert not re.search(r"\b[a-z2-7]{24,}\b", "\n".join(lines)) and not caplog.records
    for text in texts:
        words = " ".join(text.out.split())
        assert "is built for plugin interface 1.0, and this Polyfuse supports 2.0" in words
        assert "install a newer version of 'oldfashioned_accelerators'" in words


class TestSettings:
    def test_changed_with_default_and_origin(self, capsys, monkeypatch):
        monkeypatch.setenv("POLYFUSE_FUEL", "7")
        assert cli.main(["settings", "--changed", "--mode", "max-autotune"]) == 0
        out = capsys.readouterr().out
        assert "fuel = 7\n    default None; set by POLYFUSE_FUEL in the environment" in out
        assert "gemm = 'fastest'\n    default 'known'; set by mode max-autotune" in out
        assert "max_fusion_size" not in out

    def test_fits_the_terminal_and_names_what_is_allowed(self, capsys, monkeypatch):
        monkeypatch.setenv("COLUMNS", "80")
        assert cli.main(["settings"]) == 0
        out = capsys.readouterr().out
        assert max(map(len, out.splitlines())) <= 80
        assert "takes library | known | fastest | generated" in out and "an integer, at least 1" in out
        assert "takes integers, separated by commas, at least 0; POLYFUSE_SIZES" in out

    def test_words_and_options_of_plugins(self, capsys, monkeypatch):
        monkeypatch.setenv("POLYFUSE_CPP__ISA", "sse")
        assert cli.main(["settings", "instruction", "--json"]) == 0
        (row,) = json.loads(capsys.readouterr().out)
        assert row["name"] == "cpp.isa" and row["value"] == "'sse'" and "POLYFUSE_CPP__ISA" in row["origin"]
        assert cli.main(["settings", "xyzzy"]) == 1
        assert "no option has xyzzy" in capsys.readouterr().err


def test_unknown_command():
    with pytest.raises(SystemExit):
        cli.main(["frobnicate"])


def test_as_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "polyfuse", "--version"], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0 and done.stdout.strip() == version()


def test_conformance_prints_the_matrix_and_fails_with_it(capsys, monkeypatch):
    for status, ended in ((Status.PASS, 0), (Status.FAIL, 1)):
        cells = (Cell("scalar ops", "add", "f32", status),)
        monkeypatch.setattr(
            "polyfuse.cli.conformance.run_conformance", lambda name, *_, c=cells: Matrix(name, c)
        )
        assert cli.main(["conformance", "toy", "--quick"]) == ended
        assert ("✗" in capsys.readouterr().out) == (ended == 1)
    assert cli.main(["conformance", "toy", "--format", "markdown"]) == 1
    assert "|" in capsys.readouterr().out


@pytest.mark.parametrize(("given", "found"), [((), True), (("--kernels",), False)])
def test_conformance_of_kernels_alone(capsys, monkeypatch, given, found):
    few = tuple(itertools.islice(conformance.all_cases(quick=True), 1))
    monkeypatch.setattr(conformance, "all_cases", lambda quick: few)
    cli.main(["conformance", "interpreter", "--quick", "--format", "json", *given])
    groups = {cell["group"] for cell in json.loads(capsys.readouterr().out)["cells"]}
    assert "scalar operations" in groups and (len(groups) > 1) == found
