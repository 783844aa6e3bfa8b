"""Fresh processes in which torch is already imported: a parent imports torch and Dynamo once (two to four
seconds of CPU time), and forks a child for each script. A child has its own environment, folder, arguments
and output. Polyfuse is imported in it, with what the first compilation of a process imports (half a second),
but has done nothing: `bare` is for scripts to which it matters what is imported. Not for scripts that need an
environment variable that the interpreter, the loader or torch reads when it starts.

Workers of one run share a parent, which the process that starts them begins (`share`).

A child waits for its threads and calls what is registered for the end, and is gone then: to take all modules
apart, torch's among them, is ten times what forking it costs. `whole_end` has it done.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from polyfuse.base.settings import child_environment

HERE = Path(__file__).resolve()
IMPORTED = (
    *("polyfuse.backend", "polyfuse.compiler.compile", "polyfuse.compiler.stages"),
    "polyfuse_cpp.generator",
)
SHARED = "PARENT_OF_FORKED_TESTS"
"""The variable that names the folder of a parent that several processes share."""


class Started:
    """A child under way; it is like `subprocess.Popen` with both outputs captured."""

    def __init__(self, channel: socket.socket, folder: str) -> None:
        self._channel, self._folder = channel, Path(folder)
        self.pid = int.from_bytes(_receive(channel, 8), "little", signed=True)
        self.returncode: int | None = None

    def output(self) -> str:
        """What it has printed so far."""
        return (self._folder / "stdout").read_text(errors="replace")

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def poll(self, timeout: float = 0.0) -> int | None:
        """Its status as `subprocess` gives it, or None if it still runs after `timeout` seconds."""
        if self.returncode is None and select.select([self._channel], [], [], timeout)[0]:
            self.returncode = int.from_bytes(_receive(self._channel, 8), "little", signed=True)
            self._channel.close()
        return self.returncode

    def communicate(self, timeout: float) -> tuple[str, str]:
        """Wait for its end, and return both outputs; it is killed after `timeout` seconds, an error."""
        if self.poll(timeout) is None:
            self.kill()
            self.poll(60)
            raise subprocess.TimeoutExpired("a forked script", timeout, self.output())
        return self.output(), (self._folder / "stderr").read_text(errors="replace")


def start(
    script: str,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    whole_end: bool = False,
    bare: bool = False,
) -> Started:
    """Start `script`, a text, as the main module of a child with `arguments`, in `folder` and `environment`:
    all of it, as `child_environment` returns it."""
    parent = os.environ.get(SHARED) or _parent().folder
    output = tempfile.mkdtemp(prefix="forked-", dir=parent)
    for name in ("stdout", "stderr"):
        Path(output, name).touch()
    channel = socket.socket(socket.AF_UNIX)
    channel.connect(f"{parent}/{'bare' if bare else 'imported'}")
    request = json.dumps(
        [
            script,
            arguments,
            dict(environment or child_environment()),
            str(folder or Path.cwd()),
            output,
            whole_end,
        ]
    ).encode()
    channel.sendall(len(request).to_bytes(8, "little") + request)
    return Started(channel, output)


def run(
    script: str,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    timeout: float = 600,
    whole_end: bool = False,
    bare: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Start `script` and wait for its end; like `subprocess.run` with outputs captured."""
    child = start(script, *arguments, environment=environment, folder=folder, whole_end=whole_end, bare=bare)
    stdout, stderr = child.communicate(timeout)
    assert child.returncode is not None
    return subprocess.CompletedProcess(["forked"], child.returncode, stdout, stderr)


