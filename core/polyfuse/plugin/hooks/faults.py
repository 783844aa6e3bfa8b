"""What a plugin raised: whether it is its fault, and how that is reported without ending the process."""

from __future__ import annotations

import threading

from polyfuse.base.errors import BackendError
from polyfuse.base.text import brief


def is_fault(error: BaseException) -> bool:
    """Whether what came out of a plugin's code is the plugin's own doing. Exceptions and exits are.

    Python runs handlers of signals in the main thread, in the midst of whatever runs there: what else is
    raised in it, such as `KeyboardInterrupt`, may be the user's, and must reach the program. In any other
    thread, such as those in which hooks run, it is the plugin's.
    """
    if isinstance(error, (Exception, SystemExit)):
        return True
    return threading.current_thread() is not threading.main_thread()


def wrong_answer(answer: object, wanted: str) -> TypeError:
    """The error over an answer of another type."""
    return TypeError(f"{'None' if answer is None else f'a {type(answer).__name__}'} is no {wanted}")


def as_error(error: BaseException, plugin: str, doing: str) -> Exception:
    """A fault as something to raise that ends no process.

    Args:
        error: the fault.
        plugin: whose it is.
        doing: what it was doing, as a clause: "loading".
    """
    if isinstance(error, Exception):
        return error
    cause = f"plugin {plugin!r} wanted to end the process while {doing} ({brief(error)})"
    found = BackendError(cause, "report it to the plugin's author")
    found.__cause__ = error
    return found
