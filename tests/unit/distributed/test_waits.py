"""What a rank says of the time that it waited for another one's compile."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from polyfuse.base.files import locked
from polyfuse.compiler import once


def test_a_wait_for_a_rank_of_this_host_is_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[str] = []
    monkeypatch.setattr(once, "this_rank", lambda: 1)
    monkeypatch.setattr(once, "_NOTED", 0.05)
    monkeypatch.setattr(once._log, "info", lambda text, *args: logged.append(text % args))
    session: Any = SimpleNamespace(
        settings=SimpleNamespace(build_timeout=30), store=SimpleNamespace(root=tmp_path), exchange=None
    )
    with once.only_rank(session, "key", lambda: None):
        pass
    assert logged == []  # nobody held the lock
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with locked(tmp_path / "locks" / "key.lock", 30):
            held.set()
            done.wait(0.2)

    other = threading.Thread(target=hold)
    other.start()
    held.wait(30)
    with once.only_rank(session, "key", lambda: "made") as found:
        assert found == "made"
    other.join()
    (line,) = logged
    assert line.startswith("waited ") and line.endswith("s for a rank of this host, which compiled")
