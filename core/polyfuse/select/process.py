"""The parent's side of the process in which candidates run."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from multiprocessing import Pipe
from typing import Any

from polyfuse.base.settings import child_environment
from polyfuse.base.text import shorten
from polyfuse.select.work import Circumstances, Problem

__all__ = ["Child", "Fault"]

# Seconds in which a child starts and imports torch.
_START_SECONDS = 180.0
# Seconds after which a wait looks at the clock.
_SLICE = 0.5


class Fault(Exception):
    """A candidate did not do its work; the text says how."""


class Child:
    """One child.

    Attributes:
        problem: what it was prepared for last.
    """

    def __init__(self, circumstances: Circumstances) -> None:
        self.problem: Problem | None = None
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `end`
        self._channel, other = Pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "polyfuse.select.child", str(other.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=self._said,
            stderr=self._said,
            pass_fds=(other.fileno(),),
            env=child_environment(PYTHONPATH=os.pathsep.join(filter(None, sys.path))),
            # a key that interrupts the parent is the parent's to answer
            start_new_session=True,
        )
        other.close()
        self._started = False
        self._send("start", (circumstances,), _START_SECONDS)

    @property
    def alive(self) -> bool:
        """Whether it can be asked again."""
        return self._process.poll() is None

    def ask(self, name: str, arguments: tuple[object, ...], seconds: float) -> Any:
        """The answer to a request.

        Raises:
            Fault: the request raised, the child died over it, or it took too long, which ends the child.
        """
        if not self._started:
            self._answer(_START_SECONDS)
            self._started = True
        self._send(name, arguments, seconds)
        return self._answer(seconds)

    def end(self) -> None:
        """End it, with all that it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._channel.close()
        self._said.close()

    def _send(self, name: str, arguments: tuple[object, ...], seconds: float) -> None:
        # a child that is gone is found out when its answer does not come
        with contextlib.suppress(OSError):
            self._channel.send((name, arguments, seconds))

    def _answer(self, seconds: float) -> Any:
        try:
            if not self._waited(seconds):
                self._kill()
                raise Fault(f"it did not end within {seconds:.0f} seconds")
            verdict, value = self._channel.recv()
        except (EOFError, OSError):
            raise Fault(self._death()) from None
        if verdict == "raised":
            raise Fault(f"it raised {value}")
        return value

    def _waited(self, seconds: float) -> bool:
        """Wait for an answer. Time in which this process stood still, too, does not count: machines sleep."""
        left = seconds
        while left > 0:
            before = time.monotonic()
            if self._channel.poll(min(left, _SLICE)):
                return True
            left -= min(time.monotonic() - before, 2 * _SLICE)
        return False

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _death(self) -> str:
        status = self._process.wait()
        how = f"by signal {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
        self._said.seek(0)
        lines = self._said.read().decode("utf-8", "replace").strip().splitlines()
        words = f" ({shorten(lines[-1], 120)})" if lines else ""
        return f"the process that ran it died {how}{words}"
