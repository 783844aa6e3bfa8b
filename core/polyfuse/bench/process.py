"""The parent's side of a child process that runs one engine."""

from __future__ import annotations

import contextlib
import json
import selectors
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from polyfuse.base.settings import child_environment
from polyfuse.base.text import shorten
from polyfuse.bench.engine import Engine

_SHOWN = 300


class ChildError(Exception):
    """A child failed, or took too long; the message says why."""


class ChildProcess:
    """A child and its pipes; closed, it is killed.

    Args:
        engine: what it runs.
        folder: where all caches of this engine are, empty at first for times of a cold compile.
    """

    def __init__(self, engine: Engine, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        environment = child_environment(
            POLYFUSE_CACHE_DIR=str(folder / "polyfuse"),
            POLYFUSE_PROGRESS="off",
            TORCHINDUCTOR_CACHE_DIR=str(folder / "default"),
        )
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the child
        self._child = subprocess.Popen(
            [sys.executable, "-m", "polyfuse.bench.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
        )
        self._send(asdict(engine))

    def ask(self, do: str, timeout: float, **more: Any) -> dict[str, Any]:
        """Have something done, and return the answer.

        Raises:
            ChildError: it failed, or was not done after `timeout` seconds.
        """
        self._send({"do": do, **more})
        line = self._line(timeout)
        if line is None:
            self.close()
            raise ChildError(f"{do} took more than {timeout:.0f} s")
        if not line:
            status = self._child.wait()
            raise ChildError(f"the process ended with status {status} during {do}: {self._output_end()}")
        answer: dict[str, Any] = json.loads(line)
        if set(answer) == {"error"}:
            raise ChildError(shorten(answer["error"], _SHOWN))
        return answer

    def close(self) -> None:
        """End the child."""
        self._child.kill()
        self._child.wait()
        for stream in (self._child.stdin, self._child.stdout, self._errors):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def __enter__(self) -> ChildProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, message: dict[str, Any]) -> None:
        assert self._child.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the answer will be missing
            self._child.stdin.write((json.dumps(message) + "\n").encode())
            self._child.stdin.flush()

    def _line(self, timeout: float) -> bytes | None:
        """The next line; empty where the child ended, None where none came in time."""
        stream = self._child.stdout
        assert stream is not None
        until = time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            while not selector.select(max(0.0, until - time.monotonic())):
                if time.monotonic() >= until:
                    return None
        return stream.readline()

    def _output_end(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return shorten(lines[-1], _SHOWN) if lines else "it said nothing"
