"""Kernels that cannot be built, or not as they should be, in the configuration that was chosen first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from fake_plugins import serve
from polyfuse.base.errors import KernelBuildError
from polyfuse.compiler.reports.report import last_reports
from polyfuse.compiler.session import forget_sessions
from polyfuse.ir.kernel import Kernel
from polyfuse.plugin import Claim, Config, Launchable, No, Source, Yes
from polyfuse.reference.backend import InterpreterBackend


class Blocks(InterpreterBackend):
    """The interpreter, in blocks of three sizes, that notes which of them are launched."""

    bad: ClassVar[tuple[int, ...]] = ()
    spilling: ClassVar[tuple[int, ...]] = ()
    blocks: ClassVar[dict[str, int]] = {}
    launched: ClassVar[list[int]] = []

    def configs(self, kernel: Kernel) -> Sequence[Config]:
        return [Config.of(block=2), Config.of(block=1), Config.of(block=0)]

    def emit(self, kernel: Kernel, config: Config | None = None) -> Source:
        block = (config or Config.of(block=2)).get("block")
        source = replace(super().emit(kernel), key="", meta=str(block))
        self.blocks[source.key] = block
        return source

    def build(self, sources: Sequence[Source], folder: Path) -> None:
        if any(self.blocks[source.key] in self.bad for source in sources):
            raise KernelBuildError("out of registers", "use smaller blocks")
        super().build(sources, folder)

    def load(self, folder: Path) -> Mapping[str, Launchable]:
        def noted(block: int, kernel: Launchable) -> Launchable:
            def launch(*operands: Any) -> None:
                type(self).launched.append(block)
                kernel(*operands)

            return launch

        found = super().load(folder)
        return {key: noted(self.blocks[key], one) for key, one in found.items()}

    def review(self, folder: Path, key: str) -> Claim:
        return No("it spills") if self.blocks[key] in self.spilling else Yes()


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[type[Blocks]]:
    kind = type("Fresh", (Blocks,), {"launched": []})
    serve(monkeypatch, tmp_path, kind)
    yield kind
    forget_sessions()


def run(toy: type[Blocks], **options: object) -> list[int]:
    """The blocks in which the kernel of a function was launched, whose results are right."""
    forget_sessions()
    torch.compiler.reset()
    toy.launched.clear()
    settings = {"build_workers": 1, "strict": True, **options}
    f = torch.compile(lambda x: torch.relu(x) * 2, backend="polyfuse", options=settings)
    x = torch.randn(5, 7)
    torch.testing.assert_close(f(x), torch.relu(x) * 2)
    return list(toy.launched)


def test_the_first_is_taken(toy):
    assert run(toy) == [2]
    assert last_reports()[-1].launches[0].backend == "toy"


def test_with_a_profile_too(toy, monkeypatch):
    monkeypatch.setattr("polyfuse.runtime.profile._print_at_exit", lambda: None)
    assert run(toy, profile=True) == [2]


@pytest.mark.quick(1)
@pytest.mark.parametrize("fault", ("bad", "spilling"))
def test_another_one_is_taken(toy, monkeypatch, fault):
    monkeypatch.setattr(toy, fault, (2,))
    assert run(toy) == [1]


def test_one_that_is_no_better_than_the_first_is_not(toy, monkeypatch):
    monkeypatch.setattr(toy, "spilling", (0, 1, 2))
    assert run(toy) == [2]


def test_another_backend_where_none_can_be_built(toy, monkeypatch):
    monkeypatch.setattr(toy, "bad", (0, 1, 2))
    assert run(toy, strict=False) == []
    assert run(toy, strict=False, backends=["toy"]) == []
