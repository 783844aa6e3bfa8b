"""What tests of compiled graphs share."""

from __future__ import annotations

import pytest


@pytest.fixture
def interpreted_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are the interpreter's, for tests of graphs: nobody compiles them."""
    monkeypatch.setenv("POLYFUSE_BACKENDS", "interpreter")
