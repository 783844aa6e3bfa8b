from __future__ import annotations

import os
import sys
import time

import pytest

from polyfuse.base.errors import KernelBuildError
from polyfuse.base.process import library_errors, run_program


def test_output_and_input():
    assert run_program([sys.executable, "-c", "print(input())"], text="hello\n") == "hello\n"


def test_failure_has_command_and_both_streams():
    script = "import sys; print('out', flush=True); print('err', file=sys.stderr); sys.exit(3)"
    with pytest.raises(KernelBuildError) as caught:
        run_program([sys.executable, "-c", script], name="k1")
    error = caught.value
    assert "status 3" in error.cause and "k1" in error.cause and error.name == "k1"
    assert "out" in error.output and "err" in error.output
    assert error.command[0] == sys.executable


def test_missing_program():
    with pytest.raises(KernelBuildError, match="cannot be started"):
        run_program(["polyfuse-no-such-program"])


def test_time_limit_ends_children_too():
    start = time.monotonic()
    script = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(1000)'])"
    with pytest.raises(KernelBuildError, match="longer than"):
        run_program([sys.executable, "-c", script], timeout=0.5)
    assert time.monotonic() - start < 300


def test_what_libraries_print_becomes_part_of_the_error():
    with pytest.raises(KernelBuildError) as caught, library_errors():
        os.write(2, b"pass 7: no such layout\n")
        raise KernelBuildError("a kernel does not build", "report it", command=["make"], output="the text")
    assert caught.value.output == "the text\npass 7: no such layout\n"
    assert (caught.value.cause, caught.value.command) == ("a kernel does not build", ("make",))
