"""Kernels of real programs (tests/corpus, written by tools/kernel_corpus.py), replayed by every backend.

The kit's cases are written by hand, one subject each; these are what the scheduler makes of models, with many
subjects in one kernel.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from polyfuse.base.errors import UnsupportedError
from polyfuse.base.settings import Settings
from polyfuse.compiler.reports.replay import replay
from polyfuse.compiler.session import session_for
from requirements import HALIDE, TRITON

REFUSED = {"halide": " dot ("}
"""What a backend claims no node of, as it stands in the text of kernels: a kernel by itself has no nodes to ask
about."""
KERNELS = sorted((Path(__file__).parents[1] / "corpus").glob("*.ir"))


def faults(backend: str, paths: list[Path]) -> list[str]:
    """What a backend computes otherwise than the interpreter; kernels that it refuses are left out."""
    session = session_for(Settings.resolve(None, {"backends": (backend,)}))
    found, done = [], 0
    for path in paths:
        text = path.read_text(encoding="utf-8")
        if backend in REFUSED and REFUSED[backend] in text:
            continue
        try:
            differences = replay(text, session)
        except UnsupportedError:
            continue
        done += 1
        found += [f"{path.name}: {d.name}: {d.problem}" for d in differences if d.problem]
    if not done:
        found.append(f"{backend} refuses every kernel")
    return found


def interpreted_faults(paths: list[Path]) -> list[str]:
    """`faults` of Triton, in the process where Triton interprets."""
    from triton_interpreted import offer

    offer()
    return faults("interpreted", paths)


@pytest.mark.parametrize("backend", ["interpreter", "cpp", "halide"])
def test_kernels_of_programs(backend: str) -> None:
    if backend == "halide":
        pytest.importorskip("halide", reason=HALIDE)
    assert not faults(backend, KERNELS)


# A few by default: Triton's interpreter takes a second for a kernel.
@pytest.mark.parametrize("part", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 3))])
def test_kernels_of_programs_in_tritons_interpreter(part: int) -> None:
    pytest.importorskip("triton", reason=TRITON)
    from triton_interpreted import in_interpreter

    assert not in_interpreter(interpreted_faults, KERNELS[part::4])