class _Parent:
    """The process that forks. It begins with two sockets, of which `imported` serves children of a child of
    its own: that imports Polyfuse first, when it is asked for one."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="preforked-", ignore_cleanup_errors=True)
        self.folder = self._folder.name
        sockets = [socket.socket(socket.AF_UNIX) for _ in range(2)]
        for listening, name in zip(sockets, ("bare", "imported"), strict=True):
            listening.bind(f"{self.folder}/{name}")
            listening.listen(64)
        numbers = [listening.fileno() for listening in sockets]
        self._process = subprocess.Popen(
            [sys.executable, str(HERE), *map(str, numbers)],
            pass_fds=numbers,
            stdin=subprocess.PIPE,  # it ends when this process does
            cwd="/",
        )
        for listening in sockets:
            listening.close()

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._folder.cleanup()


@functools.cache
def _parent() -> _Parent:
    parent = _Parent()
    atexit.register(parent.end)
    return parent


def share() -> None:
    """Begin a parent that the processes share that this one starts from now on."""
    os.environ[SHARED] = _parent().folder


def _receive(channel: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = channel.recv(count - len(data))
        if not part:
            raise RuntimeError("the process that forks has ended; its message is above")
        data += part
    return data


def _serve(listening: socket.socket, later: socket.socket | None = None) -> tuple[str, bool]:
    """Fork a child for each request; returns in the children only, with the script and whether its end is
    to be whole. Another process serves `later`, with Polyfuse imported, from the first request there on."""
    waked, waker = socket.socketpair()
    waker.setblocking(False)
    signal.set_wakeup_fd(waker.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    running: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([listening, waked, sys.stdin, *filter(None, [later])], [], [])
        if sys.stdin in ready:
            os._exit(0)
        if later in ready:
            assert later is not None
            if not os.fork():
                signal.set_wakeup_fd(-1)
                for each in (waked, waker, listening, *running.values()):
                    each.close()
                for name in IMPORTED:
                    importlib.import_module(name)
                gc.freeze()
                return _serve(later)
            later.close()
            later = None
        if waked in ready:
            waked.recv(64)
        for pid in list(running):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                _answer(running.pop(pid), os.waitstatus_to_exitcode(status))
        if listening in ready:
            channel, _ = listening.accept()
            script, arguments, environment, folder, output, whole_end = json.loads(
                _receive(channel, int.from_bytes(_receive(channel, 8), "little"))
            )
            pid = os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                for each in (waked, waker, listening, channel, *running.values(), *filter(None, [later])):
                    each.close()
                _become(arguments, environment, folder, output)
                return str(script), bool(whole_end)
            running[pid] = channel
            channel.sendall(pid.to_bytes(8, "little", signed=True))


def _answer(channel: socket.socket, status: int) -> None:
    with contextlib.suppress(OSError):  # nobody waits for it any more
        channel.sendall(status.to_bytes(8, "little", signed=True))
    channel.close()


def _become(arguments: Sequence[str], environment: Mapping[str, str], folder: str, output: str) -> None:
    """Give this process what a fresh one has of its own."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, name in ((1, "stdout"), (2, "stderr")):
        opened = os.open(f"{output}/{name}", os.O_WRONLY | os.O_APPEND)
        os.dup2(opened, number)
        os.close(opened)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    listed = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = ["", *listed, *(path for path in sys.path if path not in (str(HERE.parent), *listed))]
    sys.argv[:] = ["-c", *arguments]


def _ended(run: Callable[[], object]) -> int:
    """The status with which the interpreter would end after `run`; its threads have ended, and what was
    registered for the end has been called."""
    status = 0
    try:
        run()
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if status and status is not ended.code:
            print(ended.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(ValueError):  # the script has closed it
            stream.flush()
    return status & 0xFF


if __name__ == "__main__":
    import torch
    import torch._dynamo.backends.registry
    import torch._functorch.aot_autograd
    import torch.fx.experimental.symbolic_shapes

    import built_libraries
    import seeding
    import torch_costs

    seeding.begin("forked")
    torch._dynamo.list_backends()  # imports what Dynamo imports at its first use
    torch.fx.experimental.symbolic_shapes.ShapeEnv()
    torch_costs.spare()
    if "LIBRARIES_OF_TESTS" in os.environ:
        built_libraries.keep(Path(os.environ["LIBRARIES_OF_TESTS"]))
    torch_costs.collect_seldom()
    gc.freeze()  # children share these pages with it, and no collection of theirs looks at them
    script, whole_end = _serve(*(socket.socket(fileno=int(number)) for number in sys.argv[1:]))
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    compiled = compile(script, "<string>", "exec")
    if whole_end:
        exec(compiled, main.__dict__)
    else:
        os._exit(_ended(lambda: exec(compiled, main.__dict__)))
