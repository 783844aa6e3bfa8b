"""Finding programs, running them, and turning failures into errors that say what was run and printed; what
threads share so that a forked child, which has but one, waits for none of the others.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Generic, TypeVar

from polyfuse.base.errors import BackendUnavailableError, KernelBuildError
from polyfuse.base.settings import child_environment, environment

# So much is retained of what a program prints, from its beginning and from its end.
_RETAINED: Final = 1 << 18

# Seconds to read what is left when a program has ended; what it started may hold the pipe for longer.
_DRAIN: Final = 5.0


@dataclass(frozen=True)
class Finished:
    """A program that ended.

    Attributes:
        status: as the system gives it; None where it took too long and was ended.
        output: what it printed, cut in the middle where that is much.
    """

    status: int | None
    output: str


def run_program(
    command: Sequence[str],
    *,
    folder: Path | None = None,
    env: Mapping[str, str] | None = None,
    text: str | None = None,
    timeout: float = 300.0,
    name: str = "",
) -> str:
    """Run a program to its end and return what it printed, on both streams.

    `name` says what it is for, in messages; `folder` is where it runs; `text` is given to it as its standard
    input. Raises `KernelBuildError`, with the command and the output, when the program is missing, fails, or
    takes longer than `timeout` seconds; then it is ended with all its children.
    """
    what = f"building {name}" if name else Path(command[0]).name
    try:
        done = run_bounded(command, folder=folder, env=env, text=text, timeout=timeout)
    except OSError as error:
        raise KernelBuildError(
            f"{command[0]} cannot be started ({error.strerror})",
            "install it, or name another program",
            command=command,
            name=name,
        ) from error
    if done.status is None:
        raise KernelBuildError(
            f"{what} took longer than {timeout:.0f} seconds",
            "raise the option `build_timeout`",
            command=command,
            output=done.output,
            name=name,
            timed_out=True,
        )
    if done.status:
        raise KernelBuildError(
            f"{what} failed with status {done.status}",
            "the output below says why",
            command=command,
            output=done.output,
            name=name,
        )
    return done.output


def run_bounded(
    command: Sequence[str],
    *,
    folder: Path | None = None,
    env: Mapping[str, str] | None = None,
    text: str | None = None,
    timeout: float = 300.0,
) -> Finished:
    """Run a program, by its argument list and without a shell, for so many seconds at most; whatever it
    prints, little of it is retained. Raises `OSError` where it cannot be started.
    """
    process = subprocess.Popen(
        list(command),
        cwd=folder,
        env=dict(env) if env is not None else None,
        stdin=subprocess.DEVNULL if text is None else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    assert process.stdout is not None
    output = _Output(process.stdout)
    if text is not None:
        _started(_say, process.stdin, text)
    try:
        deadline = time.monotonic() + timeout
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout)
        status = process.poll()
        output.thread.join(max(0.1, min(_DRAIN, deadline - time.monotonic())))
        if status is None or output.thread.is_alive():
            _end_group(process)
    except BaseException:
        _end_group(process)
        process.wait()
        raise
    process.wait()
    output.thread.join(_DRAIN)
    return Finished(status, output.text())


class _Output:
    """What a program prints: its beginning and its end."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._first = bytearray()
        self._last = bytearray()
        self._left_out = 0
        self._stream = stream
        self.thread = _started(self._listen)

    def text(self) -> str:
        gap = f"\n[{self._left_out} bytes left out]\n".encode() if self._left_out else b""
        return bytes(self._first + gap + self._last).decode("utf-8", "replace")

    def _listen(self) -> None:
        with contextlib.suppress(OSError, ValueError), self._stream:
            while chunk := os.read(self._stream.fileno(), 1 << 16):
                room = _RETAINED - len(self._first)
                self._first += chunk[:room]
                self._last += chunk[room:] if room < len(chunk) else b""
                excess = max(0, len(self._last) - _RETAINED)
                self._left_out += excess
                del self._last[:excess]


def _say(stream: IO[bytes], text: str) -> None:
    with contextlib.suppress(OSError), stream:
        stream.write(text.encode())


def _started(function: object, *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=function, args=arguments, daemon=True)  # type: ignore[arg-type]
    thread.start()
    return thread


def _end_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


@contextlib.contextmanager
def library_errors() -> Iterator[None]:
    """Let what libraries print to the error stream of this process become part of a `KernelBuildError`. For
    processes with one thread: file descriptor 2 is another one meanwhile.
    """
    with tempfile.TemporaryFile() as printed:
        usual = os.dup(2)
        os.dup2(printed.fileno(), 2)
        try:
            yield
        except KernelBuildError as error:
            printed.seek(0)
            text = printed.read().decode("utf-8", "replace")
            output = "\n".join(part for part in (error.output, text) if part.strip())
            raise KernelBuildError(
                error.cause, error.fix, command=error.command, output=output, name=error.name
            ) from error
        finally:
            os.dup2(usual, 2)
            os.close(usual)


