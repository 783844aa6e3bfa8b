"""The parent's side of a worker process."""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyfuse.base.errors import KernelBuildError, UnsupportedError
from polyfuse.base.process import python_command, python_environment

if TYPE_CHECKING:
    from polyfuse.plugin import Source


class WorkerProcess:
    """One child that builds what is requested, one request at a time.

    `start` and `options` name a function that it calls first; `needed` is one that it will call.
    """

    def __init__(
        self, start: str = "", options: Mapping[str, object] | None = None, needed: str = ""
    ) -> None:
        first = [start, json.dumps(dict(options or {}))] if start else []
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `close`
        self._process = subprocess.Popen(
            python_command("polyfuse.workers.main", *first),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            encoding="utf-8",
            env=python_environment(start, needed),
            # A key that interrupts the parent must not kill a build that the parent may still want.
            start_new_session=True,
        )

    @property
    def alive(self) -> bool:
        """Whether it can take another request."""
        return self._process.poll() is None

    def build(
        self,
        function: str,
        sources: Sequence[Source],
        folder: Path,
        options: Mapping[str, object],
        timeout: float,
    ) -> None:
        """Have the worker build; raises what it raised, `KernelBuildError` also when it crashes or takes too
        long, and `UnsupportedError` where it refuses a kernel.
        """
        request = {
            "function": function,
            "sources": [asdict(source) for source in sources],
            "folder": str(folder),
            "options": dict(options),
        }
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        expired = threading.Event()
        timer = threading.Timer(timeout, self._expire, (expired,))
        timer.daemon = True
        timer.start()
        try:
            stdin.write(json.dumps(request) + "\n")
            stdin.flush()
            line = stdout.readline()
        except OSError:
            line = ""
        finally:
            timer.cancel()
        if not line:
            raise self._crash(sources, timeout if expired.is_set() else None)
        answer = json.loads(line)
        if answer.get("refused"):
            raise UnsupportedError(answer["cause"], answer["fix"])
        if not answer["ok"]:
            raise KernelBuildError(
                answer["cause"],
                answer["fix"],
                command=answer["command"],
                output=answer["output"],
                name=sources[0].name,
            )

    def close(self) -> None:
        """End the worker."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        try:
            self._process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def _expire(self, expired: threading.Event) -> None:
        expired.set()
        self._process.kill()

    def _crash(self, sources: Sequence[Source], timeout: float | None) -> KernelBuildError:
        status = self._process.wait()
        self._errors.seek(0)
        output = self._errors.read().decode("utf-8", "replace")[-4000:]
        names = ", ".join(source.name for source in sources)
        late = timeout is not None
        if timeout is not None:
            cause, fix = f"building {names} took longer than {timeout:.0f} seconds", "raise `build_timeout`"
        else:
            cause, fix = (
                f"the process that built {names} died with status {status}",
                "report it to the backend's author",
            )
        return KernelBuildError(cause, fix, output=output, name=sources[0].name, timed_out=late)


class WorkerProcesses:
    """Workers that are waiting for work; a caller borrows one, and a dead one is replaced."""

    def __init__(self) -> None:
        self._idle: list[WorkerProcess] = []
        self._lock = threading.Lock()
        self._closed = False

    def build(self, *request: Any) -> None:
        """Build in a borrowed worker, which takes the arguments of `WorkerProcess.build`."""
        worker = self._take(str(request[0]))
        try:
            worker.build(*request)
        finally:
            self._give_back(worker)

    def start(self, function: str, options: Mapping[str, object]) -> None:
        """Start one more worker, which calls a function and then waits for work."""
        self._give_back(WorkerProcess(function, options))

    def close(self) -> None:
        """End all waiting workers; those at work end when they are given back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.close()

    def _take(self, function: str) -> WorkerProcess:
        with self._lock:
            while self._idle:
                # the one that waits longest has had most time to start
                worker = self._idle.pop(0)
                if worker.alive:
                    return worker
                worker.close()
        return WorkerProcess(needed=function)

    def _give_back(self, worker: WorkerProcess) -> None:
        with self._lock:
            keep = worker.alive and not self._closed
            if keep:
                self._idle.append(worker)
        if not keep:
            worker.close()
