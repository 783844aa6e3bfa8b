"""Kernels that ask for scratch: who gets what a program planned, and what replaces them without it."""

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

BYTES = 4096


class Needy(InterpreterBackend):
    """The interpreter, in blocks that want some scratch each, and notes what its kernels are given."""

    bad: ClassVar[tuple[int, ...]] = ()
    spilling: ClassVar[tuple[int, ...]] = ()
    blocks: ClassVar[dict[str, int]] = {}
    given: ClassVar[list[tuple[int, int]]] = []
    """For each launch, its block and the bytes of its scratch; -1 where there is none."""

    def configs(self, kernel: Kernel) -> Sequence[Config]:
        return [Config.of(block=2), Config.of(block=1), Config.of(block=0)]

    def emit(self, kernel: Kernel, config: Config | None = None) -> Source:
        block = (config or Config.of(block=2)).get("block")
        source = replace(super().emit(kernel), key="", meta=str(block), scratch=block * BYTES)
        self.blocks[source.key] = block
        return source

    def build(self, sources: Sequence[Source], folder: Path) -> None:
        if any(self.blocks[source.key] in self.bad for source in sources):
            raise KernelBuildError("out of registers", "use smaller blocks")
        super().build(sources, folder)

    def load(self, folder: Path) -> Mapping[str, Launchable]:
        def noted(block: int, kernel: Launchable) -> Launchable:
            def launch(*operands: Any) -> None:
                count = len(kernel.kernel.args)  # type: ignore[attr-defined]
                rest = operands[count:]
                type(self).given.append((block, rest[0].nbytes if rest else -1))
                self.look(*rest[:1])
                kernel(*operands[:count])

            return launch

        found = super().load(folder)
        return {key: noted(self.blocks[key], one) for key, one in found.items()}

    def look(self, *scratch: torch.Tensor) -> None:
        """Look at what a kernel was given."""

    def review(self, folder: Path, key: str) -> Claim:
        return No("it spills") if self.blocks[key] in self.spilling else Yes()


@pytest.fixture
def needy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[type[Needy]]:
    kind = type("Fresh", (Needy,), {"given": []})
    serve(monkeypatch, tmp_path, kind)
    yield kind
    forget_sessions()


def run(needy: type[Needy], **options: object) -> list[tuple[int, int]]:
    """What the kernels of a function were given that is right."""
    forget_sessions()
    torch.compiler.reset()
    needy.given.clear()
    settings = {"build_workers": 1, "strict": True, **options}
    f = torch.compile(lambda x: torch.relu(x) * 2, backend="polyfuse", options=settings)
    x = torch.randn(5, 7)
    torch.testing.assert_close(f(x), torch.relu(x) * 2)
    return list(needy.given)


def test_the_program_passes_what_it_planned(needy):
    assert run(needy) == [(2, 2 * BYTES)]
    assert last_reports()[-1].launches[0].backend == "toy"


def test_with_a_profile_too(needy, monkeypatch):
    monkeypatch.setattr("polyfuse.runtime.profile._print_at_exit", lambda: None)
    assert run(needy, profile=True) == [(2, 2 * BYTES)]


@pytest.mark.quick(1)
@pytest.mark.parametrize("check", ("off", "first", "all"))
def test_it_is_zeroed_before_the_launch(needy, monkeypatch, check):
    """Also of the memory that a checked launch has."""
    sums: list[int] = []
    emit = needy.emit
    monkeypatch.setattr(needy, "emit", lambda self, *given: replace(emit(self, *given), zeroed="launch"))
    monkeypatch.setattr(
        needy, "look", lambda self, scratch: sums.append(int(scratch.sum())) or scratch.fill_(9)
    )
    assert set(run(needy, check=check)) == {(2, 2 * BYTES)}
    assert sums and not any(sums)


@pytest.mark.quick(1)
@pytest.mark.parametrize("fault", ("bad", "spilling"))
def test_another_configuration_provides_for_itself(needy, monkeypatch, fault):
    monkeypatch.setattr(needy, fault, (2,))
    assert run(needy) == [(1, -1)]


def test_one_that_is_no_better_than_the_first_has_what_was_planned(needy, monkeypatch):
    monkeypatch.setattr(needy, "spilling", (0, 1, 2))
    assert run(needy) == [(2, 2 * BYTES)]


def test_another_backend_is_called_without(needy, monkeypatch):
    monkeypatch.setattr(needy, "bad", (0, 1, 2))
    assert run(needy, strict=False) == []
    assert run(needy, strict=False, backends=["toy"]) == []
