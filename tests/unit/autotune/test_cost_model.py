"""The cost model: which configurations of other kernels are built."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from fake_plugins import serve
from gemm_kernels import kernels_of
from polyfuse import cli
from polyfuse.autotune import search as search_module
from polyfuse.autotune.candidate import BuiltProgram
from polyfuse.autotune.cost_model import CostModel, fit_model
from polyfuse.autotune.pruning import kind_of, sizes_of
from polyfuse.base.folders import cache_root
from polyfuse.base.settings import Settings
from polyfuse.cache.samples import KernelSamples, Sample, SampleStore
from polyfuse.cache.timings import FAILED, TimingStore
from polyfuse.compiler.reports.report import last_reports
from polyfuse.compiler.session import forget_sessions
from polyfuse.ir.kernel import Kernel
from polyfuse.plugin import Config, Source
from polyfuse.reference.backend import InterpreterBackend

GOOD = 13
EIGHT = (3, 40, 4, 5, 6, 7, 8, 9)
Landscape = Callable[[tuple[int, ...], dict[str, int]], float]


def turns_are_bad_for_few(sizes: tuple[int, ...], values: dict[str, int]) -> float:
    """A landscape that estimates know nothing of."""
    return (1.5 if values["turns"] and sizes[1] < 600 else 1.0) * (0.8 if values["columns"] == 256 else 1.0)


def kernel_samples(rng: random.Random, landscape: Landscape, estimates: bool = True) -> KernelSamples:
    sizes = (1, rng.choice((1, 64, 512, 1024, 4096)), rng.choice((512, 4096)), 4096)
    samples = []
    for columns in (64, 128, 256):
        for turns in (0, 1):
            for stages in (3, 5):
                values = {"columns": columns, "stages": stages, "turns": turns}
                guess = rng.uniform(1.0, 1.2)
                time = guess if estimates else 1.0
                time *= landscape(sizes, values) * rng.uniform(0.98, 1.02)
                samples.append(Sample(tuple(sorted(values.items())), guess if estimates else None, time))
    rng.shuffle(samples)
    return KernelSamples("toy", sizes, tuple(samples))


def loss_and_built(model: CostModel, one: KernelSamples) -> tuple[float, int]:
    """How many times the fastest is the fastest of those worth building, and how many these are."""
    guesses = [s.estimate for s in one.samples if s.estimate is not None] or None
    within_margin = model.within_margin(model.scores(one.sizes, [s.config for s in one.samples], guesses))
    least = min(s.milliseconds for s in one.samples)
    return min(one.samples[i].milliseconds for i in within_margin) / least, len(within_margin)


@pytest.mark.parametrize("estimates", (True, False))
def test_what_estimates_do_not_know_is_fitted(estimates):
    rng = random.Random(7)
    model = fit_model([kernel_samples(rng, turns_are_bad_for_few, estimates) for _ in range(30)])
    assert model is not None and model.rank < model.plain_rank and model.estimated == estimates
    found = [loss_and_built(model, kernel_samples(rng, turns_are_bad_for_few, estimates)) for _ in range(40)]
    assert sum(loss for loss, _ in found) / 40 < 1.01 and sum(built for _, built in found) / 40 < 6
    assert f"{30 * 12} samples of 30 kernels" in model.about


def test_a_failure_counts_as_slow():
    rng = random.Random(3)

    def lost(one: KernelSamples) -> KernelSamples:
        bad = [replace(s, milliseconds=FAILED) if dict(s.config)["turns"] else s for s in one.samples]
        return replace(one, samples=tuple(bad))

    model = fit_model([lost(kernel_samples(rng, lambda *_: 1.0)) for _ in range(12)])
    assert model is not None
    one = kernel_samples(rng, lambda *_: 1.0)
    scores = model.scores(one.sizes, [s.config for s in one.samples], [1.0] * len(one.samples))
    turns = [dict(s.config)["turns"] for s in one.samples]
    assert max(s for s, t in zip(scores, turns, strict=True) if not t) < min(
        s for s, t in zip(scores, turns, strict=True) if t
    )


def test_of_few_samples_there_is_no_model():
    rng = random.Random(5)
    kernels = [kernel_samples(rng, turns_are_bad_for_few) for _ in range(20)]
    assert fit_model([]) is None and fit_model(kernels[:7]) is None
    short = [replace(one, samples=one.samples[:4]) for one in kernels[:9]]
    assert fit_model(short) is None
    assert fit_model(kernels) is not None
    # of kernels with other numbers of sizes there is nothing to be said together
    assert fit_model([*kernels, replace(kernels[0], sizes=(1, 2))]) is None
    same = [replace(one, samples=(one.samples[0],) * 12) for one in kernels]
    assert fit_model(same) is None


def test_what_is_no_better_than_the_estimate_is_not_used():
    rng = random.Random(11)
    perfect = [kernel_samples(rng, lambda *_: 1.0) for _ in range(20)]
    exact = [
        replace(r, samples=tuple(replace(s, milliseconds=s.estimate) for s in r.samples)) for r in perfect
    ]
    assert fit_model(exact) is None
    noise = [
        replace(r, samples=tuple(replace(s, milliseconds=rng.uniform(1, 2)) for s in r.samples))
        for r in perfect
    ]
    assert fit_model(noise) is None


def test_equal_samples_give_equal_models():
    kernels = [kernel_samples(random.Random(i), turns_are_bad_for_few) for i in range(20)]
    assert fit_model(kernels) == fit_model(kernels)


def test_values_that_were_never_seen_are_judged_by_their_estimate():
    rng = random.Random(2)
    model = fit_model([kernel_samples(rng, turns_are_bad_for_few) for _ in range(20)])
    assert model is not None
    assert model.knows((1, 64, 4096, 4096)) and not model.knows((2, 64, 4096, 4096))
    config = (("other", 3), ("more", -7))
    one, two = model.scores((1, 64, 4096, 4096), [config, config], [1.0, 2.0])
    assert one < two
    assert model.scores((1, 64, 4096, 4096), [], []) == [] and model.within_margin([]) == []


# The store.


def test_samples_are_stored_and_forgotten(tmp_path):
    store, one = SampleStore(tmp_path), kernel_samples(random.Random(0), turns_are_bad_for_few)
    one = replace(one, samples=(*one.samples, Sample((("columns", 8),), None, FAILED)))
    assert store.empty and store.read("group") == () and list(store.groups()) == []
    store.add("group", "key", 0, one)
    store.add("group", "key", 1, one)
    store.add("group", "other", 0, replace(one, about="other"))
    assert SampleStore(tmp_path).read("group") == (one, one, replace(one, about="other"))
    assert not store.empty and list(store.groups()) == ["group"]
    store.forget("key")
    assert [r.about for r in store.read("group")] == ["other"]


@pytest.mark.parametrize(
    "content",
    (
        *("", "{", "[]", "null", "{}", "\0", '{"about": "x", "sizes": [1], "rows": 3}'),
        '{"about": "x", "sizes": ["1"], "rows": []}',
        '{"about": "x", "sizes": [1e999], "rows": []}',
        '{"about": "x", "sizes": [1], "rows": [[{"a": 1}, 1.0, NaN]]}',
        '{"about": "x", "sizes": [1], "rows": [[{"a": 1}, 1.0, -1.0]]}',
        '{"about": "x", "sizes": [1], "rows": [[{"a": 1}, 0, 1.0]]}',
        '{"about": "x", "sizes": [1], "rows": [[{"a": 1.5}, 1.0, 1.0]]}',
        '{"about": "x", "sizes": [1], "rows": [[{"a": true}, 1.0, 1.0]]}',
        '{"about": "x", "sizes": [1], "rows": [[{"a": 1}, 1.0]]}',
        '{"about": "x", "sizes": [1], "rows": [[[1], 1.0, 1.0]]}',
        "[" * 100000,
    ),
)
def test_damaged_files_teach_nothing(tmp_path, content):
    store, one = SampleStore(tmp_path), kernel_samples(random.Random(0), turns_are_bad_for_few)
    store.add("group", "key", 0, one)
    store.add("group", "other", 0, one)
    (path,) = tmp_path.rglob("key-0.json")
    path.write_text(content)
    assert store.read("group") == (one,)


def test_a_folder_that_cannot_be_written_costs_only_the_memory(tmp_path):
    (tmp_path / "samples").touch()
    store = SampleStore(tmp_path)
    store.add("group", "key", 0, kernel_samples(random.Random(0), turns_are_bad_for_few))
    assert store.empty and store.read("group") == ()


# Kernels.


def test_kernels_of_a_kind():
    (one,) = kernels_of(lambda x: x.sin() + 1, torch.randn(8, 16))
    (two,) = kernels_of(lambda x: x.cos() * 2, torch.randn(3, 5, 7).transpose(0, 2))
    (sums,) = kernels_of(lambda x: x.sum(-1), torch.randn(6, 7))
    assert kind_of(one) == kind_of(two) == "pointwise of 4 bytes"
    assert kind_of(sums) == "reduce sum of 4 bytes"
    assert len(sizes_of(one)) == len(sizes_of(two)) == len(sizes_of(sums)) == 4
    assert sizes_of(sums) == (1, 1, 6, 7)


# Trials.


class Sixteen(InterpreterBackend):
    """The interpreter with sixteen ways of which it guesses nothing."""

    built: ClassVar[list[int]] = []

    def configs(self, kernel: Kernel) -> Sequence[Config]:
        return [Config.of(way=way) for way in range(16)]

    def emit(self, kernel: Kernel, config: Config | None = None) -> Source:
        plain = super().emit(kernel)
        return Source(plain.name, plain.text, plain.language, meta=str(config.get("way") if config else 0))

    def build(self, sources: Sequence[Source], folder: Path) -> None:
        type(self).built += [int(source.meta) for source in sources]
        super().build(sources, folder)


def timed(runner: Any, problem: Any, candidates: Sequence[BuiltProgram], *_: Any) -> Mapping[str, float]:
    """One way is the fastest, of the others the first ones are faster."""
    times = {f"toy way={way}": 1.0 if way == GOOD else 1.5 + way / 100 for way in range(16)}
    return {candidate.name: times[candidate.name] for candidate in candidates}


@pytest.fixture
def sixteen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[type[Sixteen]]:
    yield from sixteen_ways(monkeypatch, tmp_path)


def sixteen_ways(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[type[Sixteen]]:
    kind = type("Fresh", (Sixteen,), {"built": []})
    serve(monkeypatch, tmp_path, kind)
    monkeypatch.setattr(search_module, "run_trials", timed)
    yield kind
    forget_sessions()


def tuned(kind: type[Sixteen], rows: int, **options: object) -> tuple[set[int], str]:
    """The ways that were built for a kernel of so many rows, and why the one was chosen."""
    kind.built.clear()
    torch.compiler.reset()
    settings = {"build_workers": 1, "strict": True, "tune_in_process": True, "tune_kernels": True, **options}
    x = torch.randn(rows, 7)
    call = torch.compile(lambda x: torch.relu(x) * 2, backend="polyfuse", options=settings, dynamic=False)
    torch.testing.assert_close(call(x), torch.relu(x) * 2)
    (decision,) = [d for d in last_reports()[-1].decisions if d.kind == "tune"]
    assert decision.second == f"toy way={GOOD}"
    return set(kind.built), decision.reason


@pytest.fixture(scope="module")
def eight_searches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder in which eight kernels were searched for; of seven there is no model yet."""
    folder = tmp_path_factory.mktemp("searched")
    with pytest.MonkeyPatch.context() as monkeypatch:
        for kind in sixteen_ways(monkeypatch, folder):
            assert all(tuned(kind, rows)[0] == set(range(16)) for rows in EIGHT)
    return folder / "cache"