def python_command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module in a process of its own, which imports nothing from the current folder
    or from the user's own packages unless this process does.
    """
    return [sys.executable, "-P", "-s", "-m", module, *arguments]


def python_environment(*needed: str) -> dict[str, str]:
    """The environment of such a process: it finds modules where this one does, but for the folder of the
    user's script and the current one. Where these are named in `PYTHONPATH`, they stay; where they hold a
    module that is `needed`, they come last.
    """
    asked = {os.path.abspath(p) for p in environment("PYTHONPATH").split(os.pathsep) if p}
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    odd = {os.getcwd(), os.path.dirname(os.path.abspath(main)) if main else os.getcwd()} - asked
    found = [path for path in sys.path if path and os.path.abspath(path) not in odd]
    roots = dict.fromkeys(_root_of(module) for module in ("polyfuse", "torch", *needed))
    found += [root for root in roots if root and root not in found]
    return child_environment(PYTHONPATH=os.pathsep.join(found))


def _root_of(module: str) -> str:
    """The folder from which an imported module comes."""
    top = sys.modules.get(module.partition(":")[0].partition(".")[0])
    file = getattr(top, "__file__", None)
    if not file:
        return ""
    folder = os.path.dirname(os.path.abspath(file))
    return os.path.dirname(folder) if hasattr(top, "__path__") else folder


def find_command(
    what: str, usual: Sequence[str], *, variable: str, option: str = "", named: str = ""
) -> tuple[str, ...]:
    """A program's path, and the arguments that belong to its command.

    Args:
        what: the program, for messages.
        usual: names to look for on the search path, the preferred one first.
        variable: the environment's variable that names another one.
        option: the name of the option that names another one, for messages.
        named: what that option says: a path, or a command with arguments such as ``ccache g++``; it comes
            before the variable.

    Raises:
        BackendUnavailableError: if the command that was named does not exist, or there is none.
    """
    named = named or environment(variable)
    for command in (named,) if named else usual:
        words = _words(command)
        path = shutil.which(words[0]) if words else None
        if path:
            return path, *words[1:]
    if named:
        source = f"{variable} or the option {option}" if option else variable
        raise BackendUnavailableError(
            f"the {what} {named!r}, named by {source}, does not exist", "unset or correct it"
        )
    raise BackendUnavailableError(
        f"no {what} was found (looked for {', '.join(usual)})",
        f"install {usual[0]}, or name another in {variable}",
    )


def _words(command: str) -> tuple[str, ...]:
    """A command as its arguments; a path with spaces in it is one."""
    if shutil.which(command):
        return (command,)
    try:
        return tuple(shlex.split(command))
    except ValueError:  # a quote that is not closed
        return ()


Result = TypeVar("Result")


class Background(Generic[Result]):
    """What a thread of its own computes from the start.

    A forked child has not that thread: it begins anew where it asks for what was not done when it was forked.
    """

    def __init__(self, compute: Callable[[], Result], name: str) -> None:
        self._compute, self._name = compute, name
        self._begin()

    def done(self) -> bool:
        """Whether there is nothing to wait for."""
        return self._current().done()

    def result(self) -> Result:
        """Wait for it; raises what computing it raised."""
        return self._current().result()

    def exception(self) -> BaseException | None:
        """Wait for it, and return what computing it raised."""
        return self._current().exception()

    def _begin(self) -> None:
        self._future: Future[Result] = Future()
        self._process_id = os.getpid()  # behind the future: another thread may ask meanwhile
        threading.Thread(target=self._run, args=(self._future,), name=self._name).start()

    def _current(self) -> Future[Result]:
        if self._process_id != os.getpid() and not self._future.done():
            self._begin()
        return self._future

    def _run(self, future: Future[Result]) -> None:
        try:
            future.set_result(self._compute())
        except BaseException as error:
            future.set_exception(error)


class ForkedLock:
    """A lock that a forked child finds free, whichever thread of its parent held it: for what is held while
    something is compiled, built or timed. The thread that holds it must not fork.

    Args:
        again: whether the thread that holds it may take it again.
    """

    def __init__(self, again: bool = False) -> None:
        self._make = threading.RLock if again else threading.Lock
        self.renew()
        _LOCKS.add(self)

    def renew(self) -> None:
        """Forget who holds it."""
        self._lock = self._make()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


_LOCKS: weakref.WeakSet[ForkedLock] = weakref.WeakSet()


def _renew_locks() -> None:
    for lock in _LOCKS:
        lock.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)
