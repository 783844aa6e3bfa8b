"""What the tests of failures share: a store of one's own, no sessions left over, plugins that misbehave."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from fake_plugins import plugin
from polyfuse.base import log
from polyfuse.compiler.session import forget_sessions
from polyfuse.plugin.session import manager
from polyfuse.plugin.session.discovery import Candidate


class Said(logging.Handler):
    """Keeps the warnings of Polyfuse."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Start and end without compiled code, sessions, warnings given or kernels loaded.

    The next backend after C++ is the interpreter, whether or not an optional one in between is installed.
    """
    monkeypatch.setenv("POLYFUSE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("POLYFUSE_DISABLE", "halide")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    _forget()
    yield
    torch.set_num_threads(before)
    _forget()


def _forget() -> None:
    torch.compiler.reset()
    forget_sessions()
    log.reset_warned()


@pytest.fixture
def warned() -> Iterator[list[str]]:
    """The warnings given so far."""
    said = Said()
    logger = logging.getLogger("polyfuse")
    logger.addHandler(said)
    yield said.texts
    logger.removeHandler(said)


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[[type], None]:
    """Return `install(backend class)`: it is found beside the real plugins, and asked first."""

    def install(kind: type) -> None:
        home = ModuleType("backend_on_trial")
        home.kind = kind  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, home.__name__, home)
        point = plugin(monkeypatch, priority={"cpu": 1000}, load="backend_on_trial:kind", options={})
        real = manager.find_candidates

        def find_candidates(points: object) -> tuple[Candidate, ...]:
            return (*real(None), *real([point]))

        monkeypatch.setattr(manager, "find_candidates", find_candidates)

    return install
