"""A compiler that is not there, does not work, or is given text that it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from polyfuse.ir.types import DType
from polyfuse_cpp import generator as cpp

X = torch.randn(3, 40)


def f(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * 2 + 1, -1)


def check(**options: object) -> None:
    compiled = torch.compile(f, backend="polyfuse", options=options)
    torch.testing.assert_close(compiled(X), f(X))


def script(folder: Path, text: str) -> str:
    path = folder / "compiler"
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return str(path)


def test_no_compiler(monkeypatch, tmp_path, warned):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    check()
    (text,) = warned
    assert "'cpp'" in text and "install" in text and "'interpreter'" in text


def test_no_compiler_and_no_other_choice(monkeypatch, tmp_path, warned):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    check(backends=("cpp",))
    assert len(warned) == 2 and "install" in warned[0] and "eager mode" in warned[1]


def test_a_compiler_that_is_not_there(monkeypatch, warned):
    monkeypatch.setenv("CXX", "no-such-compiler")
    check()
    (text,) = warned
    assert "no-such-compiler" in text and "CXX" in text


def test_a_compiler_that_only_fails(monkeypatch, tmp_path, warned):
    monkeypatch.setenv("CXX", script(tmp_path, "exit 1\n"))
    check()
    (text,) = warned
    assert "neither g++ nor clang++" in text and "CXX" in text


BREAKS = 'case "$1" in -v) echo "gcc version 1.0" >&2;; *) echo "out of luck" >&2; exit 1;; esac\n'


def test_a_compiler_that_fails_to_build(monkeypatch, tmp_path, warned):
    monkeypatch.setenv("CXX", script(tmp_path, BREAKS))
    check()
    (text,) = warned
    assert "'cpp'" in text and "falls back to 'interpreter'" in text and "POLYFUSE_STRICT" in text
    assert f"\n  command: {tmp_path / 'compiler'} " in text and text.endswith("\n  out of luck")


def test_strict_raises_the_compilers_words(monkeypatch, tmp_path):
    path = script(tmp_path, BREAKS)
    monkeypatch.setenv("CXX", path)
    with pytest.raises(Exception, match="out of luck") as caught:
        check(strict=True)
    assert f"command: {path}" in str(caught.value)


def test_strict_without_a_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(Exception, match=r"BackendUnavailableError: .*no-such-compiler"):
        check(strict=True, backends=("cpp",))


@pytest.fixture
def corrupted(monkeypatch):
    real = cpp.kernel_text

    def kernel_text(kernel, *how):
        found = real(kernel, *how)
        if any(a.dtype is DType.f32 for a in kernel.args):
            return type(found)(**{**vars_of(found), "text": found.text + "\nthis is no C++;\n"})
        return found

    monkeypatch.setattr(cpp, "kernel_text", kernel_text)


def vars_of(item: object) -> dict[str, object]:
    return {name: getattr(item, name) for name in item.__dataclass_fields__}  # type: ignore[attr-defined]


def test_a_kernel_that_does_not_compile(corrupted, warned):
    check()
    (text,) = warned
    assert "falls back to 'interpreter'" in text


def test_the_others_of_its_unit_are_built(corrupted, warned):
    def two(x, n):
        return torch.softmax(x, -1), n.cumsum(0) * 2

    n = torch.arange(10)
    compiled = torch.compile(two, backend="polyfuse")
    for actual, expected in zip(compiled(X, n), two(X, n), strict=True):
        torch.testing.assert_close(actual, expected)
    assert len(warned) == 1


def test_a_kernel_that_does_not_compile_strictly(corrupted):
    with pytest.raises(Exception, match="this is no C") as caught:
        check(strict=True)
    assert "command: " in str(caught.value)


def test_nothing_else_to_replace_it(corrupted, warned):
    check(backends=("cpp",))
    (text,) = warned
    assert "falls back to an interpreter" in text
