"""Files that lie where Polyfuse works are not executed: modules beside the user's script, texts that are
replayed, names that a terminal would obey.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from polyfuse.base.errors import KernelBuildError, ParseError, PolyfuseError
from polyfuse.base.expressions import Grammar, expression_problem
from polyfuse.base.log import get_logger, warn_once
from polyfuse.base.process import python_command, python_environment
from polyfuse.base.settings import Settings, child_environment
from polyfuse.base.text import printable
from polyfuse.compiler.reports.replay import replay
from polyfuse.compiler.session import session_for

TRAPS = ("json", "re", "subprocess", "polyfuse_halide", "filelock", "triton", "sitecustomize")


def test_workers_import_nothing_from_the_current_folder(tmp_path, monkeypatch):
    for name in TRAPS:
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'owned')!r}, 'a').write({name!r})\n")
    monkeypatch.chdir(tmp_path)
    for path in ("", str(tmp_path)):
        monkeypatch.syspath_prepend(path)
        done = subprocess.run(
            python_command("polyfuse.workers.main"),
            env=python_environment("polyfuse_cpp.backend:build"),
            input="",
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
    assert not (tmp_path / "owned").exists()


def test_a_script_beside_traps_compiles(tmp_path):
    """The script's own folder comes first on its path, as ever, but not on that of build workers."""
    (tmp_path / "polyfuse_halide.py").write_text("raise SystemExit('owned')\n")
    script = tmp_path / "script.py"
    script.write_text(
        "import sys; from polyfuse.base.process import python_environment\n"
        "print(python_environment()['PYTHONPATH'])\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert str(tmp_path) not in done.stdout.strip().split(":"), done.stdout + done.stderr


HOST = (
    *(
        "__import__('os').system('touch owned')",
        "open('owned', 'w')",
        "().__class__.__base__",
        "(lambda: 1)()",
    ),
    *(
        "[1 for x in (1,)]",
        "math.__loader__",
        "torch.load('owned')",
        "9**9**9",
        "1 << 99999999",
        "'a' * 10**9",
    ),
    *(
        "torch.serialization.load('x')",
        "exec('1')",
        "f'{1}'",
        "x.y",
        "x[0]",
        "(yield)",
        "a := 1",
        "*x",
        "",
    ),
)


@pytest.mark.parametrize("text", HOST)
def test_the_text_of_a_host_value_is_data(text):
    import json

    quoted = json.dumps(text)
    kernel = f"""
kernel k on cpu {{
  numerics fast
  axes i0{{host[{quoted}; 1..]}} ~ 8
  in in0: f32[8]
  out out0: f32[8]
  once {{
    v0 = load f32 in0[i0]
    store f32 set out0[i0] = v0
  }}
}}
"""
    with pytest.raises(ParseError, match="is no number of the host"):
        replay(kernel, session_for(Settings.resolve(None, {"backends": ("interpreter",)})))


def test_names_of_axes_are_no_code():
    kernel = """
kernel k on cpu {
  numerics fast
  axes "__import__('os')"{8} ~ 8
  in in0: f32[8]
  out out0: f32[8]
  once {
    v0 = load f32 in0[0]
    store f32 set out0[0] = v0
  }
}
"""
    with pytest.raises(ParseError, match="names no variable"):
        replay(kernel, session_for(Settings.resolve(None, {"backends": ("interpreter",)})))


def test_what_hosts_compute_is_still_read():
    grammar = Grammar(frozenset({"min", "math.*"}), frozenset({"math"}))
    for text in (
        "(s0 // 2)",
        "math.trunc((s0 / 3))",
        "(s0 ** 2)",
        "(1 if s0 > 3 else 0)",
        "min(s0, math.inf)",
        "(2 ** s0)",
    ):
        assert not expression_problem(text, grammar), text


def test_terminals_obey_nothing_that_is_printed(caplog):
    odd = "\033]0;title\007\033[31mred\033[0m\x9b2J\x1bPq\x1b\\name\u202e\r\b\x00 tab\tline\n"
    assert printable(odd) == "redname tab\tline\n"
    assert "\033" not in str(PolyfuseError(odd, odd))
    error = KernelBuildError(odd, command=("c++", odd), output=odd)
    assert "\033" not in str(error) and "\x9b" not in str(error)
    warn_once("test", f"{odd} {id(error)}")
    assert all("\033" not in record.getMessage() for record in caplog.records) and get_logger("test")


def test_the_command_line_prints_no_commands_for_terminals(tmp_path):
    name = "\033]0;owned\007.pf"
    done = subprocess.run(
        [sys.executable, "-m", "polyfuse", "package", "info", str(tmp_path / name)],
        capture_output=True,
        text=True,
        timeout=120,
        env=child_environment(),
    )
    assert done.returncode == 1 and "\033" not in done.stderr and "there is no file" in done.stderr


def test_the_folder_of_a_backend_stays_last(monkeypatch, tmp_path):
    (tmp_path / "my_backend.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    import my_backend  # type: ignore[import-not-found]  # noqa: F401

    paths = python_environment("my_backend:build")["PYTHONPATH"].split(":")
    assert paths[-1] == str(tmp_path) and paths.count(str(tmp_path)) == 1
    assert Path(torch.__file__).parent.parent.as_posix() in paths
