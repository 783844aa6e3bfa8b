"""The C++ backend's kernels for 64-bit Arm, run by an emulator: the kit and random programs."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from polyfuse_bench.fuzz.building import Sessions
from polyfuse_bench.fuzz.trial import outcome, trial_of

from emulators import NEON, SVE, Emulator, emulate_kernels, machines
from polyfuse.base.settings import Settings
from polyfuse.testing.conformance import Run, all_cases
from polyfuse_cpp.backend import CppBackend


def check(emulator: Emulator, monkeypatch: pytest.MonkeyPatch, quick: bool, step: int) -> None:
    """Run every `step`-th case of the kit."""
    emulate_kernels(monkeypatch)
    backend = CppBackend(Settings.resolve(options=emulator.options))
    cases = tuple(itertools.islice(all_cases(quick), 0, None, step))
    matrix = Run(backend, quick=quick).matrix(cases, contract=False)
    assert matrix.ok, "\n".join(f"{cell.label}: {cell.reason}" for cell in matrix.failures())


@machines(NEON, SVE)
def test_some_kernels_of_the_kit(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    check(emulator, monkeypatch, True, 120)


@pytest.mark.slow
@machines()
def test_the_kit(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    check(emulator, monkeypatch, True, 1)


def programs(emulator: Emulator, monkeypatch: pytest.MonkeyPatch, seeds: range) -> None:
    emulate_kernels(monkeypatch)
    sessions = Sessions("cpp")
    for seed in seeds:
        trial = trial_of(seed, "cpp", "cpu")
        options = {**trial.options, **emulator.options, "memory_pools": False}
        found = outcome(replace(trial, options=options), sessions)
        assert not found, f"seed {seed}: {found}"


@machines(NEON, SVE)
def test_a_random_program(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    programs(emulator, monkeypatch, range(100, 101))


@pytest.mark.slow
@machines()
def test_random_programs(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    programs(emulator, monkeypatch, range(200, 240))