@pytest.fixture
def taught(eight_searches: Path, sixteen: type[Sixteen], tmp_path: Path) -> type[Sixteen]:
    shutil.copytree(eight_searches, tmp_path / "cache")
    return sixteen


def test_later_searches_build_fewer(taught):
    sixteen, everything = taught, set(range(16))
    built, reason = tuned(sixteen, 20)
    # the baseline, half of all, and one that is tried for the sake of learning
    assert {0, GOOD} <= built and len(built) == 9
    assert "7 not built, by the cost model" in reason
    # another process knows it too
    forget_sessions()
    assert len(tuned(sixteen, 21)[0]) == 9
    # of larger kernels than these nothing is known
    assert tuned(sixteen, 41)[0] == everything
    built, reason = tuned(sixteen, 22, tune_cost_model=False)
    assert built == everything and "cost model" not in reason


@pytest.mark.slow
def test_what_is_tried_for_the_sake_of_learning_varies(taught):
    found = [tuned(taught, rows)[0] for rows in range(20, 26)]
    assert len(set(map(frozenset, found))) > 1


def test_a_cost_model_of_one_kernel_is_shown_as_too_few(sixteen, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    tuned(sixteen, 3)
    cli.main(["tune", "show"])
    said = " ".join(capsys.readouterr().out.split())
    assert "cost model of toy: pointwise of 4 bytes on cpu: 16 samples of 1 kernel, too few" in said


def test_cost_models_are_shown_and_cleared(taught, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    cli.main(["tune", "show"])
    assert "samples of 8 kernels; the fastest ranks 1.0 by the model" in capsys.readouterr().out
    cli.main(["tune", "show", "nothing"])
    assert "cost model" not in capsys.readouterr().out
    cli.main(["tune", "clear"])
    store = SampleStore(cache_root(Settings.resolve()))
    assert [store.read(group) for group in store.groups()] == [()]
    forget_sessions()
    assert len(tuned(taught, 31)[0]) == 16


def test_a_poisoned_history_is_ignored(taught):
    root = cache_root(Settings.resolve())
    for number, path in enumerate(sorted((root / "samples").rglob("*.json"))):
        stored = json.loads(path.read_text())
        for row in stored["rows"]:
            row[2] = float("nan") if number % 2 else "soon"
        path.write_text(json.dumps(stored))
    forget_sessions()
    assert len(tuned(taught, 30)[0]) == 16
    assert sum(1 for _ in TimingStore(root).entries()) == 9
