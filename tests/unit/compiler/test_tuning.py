"""The choice of a configuration: by timing where that is asked for, and where the first one is no good."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from autotuning import best_of, times_of
from fake_plugins import serve
from polyfuse.autotune.benchmark import Benchmark
from polyfuse.autotune.tuner import Tuner
from polyfuse.base.errors import KernelBuildError, UnsupportedError
from polyfuse.base.settings import Settings
from polyfuse.cache.timings import FAILED, Record
from polyfuse.compiler.reports.report import last_reports
from polyfuse.compiler.session import forget_sessions, session_for
from polyfuse.ir.kernel import Kernel
from polyfuse.plugin import Claim, Config, Launchable, No, Source, Timer, Yes
from polyfuse.reference.backend import InterpreterBackend


class Tunable(InterpreterBackend):
    """The interpreter with blocks of 4, 8, 16 ... that change nothing but the time, least at `best`."""

    best: ClassVar[int] = 64
    bad: ClassVar[tuple[int, ...]] = ()
    spilling: ClassVar[tuple[int, ...]] = ()
    failing: ClassVar[tuple[int, ...]] = ()
    timed: ClassVar[list[int]] = []
    built: ClassVar[list[int]] = []
    launched: ClassVar[list[int]] = []
    own_timer: ClassVar[bool] = True

    def configs(self, kernel: Kernel) -> Sequence[Config]:
        return [Config.of(block=8), Config.of(block=4), Config.of(block=16)]

    def neighbours(self, kernel: Kernel, config: Config) -> Sequence[Config]:
        block = config.get("block")
        return [Config.of(block=block // 2), Config.of(block=block * 2)]

    def emit(self, kernel: Kernel, config: Config | None = None) -> Source:
        plain = super().emit(kernel)
        return Source(
            plain.name, plain.text, plain.language, meta=str((config or Config.of(block=8)).get("block"))
        )

    def build(self, sources: Sequence[Source], folder: Path) -> None:
        type(self).built += [int(source.meta) for source in sources]
        for source in sources:
            if int(source.meta) in self.bad:
                raise KernelBuildError("out of registers", "use smaller blocks", name=source.name)
            (folder / f"{source.key}.block").write_text(source.meta)
        super().build(sources, folder)

    def load(self, folder: Path) -> Mapping[str, Launchable]:
        found = super().load(folder)
        blocks = {key: int((folder / f"{key}.block").read_text()) for key in found}
        return {key: self.noting(blocks[key], kernel) for key, kernel in found.items()}

    def noting(self, block: int, kernel: Launchable) -> Launchable:
        def launch(*operands: object) -> None:
            self.launched.append(block)
            kernel(*operands)

        return launch

    def review(self, folder: Path, key: str) -> Claim:
        block = int((folder / f"{key}.block").read_text())
        return No("it spills") if block in self.spilling else Yes()


class Blocks(Timer):
    """Takes the time by the block of the kernel that is launched."""

    def __init__(self, kind: type[Tunable]) -> None:
        self.kind = kind

    def milliseconds(self, launches: Sequence[Callable[[], object]]) -> float:
        launches[0]()
        kind, block = self.kind, self.kind.launched[-1]
        kind.timed.append(block)
        if block in kind.failing:
            raise RuntimeError("out of resources")
        return 1.0 + abs(block - kind.best) / 64


@pytest.fixture
def tunable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[type[Tunable]]:
    kind = type("Fresh", (Tunable,), {"timed": [], "built": [], "launched": []})

    def polyfuse_timer(device_type: str, backend: str) -> Timer | None:
        return Blocks(kind) if backend == "toy" and kind.own_timer else None

    serve(monkeypatch, tmp_path, kind, {"polyfuse_timer": polyfuse_timer})
    yield kind
    forget_sessions()


@pytest.fixture(autouse=True)
def equal_first_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the time of its first run, no candidate is dropped: on a busy machine, any of them may take long."""
    first = Benchmark.first

    def equal(self: Benchmark, candidate: Any) -> float:
        first(self, candidate)
        return 1.0

    monkeypatch.setattr(Benchmark, "first", equal)


def compiled(**options: object) -> Any:
    forget_sessions()
    torch.compiler.reset()
    settings = {"build_workers": 1, "strict": True, "tune_in_process": True, "tune_seconds": 999, **options}
    return torch.compile(lambda x: torch.relu(x) * 2, backend="polyfuse", options=settings)


def run(**options: object) -> None:
    x = torch.randn(5, 7)
    torch.testing.assert_close(compiled(**options)(x), torch.relu(x) * 2)
    assert last_reports()[-1].launches[0].backend == "toy"


