"""Compilers that hang, lie, print without end, or leave something else than a library: the results are right,
there is a warning and no hang.
"""

from __future__ import annotations

import shlex
import shutil
import time
from pathlib import Path

import pytest
import torch

from polyfuse.base.process import run_bounded
from polyfuse_cpp import toolchain

X = torch.randn(3, 40)
REAL = shutil.which("g++") or "g++"

# `$out` is the library asked for, `$real` compiles it.
BUILDS = {
    "fails without a word": "exit 1",
    "is killed": "kill -9 $$",
    "ends with a status of its own": "exit 77",
    "says that all is well, and left nothing": "exit 0",
    "leaves an empty file": ": > $out",
    "leaves a text": "echo '#!/bin/sh' > $out",
    "leaves half of a library": "$real; head -c 5000 $out > $out.half; mv $out.half $out",
    "leaves only the head of a library": "$real; head -c 64 $out > $out.half; mv $out.half $out",
    "leaves another program": "cp /bin/true $out",
    "leaves a library without kernels": "echo 'int x;' | g++ -shared -fPIC -x c++ - -o $out",
    "leaves a library of another machine": (
        "$real; printf '\\267' | dd of=$out bs=1 seek=18 conv=notrunc 2>/dev/null"
    ),
    "leaves a folder": "mkdir $out",
    "leaves a link that leads nowhere": "ln -s /nowhere/at/all $out",
    "leaves a pipe": "mkfifo $out",
    "removes the folder": "rm -rf $(dirname $out)",
    "removes its source": "rm -f $source; exit 1",
    "hangs": "sleep 1000",
    "hangs, and does not mind being asked to end": "trap '' TERM INT HUP; sleep 1000; sleep 1000",
    "ends, but leaves a child that holds its output": "sleep 1000 & exit 1",
    "prints without end": "yes 'error: no end is in sight'",
    "prints much, and fails": "yes 'error: long' | head -c 30000000; exit 1",
    "prints commands for the terminal": "printf '\\033]0;owned\\007\\033[31merror\\033[0m\\n'; exit 1",
    "prints what is no text": "head -c 3000 /dev/urandom; exit 1",
    "says that the disk is full": "echo 'fatal error: No space left on device' >&2; exit 1",
    "fails the first time": "test -e $mark && exec $real; : > $mark; exit 1",
    "warns, and works": "echo 'warning: odd' >&2; exec $real",
}

ASKED = {
    "says nothing of itself": "exit 0",
    "says something else": "echo 'I am a teapot' >&2",
    "hangs when it is asked": "sleep 1000",
    "does not stop talking": "yes 'gcc of all'",
    "cannot be run": None,
}


def f(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * 2 + 1, -1)


def compiler(folder: Path, build: str, asked: str = "echo 'gcc version 12.2.0 (lying)' >&2") -> str:
    path = folder / "compiler"
    path.write_text(
        f"""#!/bin/sh
if [ "$1" = -v ]; then {asked}; exit; fi
out=; source=; mark={shlex.quote(str(folder / "mark"))}; last=
for word in "$@"; do
  [ "$last" = -o ] && out=$word
  case $word in *.cpp) source=$word;; esac
  last=$word
done
real="{REAL} $*"
{build}
"""
    )
    path.chmod(0o755)
    return str(path)


def check(**options: object) -> None:
    compiled = torch.compile(f, backend="polyfuse", options={"build_timeout": 2, **options})
    torch.testing.assert_close(compiled(X), f(X))


QUICK = tuple(BUILDS)[::8] + (
    "hangs",
    "prints without end",
    "leaves a pipe",
    "leaves half of a library",
    "prints commands for the terminal",
)


def attack(monkeypatch, tmp_path, warned, name):
    monkeypatch.setenv("CXX", compiler(tmp_path, BUILDS[name]))
    slow = "works" in name or "first time" in name or "leaves" in name
    check(build_timeout=60 if slow else 2)
    assert all("\033" not in text and "\007" not in text for text in warned)
    assert len(warned) <= 3, warned
    assert warned or name in ("warns, and works", "fails the first time")


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", dict.fromkeys(QUICK))
def test_a_lying_compiler(monkeypatch, tmp_path, warned, name):
    attack(monkeypatch, tmp_path, warned, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILDS)
def test_each_lying_compiler(monkeypatch, tmp_path, warned, name):
    attack(monkeypatch, tmp_path, warned, name)


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", ASKED)
def test_a_compiler_that_does_not_say_what_it_is(monkeypatch, tmp_path, warned, name):
    monkeypatch.setattr(toolchain, "_ASK_SECONDS", 0.5)
    path = compiler(tmp_path, "exit 1", ASKED[name] or "")
    if ASKED[name] is None:
        Path(path).write_bytes(b"\0" * 100)
    monkeypatch.setenv("CXX", path)
    check()
    assert len(warned) == 1 and "CXX" in warned[0]


def test_a_command_with_arguments_is_a_compiler(monkeypatch, tmp_path, warned):
    """As `ccache g++` is; it is an argument list, and no shell reads it."""
    wrapper, log = tmp_path / "my cache", tmp_path / "log"
    wrapper.write_text(f'#!/bin/sh\necho "$1" >> {shlex.quote(str(log))}\nexec "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("CXX", f"'{wrapper}' g++")
    check(strict=True, build_timeout=300)
    assert set(log.read_text().split()) == {"g++"}
    monkeypatch.setenv("CXX", f"g++; touch {tmp_path}/owned")
    torch.compiler.reset()
    check()
    assert not (tmp_path / "owned").exists() and not log.read_text().count("owned")


def test_a_program_is_ended_with_its_children_and_little_of_its_output_is_stored():
    start = time.monotonic()
    assert run_bounded(["sh", "-c", "sleep 1000 & sleep 1000"], timeout=0.5).status is None
    assert time.monotonic() - start < 300
    done = run_bounded(["sh", "-c", "yes text | head -c 20000000"], timeout=60)
    assert done.status == 0 and len(done.output) < 1_000_000 and "left out" in done.output
    assert run_bounded(["cat"], text="as it was").output == "as it was"
    assert run_bounded(["sh", "-c", "exit 3"]).status == 3
