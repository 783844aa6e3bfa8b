"""Every exception Polyfuse raises, as one tree.

    PolyfuseError
    ├── InvalidOptionError      an option, mode or environment variable that is not understood
    ├── UnsupportedError        the compiler cannot express this graph, shape, dtype or device
    ├── InputLayoutError        a compiled program was called with inputs it was not compiled for
    ├── IRError                 the intermediate representation is malformed
    │   ├── VerifyError
    │   └── ParseError
    ├── BackendError            a code-generator plugin cannot be used
    │   ├── BackendUnavailableError
    │   ├── IncompatibleBackendError
    │   └── DuplicateBackendError
    ├── KernelBuildError        compiling a kernel's source failed
    ├── KernelLoadError         a built kernel cannot be loaded
    ├── KernelLaunchError       a device refused to start a kernel
    ├── WrongCandidateError     a candidate of autotuning computes something else than the first one
    ├── CacheError              an artifact store cannot be used
    ├── RankError               processes of a distributed program do not agree, or another one failed
    └── PackageError            an ahead-of-time package cannot be made, loaded or called

A message is one sentence: the cause, then what to do about it. Each class has a code, which tracebacks show
in a note, beside the line of the model where that is known; docs/reference/errors.md explains it.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import ClassVar, TypeVar

from polyfuse.base.text import printable

__all__ = [
    "BackendError",
    "BackendUnavailableError",
    "CacheError",
    "DuplicateBackendError",
    "IRError",
    "IncompatibleBackendError",
    "InputLayoutError",
    "InvalidOptionError",
    "KernelBuildError",
    "KernelLaunchError",
    "KernelLoadError",
    "PackageError",
    "ParseError",
    "PolyfuseError",
    "RankError",
    "UnsupportedError",
    "VerifyError",
    "WrongCandidateError",
]

# A compiler can print megabytes of diagnostics; the first lines carry the cause.
_SHOWN_OUTPUT = 4000

_FROM_MODEL = "polyfuse_from_model"
_E = TypeVar("_E", bound=BaseException)


class PolyfuseError(Exception):
    """Base of every error raised by Polyfuse: a `cause`, and a `fix` where one is known."""

    code: ClassVar[str] = "PF1000"

    def __init__(self, cause: str, fix: str = "") -> None:
        cause, fix = printable(cause), printable(fix)
        super().__init__(cause, fix)
        self.cause = cause
        self.fix = fix
        # tracebacks show notes below the message, which stays one sentence
        self.add_note(f"{self.code}, explained in docs/reference/errors.md")

    def __str__(self) -> str:
        return f"{self.cause}; {self.fix}" if self.fix else self.cause


class InvalidOptionError(PolyfuseError, ValueError):
    """An option, a mode or an environment variable is unknown or has a value that it cannot take.

    Correct the name or the value; the message names the nearest known ones.
    """

    code = "PF1100"


class UnsupportedError(PolyfuseError):
    """The compiler cannot express a graph, an operator, a dtype, a shape or a device.

    Normally the node or the graph runs in eager mode instead; with the option `strict` the error is raised.
    """

    code = "PF1200"


class InputLayoutError(PolyfuseError, RuntimeError):
    """A compiled program was called with inputs whose size, stride, dtype, device or alignment differs from
    what it was compiled for.

    Call it with inputs like those it was compiled with, or compile it again.
    """

    code = "PF1300"


class IRError(PolyfuseError):
    """The intermediate representation breaks one of its rules. This is a fault of Polyfuse or of a plugin.

    Report it with the text dumped under the option `dump`.
    """

    code = "PF1400"


class VerifyError(IRError):
    """A verifier found a node, kernel or program that breaks a rule of the representation."""

    code = "PF1410"


class ParseError(IRError):
    """Text given to a parser of the representation is not well formed; the message holds line and column."""

    code = "PF1420"


class BackendError(PolyfuseError):
    """A code-generator plugin failed or cannot be used. Its work goes to the next plugin in order."""

    code = "PF1500"


class BackendUnavailableError(BackendError):
    """A plugin was asked for by name but is unknown, disabled, or lacks something that it requires."""

    code = "PF1510"


class IncompatibleBackendError(BackendError):
    """A plugin was built for another version of the plugin interface; install a version made for this one."""

    code = "PF1520"


class DuplicateBackendError(BackendError):
    """Two distributions declare a plugin of the same name; uninstall one of them."""

    code = "PF1530"


class KernelBuildError(PolyfuseError):
    """Compiling the source of a kernel failed. Holds the command, what it printed, and whether it was ended
    because it took too long.
    """

    code = "PF1600"

    def __init__(
        self,
        cause: str,
        fix: str = "",
        *,
        command: Sequence[str] = (),
        output: str = "",
        name: str = "",
        timed_out: bool = False,
    ) -> None:
        super().__init__(cause, fix)
        self.command = tuple(command)
        self.output = printable(output)
        self.name = name
        self.timed_out = timed_out

    def __str__(self) -> str:
        parts = [super().__str__()]
        if self.command:
            parts.append("command: " + printable(shlex.join(self.command)))
        if self.output:
            shown = self.output[:_SHOWN_OUTPUT]
            left_out = len(self.output) - len(shown)
            parts.append("output:\n" + shown + (f"\n[{left_out} more characters]" if left_out else ""))
        return "\n".join(parts)

    def __reduce__(self) -> tuple[object, ...]:
        state = {
            "command": self.command,
            "output": self.output,
            "name": self.name,
            "timed_out": self.timed_out,
        }
        return (KernelBuildError, (self.cause, self.fix), state)


class KernelLoadError(PolyfuseError):
    """A built kernel cannot be loaded into this process, most often because a shared library is missing."""

    code = "PF1610"


class KernelLaunchError(PolyfuseError, RuntimeError):
    """A device refused to start a kernel, or its arguments are not what the kernel was compiled for.

    The message names the kernel and gives the words of the driver. An error of an earlier kernel may surface
    here too: with the option `debug_sync` it shows at its cause.
    """

    code = "PF1620"


class WrongCandidateError(PolyfuseError, RuntimeError):
    """A candidate of autotuning gave other results than the first one, with the option `tune_verify` at
    `raise`. Holds the candidate's name.

    The message names the candidate and how far off it is. With `drop`, it would not be used, and the next
    best would.
    """

    code = "PF1630"

    def __init__(self, cause: str, fix: str = "", *, candidate: str = "") -> None:
        super().__init__(cause, fix)
        self.candidate = candidate


class CacheError(PolyfuseError):
    """An artifact store cannot be used: no folder is writable, or a lock was not released in time.

    Name a writable folder with the option `cache_dir`. The compiler itself treats a damaged entry as a miss.
    """

    code = "PF1700"


class RankError(PolyfuseError, RuntimeError):
    """Processes of a distributed program compiled graphs whose collectives, options or versions differ, or
    another process failed to compile its own.

    The message names the ranks, and for a collective the line of the model on each. Without the error the
    processes would wait for each other.
    """

    code = "PF1900"


class PackageError(PolyfuseError):
    """An ahead-of-time package cannot be made of a model, is damaged, does not fit this machine or torch, or
    was called with what it was not made for.

    The message names the operator, feature, file or argument.
    """

    code = "PF1800"


def mark_from_model(error: _E) -> _E:
    """Return an exception after marking it as the model's own fault, such as an index out of range.

    A kernel that raises it is right: it reaches the caller as it is, and no other backend is tried.
    """
    error.__dict__[_FROM_MODEL] = True
    return error


def is_from_model(error: BaseException) -> bool:
    """Return whether `mark_from_model` marked this exception."""
    return bool(error.__dict__.get(_FROM_MODEL))
