"""What may compute an operator: listed, built, run and timed, without compiling a graph."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import choice_plugin
import polyfuse
from fake_plugins import install, plugin
from polyfuse.base.errors import InputLayoutError, UnsupportedError
from polyfuse.compiler.session import forget_sessions
from polyfuse.reporting.inspection.choices import OperatorChoices

A, B, C = torch.randn(7, 5), torch.randn(5, 9), torch.randn(9)


@pytest.fixture
def options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """With a plugin that offers other calls, and source that it builds in several configurations."""
    hooks = {"polyfuse_choices": choice_plugin.polyfuse_choices}
    point = plugin(
        monkeypatch, hooks=hooks, load="choice_plugin:ChoiceBackend", priority={"cpu": 1000}, options={}
    )
    install(monkeypatch, point)
    forget_sessions()
    yield {"backends": ["toy"], "tune_in_process": True, "cache_dir": str(tmp_path)}
    forget_sessions()


@pytest.fixture
def found(options: dict[str, Any]) -> OperatorChoices:
    return polyfuse.choices(torch.mm, A, B, options=options)


def test_they_say_what_they_are(found: OperatorChoices, options: dict[str, Any]) -> None:
    names = [choice.name for choice in found]
    assert names[0] == "library" and {"toy:plain", "toy:word times=1", "toy:word times=2"} <= {*names}
    assert len(found) == len({*names}) == len({choice.key for choice in found})
    word = found[names.index("toy:word times=2")]
    assert (word.implementation, str(word.config), word.source) == ("toy:word", "times=2", ("7 5 9 2",))
    assert word.about == "mm of float32[7x5] float32[5x9]"
    assert dict(found.declined)["toy:never"] == "not today"
    assert "what is this?" in dict(found.declined)["toy:broken"]
    again, larger = (polyfuse.choices(torch.mm, a, B, options=options) for a in (A.clone(), torch.ones(8, 5)))
    assert again[0].key == found[0].key != larger[0].key


def test_each_is_built_run_and_timed_on_given_tensors(found: OperatorChoices) -> None:
    a, b = torch.randn(7, 5), torch.randn(5, 9)
    for choice in found:
        choice.precompile()
        torch.testing.assert_close(choice(a, b), a @ b)
        out = torch.full((7, 9), torch.nan)
        assert choice.benchmark(a, b, out=out) > 0
        torch.testing.assert_close(out, a @ b)


def test_without_tensors_it_is_timed_as_autotuning_does(found: OperatorChoices) -> None:
    first = found[0].benchmark()
    assert 0 < first == found[0].benchmark(), "it is remembered"


def test_what_was_built_ahead_is_found_by_who_compiles(
    found: OperatorChoices, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for choice in found:
        choice.precompile()
    built: list[object] = []
    build = choice_plugin.ChoiceBackend.build

    def noted(self: Any, sources: Any, folder: Path) -> None:
        built.extend(source.text for source in sources if source.language == "word")
        build(self, sources, folder)

    monkeypatch.setattr(choice_plugin.ChoiceBackend, "build", noted)
    forget_sessions()
    given = {**options, "gemm": "fastest", "graph_cache": False}
    torch.testing.assert_close(torch.compile(torch.mm, backend="polyfuse", options=given)(A, B), A @ B)
    assert not built


def test_kernels_and_library_calls_have_choices_too(options: dict[str, Any]) -> None:
    x = torch.randn(6, 10).t()
    for fn in (lambda x: x.softmax(-1), lambda x: torch.linalg.matrix_exp(x[:6])):
        found = polyfuse.choices(fn, x, options=options)
        assert found and all(choice.benchmark() > 0 for choice in found)
    (interpreted,) = polyfuse.choices(lambda x: x.softmax(-1), x, options=options)
    assert interpreted.source and interpreted.implementation == "toy"
    torch.testing.assert_close(interpreted(x), x.softmax(-1))
    assert interpreted.benchmark(x) > 0


def test_parameters_of_a_module_are_its_own(options: dict[str, Any]) -> None:
    layer, x = torch.nn.Linear(5, 9), torch.randn(7, 5)
    for choice in polyfuse.choices(layer, x, options=options):
        torch.testing.assert_close(choice(x), layer(x).detach())


def test_other_tensors_are_refused(found: OperatorChoices, options: dict[str, Any]) -> None:
    for wrong in (torch.randn(7, 6), torch.randn(5, 7).t(), A.double(), 3):
        with pytest.raises(InputLayoutError, match=r"float32 of size \(7, 5\)"):
            found[0](wrong, B)
    with pytest.raises(InputLayoutError, match="argument 1 is missing"):
        found[0](A)
    with pytest.raises(UnsupportedError, match="without tensors"):
        found[0].benchmark(out=torch.empty(7, 9))
    two = polyfuse.choices(lambda a, b: (a @ b, a.cumsum(0)), A, B, options=options)
    with pytest.raises(UnsupportedError, match="several results"):
        two[0](A, B)


def test_nothing_to_choose_from(options: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match="nothing is computed"):
        polyfuse.choices(lambda x: 3, A, options=options)