def best_known() -> tuple[dict[str, float], str | None]:
    ((_, found),) = session_for(Settings.resolve(None, {})).tuner.timings.entries()
    return times_of(found), best_of(found)


def test_without_tuning_the_first_guess_is_used_untimed(tunable):
    run()
    assert tunable.built == [8] and tunable.timed == []


def test_the_search_descends_to_the_best(tunable):
    run(tune_kernels=True)
    # 8, 4, 16; then around 16: 32; around 32: 64; around 64: 128, which is slower
    assert list(dict.fromkeys(tunable.timed)) == [8, 4, 16, 32, 64, 128]
    times, best = best_known()
    assert best == "toy block=64" and times["toy block=64"] == 1.0 and len(times) == 6


def test_sizes_that_data_decide_are_tuned_for_a_guess(tunable):
    """With an operand that begins inside of its storage, too."""

    def selected(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x[2:].nonzero().squeeze(1) * y[3:4] + 1

    forget_sessions()
    torch.compiler.reset()
    options = {"build_workers": 1, "tune_in_process": True, "tune_seconds": 999, "tune_kernels": True}
    x, y = torch.randn(50).relu(), torch.randint(9, (5,))
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        run = torch.compile(selected, backend="polyfuse", options=options, fullgraph=True)
        for _ in range(2):
            torch.testing.assert_close(run(x, y), selected(x, y))
            x = torch.randn(50)
    assert 64 in tunable.timed
    assert best_known()[1] == "toy block=64"


def test_the_mode_of_torch_asks_for_it(tunable, monkeypatch):
    x = torch.randn(3)
    monkeypatch.setenv("POLYFUSE_TUNE_IN_PROCESS", "1")
    monkeypatch.setenv("POLYFUSE_AUTOTUNE_BACKENDS", "0")
    function = torch.compile(lambda x: x.sin() + 1, backend="polyfuse", mode="max-autotune-no-cudagraphs")
    torch.testing.assert_close(function(x), x.sin() + 1)
    assert 64 in tunable.timed


def test_nothing_is_timed_twice(tunable):
    run(tune_kernels=True)
    tunable.timed.clear(), tunable.built.clear()
    run(tune_kernels=True)
    assert tunable.timed == [] and tunable.built == []
    # the built kernels are gone, the measurements are not
    root = session_for(Settings.resolve(None, {})).store.root
    shutil.rmtree(root / "kernels")
    run(tune_kernels=True)
    assert tunable.timed == [] and tunable.built == [64]


def test_a_search_that_was_cut_short_goes_on(tunable):
    run(tune_kernels=True, tune_seconds=0)
    assert set(tunable.timed) == {8, 4, 16}
    assert best_known()[1] == "toy block=16"
    timings = session_for(Settings.resolve(None, {})).tuner.timings
    ((key, known),) = timings.entries()
    timings.write(key, replace(known, complete=False))
    tunable.timed.clear()
    run(tune_kernels=True)
    # the best so far runs beside what is new
    assert set(tunable.timed) == {16, 32, 64, 128}


def test_candidates_that_fail_spill_or_do_not_run_lose(tunable, monkeypatch):
    monkeypatch.setattr(tunable, "bad", (32,))
    monkeypatch.setattr(tunable, "spilling", (16,))
    monkeypatch.setattr(tunable, "failing", (8,))
    run(tune_kernels=True)
    times, best = best_known()
    assert best == "toy block=4" and times["toy block=16"] == FAILED and times["toy block=8"] == FAILED
    assert 16 not in tunable.timed


def test_where_all_lose_the_first_guess_stays(tunable, monkeypatch):
    monkeypatch.setattr(tunable, "failing", (4, 8, 16))
    run(tune_kernels=True)
    assert best_known()[1] is None


def test_a_kernel_that_a_backend_refuses_as_a_whole_is_tuned_by_the_next(tunable, monkeypatch):
    def refuse(*given: object) -> Any:
        raise UnsupportedError("it is no such kernel", "another backend computes it")

    troubles: list[str] = []
    monkeypatch.setattr(tunable, "configs", refuse)
    monkeypatch.setattr(tunable, "emit", refuse)
    monkeypatch.setattr(Tuner, "note_trouble", lambda self, backend, *rest: troubles.append(backend.name))
    x = torch.randn(5, 7)
    torch.testing.assert_close(compiled(tune_kernels=True)(x), torch.relu(x) * 2)
    assert tunable.built == [] and troubles == []


def rows(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


METHODS = ("claims", "configs", "neighbours", "estimate", "emit", "build", "load", "review", "describe")


class TestRivals:
    """Backends that are timed against each other: one that refuses or raises costs its candidates alone."""

    @staticmethod
    def timed(tunable: type[Tunable], monkeypatch: pytest.MonkeyPatch, backends: tuple[str, ...]) -> Record:
        """What is measured of one kernel with which two backends take part."""
        monkeypatch.setattr(tunable, "autotunes_kernels", True)
        monkeypatch.setattr(tunable, "own_timer", False)
        forget_sessions()
        torch.compiler.reset()
        options = {"tune_kernels": True, "autotune_backends": True, "tune_in_process": True}
        run = torch.compile(rows, backend="polyfuse", options={**options, "backends": backends})
        x = torch.randn(64, 65)
        torch.testing.assert_close(run(x), rows(x))
        ((_, found),) = session_for(Settings.resolve(None, {})).tuner.timings.entries()
        return found

    @pytest.mark.quick(1)
    @pytest.mark.parametrize(
        ("method", "first", "error"),
        [
            pytest.param(method, first, error, marks=() if short else (pytest.mark.slow,))
            for method in METHODS
            for first in (False, True)
            for error in (UnsupportedError("not this one", "ask another"), OSError("broken"))
            for short in (method in ("configs", "describe") and first == isinstance(error, OSError),)
        ],
    )
    def test_one_that_raises(self, tunable, monkeypatch, warnings_seen, method, first, error):
        def broken(self: object, *args: object, **kwargs: object) -> object:
            raise error

        monkeypatch.setattr(tunable, method, broken)
        found = self.timed(tunable, monkeypatch, ("toy", "cpp") if first else ("cpp", "toy"))
        timed = [trial.candidate for trial in found.trials if trial.milliseconds != FAILED]
        assert sum(candidate.implementation == "cpp" for candidate in timed) > 1, found
        assert found.best is not None
        assert found.best.candidate.implementation == "cpp" or method in ("neighbours", "estimate")
        warned = [text for text in warnings_seen() if "no candidate" not in text]
        assert len(warned) <= 1 and all("'toy'" in text for text in warned)
        # a wrong answer is warned about; what fails to build or load is a lost candidate
        loud = method in ("claims", "estimate", "review") or (
            method in ("configs", "describe") and isinstance(error, OSError)
        )
        assert bool(warned) == loud

    def test_a_launch_that_raises(self, tunable, monkeypatch, warnings_seen):
        def load(self: Any, folder: Path) -> Mapping[str, Launchable]:
            def launch(*operands: object) -> None:
                raise OSError("broken")

            return dict.fromkeys(InterpreterBackend.load(self, folder), launch)

        monkeypatch.setattr(tunable, "load", load)
        found = self.timed(tunable, monkeypatch, ("toy", "cpp"))
        assert found.best is not None and found.best.candidate.implementation == "cpp"
        assert all("no candidate" in text for text in warnings_seen())


def test_one_configuration_is_no_choice(tunable, monkeypatch):
    monkeypatch.setattr(tunable, "configs", lambda self, kernel: [Config.of(block=8)])
    run(tune_kernels=True)
    assert tunable.timed == []


def test_a_backend_that_cannot_time_is_used_as_it_is(tunable, monkeypatch):
    def broken(self: object) -> Mapping[str, str]:
        raise OSError("no clock")

    monkeypatch.setattr(tunable, "machine", broken)
    run(tune_kernels=True)
    assert tunable.built == [8]


class TestSecondGuesses:
    def test_another_configuration_replaces_one_that_fails_to_build(self, tunable, monkeypatch):
        monkeypatch.setattr(tunable, "bad", (8,))
        run()
        assert tunable.built[0] == 8 and set(tunable.built[1:]) == {4, 16}

    def test_and_one_that_spills(self, tunable, monkeypatch):
        monkeypatch.setattr(tunable, "spilling", (8, 4))
        run()
        assert set(tunable.built) == {8, 4, 16}

    def test_one_that_spills_is_better_than_none(self, tunable, monkeypatch):
        monkeypatch.setattr(tunable, "spilling", (8, 16))
        monkeypatch.setattr(tunable, "bad", (4,))
        run()

    def test_where_none_can_be_built_the_next_backend_has_it(self, tunable, monkeypatch):
        monkeypatch.setattr(tunable, "bad", (4, 8, 16))
        x = torch.randn(5, 7)
        torch.testing.assert_close(compiled(strict=False)(x), torch.relu(x) * 2)
        with pytest.raises(KernelBuildError, match="out of registers"):
            compiled()(x)
