"""Results that take the memory of what is read: who may refuse that, and what happens then."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from fake_plugins import serve
from polyfuse.base.errors import KernelBuildError
from polyfuse.compiler.reports.report import last_reports, reset_reports
from polyfuse.compiler.session import forget_sessions
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.text.parse import parse_kernel
from polyfuse.plugin import Config, Launchable, Source
from polyfuse.reference.backend import InterpreterBackend


class Fussy(InterpreterBackend):
    """The interpreter. Its kernels spoil inputs that lie where a result lies, in configurations that refuse
    that; some configurations cannot be built.
    """

    refusing: ClassVar[tuple[int, ...]] = ()
    bad: ClassVar[tuple[int, ...]] = ()
    chosen: ClassVar[dict[str, tuple[int, Kernel]]] = {}
    shared: ClassVar[list[tuple[int, bool]]] = []
    """For each launch of a kernel with pairs, its configuration, and whether some pair was one memory."""

    def configs(self, kernel: Kernel) -> Sequence[Config]:
        return [Config.of(number=n) for n in (1, 2)]

    def emit(self, kernel: Kernel, config: Config | None = None) -> Source:
        number = (config or Config.of(number=1)).get("number")
        refused = kernel.aliases if number in self.refusing else ()
        source = replace(super().emit(kernel), key="", meta=str(number), refused_aliases=refused)
        self.chosen[source.key] = number, parse_kernel(source.text)
        return source

    def build(self, sources: Sequence[Source], folder: Path) -> None:
        if any(self.chosen[source.key][0] in self.bad for source in sources):
            raise KernelBuildError("out of registers", "use fewer")
        super().build(sources, folder)

    def load(self, folder: Path) -> Mapping[str, Launchable]:
        def noted(number: int, kernel: Kernel, launchable: Launchable) -> Launchable:
            position = {arg.name: k for k, arg in enumerate(kernel.args)}

            def launch(*operands: Any) -> None:
                one = [
                    operands[position[a.output]].data_ptr() == operands[position[a.input]].data_ptr()
                    for a in kernel.aliases
                ]
                if kernel.aliases:
                    type(self).shared.append((number, any(one)))
                if any(one) and number in self.refusing:
                    for alias in kernel.aliases:
                        operands[position[alias.output]].fill_(77.0)
                launchable(*operands)

            return launch

        found = super().load(folder)
        return {key: noted(*self.chosen[key], one) for key, one in found.items()}


@pytest.fixture
def fussy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[type[Fussy]]:
    kind = type("Fresh", (Fussy,), {"shared": []})
    serve(monkeypatch, tmp_path, kind)
    yield kind
    forget_sessions()


def run(fussy: type[Fussy], **options: object) -> list[tuple[int, bool]]:
    """The launches of a function whose second kernel can write over what it reads."""
    forget_sessions()
    reset_reports()
    torch.compiler.reset()
    fussy.shared.clear()
    settings = {"build_workers": 1, "strict": True, **options}

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.mm(x, w)) * 2

    x, w = torch.randn(6, 7), torch.randn(7, 6)
    found = torch.compile(function, backend="polyfuse", options=settings)(x, w)
    torch.testing.assert_close(found, function(x, w))
    return list(fussy.shared)


def kinds() -> list[str]:
    decisions = [d for report in last_reports() for d in report.decisions]
    return [d.kind for d in decisions if d.kind in ("inplace", "unaliased")]


def test_a_pair_that_is_accepted_is_used(fussy):
    assert run(fussy) == [(1, True)] and kinds() == ["inplace"]


def test_nothing_shares_memory_where_that_is_not_wanted(fussy):
    assert run(fussy, inplace=False) == [] and kinds() == []


def test_a_pair_that_is_refused_is_not(fussy, monkeypatch):
    monkeypatch.setattr(fussy, "refusing", (1,))
    assert run(fussy) == [(1, False)] and kinds() == ["inplace", "unaliased"]


def test_another_configuration_that_refuses_is_launched_on_a_copy(fussy, monkeypatch):
    monkeypatch.setattr(fussy, "bad", (1,))
    assert run(fussy) == [(2, True)]
    monkeypatch.setattr(fussy, "refusing", (2,))
    assert run(fussy) == [(2, False)] and kinds() == ["inplace"]


def test_one_that_accepts_what_the_first_refused_is_given_no_more(fussy, monkeypatch):
    monkeypatch.setattr(fussy, "bad", (1,))
    monkeypatch.setattr(fussy, "refusing", (1,))
    assert run(fussy) == [(2, False)]


def test_another_backend_takes_over(fussy, monkeypatch):
    monkeypatch.setattr(fussy, "bad", (1, 2))
    assert run(fussy, strict=False) == [] and kinds() == ["inplace"]
